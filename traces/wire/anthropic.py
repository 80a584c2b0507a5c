"""The Anthropic Messages body as ordered parts, and the parameters that may enter the cache's key.

Order of the cached prefix: tools, system, messages. Source: platform documentation, "Prompt caching".
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from traces.errors import MalformedRow
from traces.schema import JsonObject, Level, Ttl
from traces.wire.shapes import described, list_at

# Server tools that the provider renders into the system level: switching them spares the tools level.
SYSTEM_LEVEL_TOOLS = ("web_search_", "web_fetch_")


class Part(NamedTuple):
    """One content block of a body: JSON pointer, level, role ("" for tools and system), and its value."""

    path: str
    level: Level
    role: str
    value: JsonObject


@lru_cache(maxsize=65536)
def _message_path(message: int, part: int) -> str:
    return f"/messages/{message}/content/{part}"


# Names under which recorders know those who serve this API.
PROVIDERS = frozenset(
    ("anthropic", "bedrock", "aws", "claude_platform_aws", "google_cloud", "vertex", "vertex_ai", "azure_foundry")
)


def is_request(body: JsonObject, provider: str, api: str | None) -> bool:
    """Whether `body` is a Messages request; a Chat body has `messages` too, so who was asked decides."""
    if not isinstance(body.get("messages"), list):
        return False
    return api == "messages" if api is not None else provider.lower() in PROVIDERS or "system" in body


def parts(body: JsonObject) -> Iterator[Part]:
    """Yield the blocks of a Messages body in the order in which the cache sees them.

    Raises `MalformedRow` for a shape that no Messages request has.
    """
    yield from head_parts(body)
    for index, message in enumerate(messages(body)):
        yield from message_parts(message, index)


def head_parts(body: JsonObject) -> Iterator[Part]:
    """Yield tools, then system.

    Deferred tools are left out: they are not in the prefix. Raises `MalformedRow` for a shape that no Messages request
    has.
    """
    late: list[Part] = []
    for index, tool in enumerate(list_at(body, "tools")):
        if not isinstance(tool, dict):
            raise MalformedRow(f"tools[{index}] is {described(tool)}, a tool definition is an object")
        if tool.get("defer_loading") is True:
            continue
        name = tool.get("type")
        if isinstance(name, str) and name.startswith(SYSTEM_LEVEL_TOOLS):
            late.append(Part(f"/tools/{index}", Level.SYSTEM, "", tool))
        else:
            yield Part(f"/tools/{index}", Level.TOOLS, "", tool)
    yield from late
    yield from _contents(body.get("system"), "/system", Level.SYSTEM, "")


def messages(body: JsonObject) -> list[Any]:
    """The messages of a body. Raises `MalformedRow` where they are no list."""
    return list_at(body, "messages")


def message_parts(message: Any, index: int) -> Iterator[Part]:
    """Yield the blocks of message `index`. Raises `MalformedRow` for a shape that no message has."""
    if not isinstance(message, dict):
        raise MalformedRow(f"messages[{index}] is {described(message)}, a message is an object")
    role = message.get("role")
    role = role if isinstance(role, str) else ""
    content = message.get("content")
    if isinstance(content, list):
        for number, item in enumerate(content):
            yield Part(_message_path(index, number), Level.MESSAGES, role, _block(item, index, number))
    else:
        yield from _contents(content, f"/messages/{index}/content", Level.MESSAGES, role)


def _block(item: Any, message: int, number: int) -> JsonObject:
    if isinstance(item, dict):
        return item
    if isinstance(item, str):
        return {"type": "text", "text": item}
    raise MalformedRow(f"messages[{message}].content[{number}] is {described(item)}, a content block is an object")


def _contents(content: Any, path: str, level: Level, role: str) -> Iterator[Part]:
    if content is None:
        return
    if isinstance(content, str):
        yield Part(path, level, role, {"type": "text", "text": content})
    elif isinstance(content, list):
        for number, item in enumerate(content):
            if isinstance(item, str):
                item = {"type": "text", "text": item}
            if not isinstance(item, dict):
                raise MalformedRow(f"{path[1:]}[{number}] is {described(item)}, a content block is an object")
            yield Part(f"{path}/{number}", level, role, item)
    else:
        raise MalformedRow(f"{path[1:]} is {described(content)}, content is a text or a list of blocks")


def mark_of(value: Any) -> Ttl | None:
    """The lifetime that a `cache_control` value asks for; a bare marker means five minutes."""
    if not isinstance(value, dict):
        return None
    return "1h" if value.get("ttl") == "1h" else "5m"


def strip_marks(value: JsonObject) -> tuple[JsonObject, Ttl | None]:
    """A block without its cache markers, and the lifetime of the marker it carried.

    A marker on the last inner block of a tool result or document counts for the outer block (since 2025-05-01).
    """
    mark = mark_of(value.get("cache_control"))
    clean = {key: item for key, item in value.items() if key != "cache_control"}
    for owner, key in ((clean, "content"), (clean.get("source"), "content")):
        if isinstance(owner, dict) and isinstance(owner.get(key), list):
            inner = owner[key]
            if inner and isinstance(inner[-1], dict):
                mark = mark or mark_of(inner[-1].get("cache_control"))
            bare = [_without_mark(item) for item in inner]
            if owner is clean:
                clean = {**clean, key: bare}
            else:
                clean = {**clean, "source": {**owner, key: bare}}
    return clean, mark


def _without_mark(item: Any) -> Any:
    if isinstance(item, dict) and "cache_control" in item:
        return {key: value for key, value in item.items() if key != "cache_control"}
    return item


def parameters(body: JsonObject) -> dict[str, Any]:
    """Parameters that may enter the cache's key, by rule name; an explicit default counts as absent."""
    choice, output = body.get("tool_choice"), body.get("output_config")
    output = output if isinstance(output, dict) else {}
    found: dict[str, Any] = {
        "thinking": _unless(body.get("thinking"), {"type": "disabled"}),
        "speed": _unless(body.get("speed"), "standard"),
        "effort": _unless(output.get("effort"), "high"),
        "output_format": output.get("format", body.get("output_format")),
        "context_management": body.get("context_management"),
    }
    if isinstance(choice, dict):
        rest = {key: value for key, value in choice.items() if key != "disable_parallel_tool_use"}
        found["tool_choice"] = _unless(rest, {"type": "auto"})
        found["disable_parallel_tool_use"] = choice.get("disable_parallel_tool_use") or None
    return {name: value for name, value in found.items() if value is not None}


# Where each parameter stands in the body, as a JSON pointer, for findings to point at.
PARAMETER_PATHS = {
    "model": "/model",
    "tool_choice": "/tool_choice",
    "disable_parallel_tool_use": "/tool_choice/disable_parallel_tool_use",
    "thinking": "/thinking",
    "speed": "/speed",
    "effort": "/output_config/effort",
    "output_format": "/output_config/format",
    "context_management": "/context_management",
}


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value
