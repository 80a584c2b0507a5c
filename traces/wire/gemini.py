"""A Gemini `generateContent` body as ordered parts: cached content it names, tools, system instruction, contents.

A request that names `cachedContent` holds only what comes behind that; the handle stands for all in front of it.
Source: Google's documentation, "Context caching".
"""

from collections.abc import Iterator
from typing import Any

from traces.errors import MalformedRow
from traces.schema import JsonObject, Level
from traces.wire import openai
from traces.wire.anthropic import Part
from traces.wire.shapes import described, list_at

HANDLE = "cached_content"
"""Block kind of a reference to content that was cached by a request of its own."""


def is_request(body: JsonObject) -> bool:
    """Whether `body` is a generateContent request."""
    return isinstance(body.get("contents"), list)


def head_key(body: JsonObject) -> Any:
    """The value that decides the head: equal for bodies with the same handle, tools and instruction."""
    return [body.get("cachedContent"), body.get("tools"), body.get("systemInstruction")]


def head_parts(body: JsonObject) -> Iterator[Part]:
    """Yield the handle, tools, then the system instruction. Raises `MalformedRow`, as the others do."""
    if isinstance(body.get("cachedContent"), str):
        yield Part("/cachedContent", Level.TOOLS, "", {"type": HANDLE, "name": body["cachedContent"]})
    yield from openai.tools(body)
    yield from _parts(body.get("systemInstruction"), "/systemInstruction", Level.SYSTEM, "")


def contents(body: JsonObject) -> tuple[int, list[Any]]:
    """All contents: none of them belongs to the head."""
    return 0, list_at(body, "contents")


def content_parts(content: Any, index: int) -> Iterator[Part]:
    """Yield the parts of one content; the model's role is called "assistant", as elsewhere."""
    if not isinstance(content, dict):
        raise MalformedRow(f"contents[{index}] is {described(content)}, a content is an object")
    role = "assistant" if content.get("role") == "model" else "user"
    yield from _parts(content, f"/contents/{index}", Level.MESSAGES, role)


def _parts(content: Any, path: str, level: Level, role: str) -> Iterator[Part]:
    if not isinstance(content, dict):
        return
    for number, part in enumerate(list_at(content, "parts")):
        if not isinstance(part, dict):
            raise MalformedRow(f"{path[1:]}.parts[{number}] is {described(part)}, a part is an object")
        yield Part(f"{path}/parts/{number}", level, role, {**part, "type": _kind(part)})


def _kind(part: JsonObject) -> str:
    for name, kind in (("functionCall", "tool_use"), ("functionResponse", "tool_result"), ("inlineData", "image")):
        if name in part:
            return kind
    return "thinking" if part.get("thought") is True else "text"


def parameters(body: JsonObject) -> dict[str, Any]:
    """Parameters that may enter the cache's key: none is documented."""
    return {}
