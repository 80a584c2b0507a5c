"""What the two OpenAI dialects share when they are mapped into a Messages body.

Under a ruleset with explicit breakpoints an OpenAI request is treated as automatic caching: one breakpoint on the last
block, with the default lifetime, unless the request marks parts with `prompt_cache_breakpoint` (then those count, and
the automatic one goes only with `prompt_cache_options.mode = "explicit"`). `prompt_cache_key` belongs to the scope:
requests with different keys share nothing.
"""

from collections.abc import Callable
from typing import Any

import orjson

from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

MARKER = {"type": "ephemeral"}
UNPARSED = "_unparsed"
MAX_BREAKPOINTS = 4


def text_block(text: Any) -> JsonObject:
    """A text block; what is no text becomes an empty one."""
    return {"type": "text", "text": text if isinstance(text, str) else ""}


def content_blocks(content: Any, where: str) -> list[JsonObject]:
    """Blocks of a message content: a text, or a list of parts. Raises `BadRequest` for any other shape."""
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content)]
    if not isinstance(content, list):
        raise BadRequest(f"{where}: content is a text or a list of parts", where)
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, where: str) -> JsonObject:
    if isinstance(part, str):
        return text_block(part)
    if not isinstance(part, dict):
        raise BadRequest(f"{where}: a content part is an object", where)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text", "refusal"):
        block = text_block(part.get("text", part.get("refusal")))
    elif kind in ("image_url", "input_image"):
        block = {"type": "image", "source": {"type": "url", "url": _url(part.get("image_url"))}}
    else:
        block = {name: value for name, value in part.items() if name not in ("id", "prompt_cache_breakpoint")}
    return {**block, "cache_control": MARKER} if part.get("prompt_cache_breakpoint") else block


def _url(value: Any) -> Any:
    return value.get("url") if isinstance(value, dict) else value


def arguments(text: Any) -> JsonObject:
    """A tool call's arguments as an object, whatever spacing or escapes the client wrote them with."""
    if isinstance(text, dict):
        return text
    try:
        value = orjson.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, UnicodeEncodeError):
        value = None
    return value if isinstance(value, dict) else ({UNPARSED: text} if text else {})


def tools(listed: Any, convert: Callable[[JsonObject], JsonObject]) -> list[JsonObject]:
    """The tools of a request, each by its dialect's `convert`. Raises `BadRequest` for all but a list of objects."""
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise BadRequest("tools: want a list", "tools")
    for index, each in enumerate(listed):
        if not isinstance(each, dict):
            raise BadRequest(f"tools[{index}]: a tool is an object", f"tools[{index}]")
    return [convert(each) for each in listed]


def tool(name: Any, description: Any, schema: Any, rest: JsonObject) -> JsonObject:
    """A function tool as a Messages tool."""
    return {"name": name, "description": description, "input_schema": schema or {"type": "object"}} | rest


def tool_use(ident: Any, name: Any, inputs: JsonObject) -> JsonObject:
    """A tool call."""
    return {"type": "tool_use", "id": ident, "name": name, "input": inputs}


def tool_result(ident: Any, blocks: list[JsonObject]) -> JsonObject:
    """A tool's result; a breakpoint on one of its parts counts for the result."""
    marks = [block.pop("cache_control", None) for block in blocks]
    made = {"type": "tool_result", "tool_use_id": ident, "content": blocks}
    return {**made, "cache_control": MARKER} if any(marks) else made


def tool_choice(choice: Any, parallel: Any) -> JsonObject | None:
    """`tool_choice` and `parallel_tool_calls` as one Messages `tool_choice`; `None` is the default."""
    made: JsonObject = {"type": "auto"}
    if choice == "required":
        made = {"type": "any"}
    elif choice == "none":
        made = {"type": "none"}
    elif isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        inner = choice.get(choice["type"])
        made = {"type": "tool", "name": (inner if isinstance(inner, dict) else choice).get("name")}
    if parallel is False:
        made["disable_parallel_tool_use"] = True
    return None if made == {"type": "auto"} else made


def finished(body: JsonObject, made: JsonObject, form: Any, effort: Any) -> JsonObject:
    """The mapped body with the parameters both dialects have, and the breakpoint that is placed for the client."""
    made["model"] = body.get("model")
    # In a Messages body "high" is the default and so equals none; in these dialects it does not.
    effort = "openai_high" if effort == "high" else effort
    output = {name: value for name, value in (("effort", effort), ("format", form)) if value is not None}
    if output:
        made["output_config"] = output
    choice = tool_choice(body.get("tool_choice"), body.get("parallel_tool_calls"))
    if choice is not None:
        made["tool_choice"] = choice
    options = body.get("prompt_cache_options")
    explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    if not explicit:
        made["cache_control"] = MARKER
    _latest_marks(made, MAX_BREAKPOINTS - (not explicit))
    return made


def _latest_marks(made: JsonObject, limit: int) -> None:
    """Only the latest explicit breakpoints are written; the dialect does not refuse the others."""
    blocks = [*(made.get("system") or []), *(block for m in made["messages"] for block in m["content"])]
    marked = [block for block in blocks if "cache_control" in block]
    for block in marked[: max(0, len(marked) - limit)]:
        del block["cache_control"]


def json_format(kind: Any, schema: Any) -> JsonObject | None:
    """A demanded JSON output as `output_config.format`."""
    if kind == "json_schema":
        return {"type": "json_schema", "schema": schema if isinstance(schema, dict) else {"type": "object"}}
    return {"type": "json_object", "schema": {"type": "object"}} if kind == "json_object" else None


class Conversation:
    """Collects the system blocks in front and the messages behind them, in the order of the request."""

    def __init__(self) -> None:
        self.system: list[JsonObject] = []
        self.messages: list[JsonObject] = []

    def instruct(self, blocks: list[JsonObject]) -> None:
        """A system or developer message: into the system level while nothing else has come, else in its place."""
        if self.messages:
            self.messages.append({"role": "system", "content": blocks})
        else:
            self.system += blocks

    def say(self, role: str, *blocks: JsonObject) -> None:
        """Blocks of one role; consecutive ones make one message, as the other dialect writes them."""
        if self.messages and self.messages[-1]["role"] == role != "system":
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": list(blocks)})

    def body(self, tools: list[JsonObject]) -> JsonObject:
        """The Messages body so far."""
        made: JsonObject = {"tools": tools} if tools else {}
        if self.system:
            made["system"] = self.system
        return made | {"messages": self.messages}
