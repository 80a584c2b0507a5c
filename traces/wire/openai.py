"""What bodies of the two OpenAI dialects have in common: parts of a content, markers, parameters of the cache's key.

Sources: OpenAI's guides "Prompt caching" and "Cache diagnostics", types of the SDK openai 3.57.0. Routers and other
makers send the same shapes, some with Anthropic's marker (`cache_control`) on content parts.
"""

from collections.abc import Iterator
from typing import Any

from traces.errors import MalformedRow
from traces.schema import JsonObject, Level, Ttl
from traces.wire.anthropic import Part, mark_of
from traces.wire.shapes import described, list_at

MARKS = ("cache_control", "prompt_cache_breakpoint")
INSTRUCTIONS = ("system", "developer")
_TEXTS = ("text", "input_text", "output_text")
_LONG = ("12h", "24h", "1h")


def contents(content: Any, path: str, level: Level, role: str) -> Iterator[Part]:
    """Yield the parts of a message's content: one text, or a list. Raises `MalformedRow` for any other shape."""
    if content is None:
        return
    if isinstance(content, str):
        yield Part(path, level, role, {"type": "text", "text": content})
        return
    if not isinstance(content, list):
        raise MalformedRow(f"{path[1:]} is {described(content)}, content is a text or a list of parts")
    for number, item in enumerate(content):
        if isinstance(item, str):
            item = {"type": "text", "text": item}
        if not isinstance(item, dict):
            raise MalformedRow(f"{path[1:]}[{number}] is {described(item)}, a content part is an object")
        # One name for a text, whoever said it and in whichever dialect: the role is part of the block already.
        yield Part(f"{path}/{number}", level, role, {**item, "type": "text"} if item.get("type") in _TEXTS else item)


def tools(body: JsonObject) -> Iterator[Part]:
    """Yield tool definitions; deferred ones are not in the prefix."""
    for index, tool in enumerate(list_at(body, "tools")):
        if not isinstance(tool, dict):
            raise MalformedRow(f"tools[{index}] is {described(tool)}, a tool definition is an object")
        if tool.get("defer_loading") is not True:
            yield Part(f"/tools/{index}", Level.TOOLS, "", tool)


def strip_marks(value: JsonObject) -> tuple[JsonObject, Ttl | None]:
    """A part without its cache markers, and the class of lifetime that its own marker asks for."""
    mark = mark_of(value.get("cache_control")) or lifetime(value.get("prompt_cache_breakpoint"))
    clean = {name: item for name, item in value.items() if name not in MARKS}
    for name in ("content", "output"):
        inner = clean.get(name)
        if isinstance(inner, list):
            found = [m for m in (strip_marks(each)[1] for each in inner if isinstance(each, dict)) if m]
            mark = mark or (found[-1] if found else None)
            clean = {**clean, name: [strip_marks(each)[0] if isinstance(each, dict) else each for each in inner]}
    return clean, mark


def lifetime(value: Any) -> Ttl | None:
    """The class of lifetime ("1h" stands for the longer one) of a breakpoint or of cache options; `None`: no marker."""
    if not isinstance(value, dict):
        return None
    return "1h" if value.get("ttl") in _LONG else "5m"


def automatic(body: JsonObject) -> Ttl | None:
    """Lifetime of the boundary that the provider places, `None` where the client asked for its own only."""
    options = body.get("prompt_cache_options")
    if isinstance(options, dict) and options.get("mode") == "explicit":
        return None
    return lifetime(options) or "5m"


def parameters(body: JsonObject) -> dict[str, Any]:
    """Parameters that both dialects keep in the same place, by rule name; an explicit default counts as absent.

    `tool_choice` is not among them: documented not to break the prefix.
    """
    tier = body.get("service_tier")
    user = body.get("user_id")
    metadata = body.get("metadata")
    if user is None and isinstance(metadata, dict):
        user = metadata.get("user_id")
    found = {
        "parallel_tool_calls": False if body.get("parallel_tool_calls") is False else None,
        "service_tier": None if tier in ("auto", "default") else tier,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "prompt_cache_retention": body.get("prompt_cache_retention"),
        "user_id": user,
    }
    return {name: value for name, value in found.items() if value is not None}


PARAMETER_PATHS = {
    "model": "/model",
    "parallel_tool_calls": "/parallel_tool_calls",
    "service_tier": "/service_tier",
    "prompt_cache_key": "/prompt_cache_key",
    "prompt_cache_retention": "/prompt_cache_retention",
    "user_id": "/user_id",
}
"""Where each parameter stands in a body of either dialect."""


def format_of(value: Any) -> Any:
    """A demanded output format, `None` for plain text."""
    return None if not isinstance(value, dict) or value.get("type") == "text" else value
