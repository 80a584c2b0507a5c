"""A Responses body as ordered parts: tools, `instructions` and leading instruction items, then the input items.

Order of the prefix: tools, developer instructions, history (OpenAI's guide "Prompt caching"). Ids and states of items
are not content: clients make new ones for the same item. A request that names an earlier response instead of sending
its history (`previous_response_id`, `conversation`) does not show its prompt.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from traces.errors import MalformedRow
from traces.schema import JsonObject, Level
from traces.wire import openai
from traces.wire.anthropic import Part
from traces.wire.shapes import described, list_at

_NOT_CONTENT = ("id", "status", "internal_chat_message_metadata_passthrough")
_RESULTS = "_call_output"


def shows_prompt(body: JsonObject) -> bool:
    """Whether the whole history is in the body."""
    return body.get("previous_response_id") is None and body.get("conversation") is None


def head_key(body: JsonObject) -> Any:
    """The value that decides the head: equal for bodies with the same tools and leading instructions."""
    return [body.get("tools"), body.get("instructions"), _leading(body)]


def head_parts(body: JsonObject) -> Iterator[Part]:
    """Yield tools, `instructions`, then the instruction items in front of the input."""
    yield from openai.tools(body)
    yield from openai.contents(body.get("instructions"), "/instructions", Level.SYSTEM, "")
    for index, item in enumerate(_leading(body)):
        yield from openai.contents(item.get("content"), f"/input/{index}/content", Level.SYSTEM, "")


def items(body: JsonObject) -> tuple[int, list[Any]]:
    """Number of the first item behind the head, and the items from there on; a text is one item."""
    if isinstance(body.get("input"), str):
        return 0, [body["input"]]
    start = len(_leading(body))
    return start, list_at(body, "input")[start:]


def item_parts(item: Any, index: int) -> Iterator[Part]:
    """Yield the parts of one item: a message's contents, else the item itself."""
    if isinstance(item, str):
        yield Part("/input", Level.MESSAGES, "user", {"type": "text", "text": item})
        return
    if not isinstance(item, dict):
        raise MalformedRow(f"input[{index}] is {described(item)}, an item is an object")
    stem, kind = f"/input/{index}", item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        role = role if isinstance(role, str) else ""
        yield from openai.contents(item.get("content"), f"{stem}/content", Level.MESSAGES, role)
        return
    value = {name: each for name, each in item.items() if name not in _NOT_CONTENT}
    role, value["type"] = _named(kind if isinstance(kind, str) else "")
    yield Part(stem, Level.MESSAGES, role, value)


def _named(kind: str) -> tuple[str, str]:
    """Role and block kind of an item that is no message."""
    if kind.endswith(_RESULTS):
        return "tool", "tool_result"
    if kind.endswith("_call"):
        return "assistant", "tool_use"
    return "assistant", "thinking" if kind == "reasoning" else kind


def parameters(body: JsonObject) -> dict[str, Any]:
    """Parameters that may enter the cache's key, by rule name."""
    text, reasoning = body.get("text"), body.get("reasoning")
    text, reasoning = text if isinstance(text, dict) else {}, reasoning if isinstance(reasoning, dict) else {}
    found = {
        "effort": reasoning.get("effort"),
        "verbosity": text.get("verbosity"),
        "output_format": openai.format_of(text.get("format")),
    }
    return openai.parameters(body) | {name: value for name, value in found.items() if value is not None}


PARAMETER_PATHS = openai.PARAMETER_PATHS | {
    "effort": "/reasoning/effort",
    "verbosity": "/text/verbosity",
    "output_format": "/text/format",
}


def _leading(body: JsonObject) -> list[JsonObject]:
    rows = body.get("input")
    return [] if not isinstance(rows, list) else list(takewhile(_instructs, rows))


def _instructs(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") in openai.INSTRUCTIONS
