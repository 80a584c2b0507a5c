"""A Chat Completions body as ordered parts: tools, leading instructions, then the messages.

OpenAI, DeepSeek, Qwen, Kimi, xAI, Z.ai, Mistral, OpenRouter and local engines take this shape. Order of the prefix:
tools, system and developer messages in front, history (OpenAI's guide "Prompt caching"). Instructions that come later
stay where they are.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from traces.errors import MalformedRow
from traces.schema import JsonObject, Level
from traces.wire import openai
from traces.wire.anthropic import Part
from traces.wire.shapes import described, list_at


def head_key(body: JsonObject) -> Any:
    """The value that decides the head: equal for bodies with the same tools and leading instructions."""
    return [body.get("tools"), _leading(body)]


def head_parts(body: JsonObject) -> Iterator[Part]:
    """Yield tools, then the instructions in front. Raises `MalformedRow` for shapes that no such request has."""
    yield from openai.tools(body)
    for index, message in enumerate(_leading(body)):
        yield from openai.contents(message.get("content"), f"/messages/{index}/content", Level.SYSTEM, "")


def messages(body: JsonObject) -> tuple[int, list[Any]]:
    """Number of the first message behind the head, and the messages from there on."""
    start = len(_leading(body))
    return start, list_at(body, "messages")[start:]


def message_parts(message: Any, index: int) -> Iterator[Part]:
    """Yield the parts of one message: reasoning, content, tool calls; a tool's result is one part."""
    stem = f"/messages/{index}"
    if not isinstance(message, dict):
        raise MalformedRow(f"messages[{index}] is {described(message)}, a message is an object")
    role = message.get("role")
    role = role if isinstance(role, str) else ""
    if role in ("tool", "function"):
        yield Part(stem, Level.MESSAGES, "tool", {**message, "type": "tool_result"})
        return
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        value = {"type": "thinking", "text": reasoning}
        yield Part(f"{stem}/reasoning_content", Level.MESSAGES, role, value)
    calls, content = message.get("tool_calls"), message.get("content")
    if content or not calls:  # beside calls, null and an empty text are the same
        yield from openai.contents(content, f"{stem}/content", Level.MESSAGES, role)
    for number, call in enumerate(list_at(message, "tool_calls")):
        if not isinstance(call, dict):
            raise MalformedRow(f"messages[{index}].tool_calls[{number}] is {described(call)}, a call is an object")
        yield Part(f"{stem}/tool_calls/{number}", Level.MESSAGES, role, {**call, "type": "tool_use"})


def parameters(body: JsonObject) -> dict[str, Any]:
    """Parameters that may enter the cache's key, by rule name."""
    found = {
        "effort": body.get("reasoning_effort"),
        "verbosity": body.get("verbosity"),
        "output_format": openai.format_of(body.get("response_format")),
        "thinking": body.get("thinking"),
    }
    return openai.parameters(body) | {name: value for name, value in found.items() if value is not None}


PARAMETER_PATHS = openai.PARAMETER_PATHS | {
    "effort": "/reasoning_effort",
    "verbosity": "/verbosity",
    "output_format": "/response_format",
    "thinking": "/thinking",
}


def _leading(body: JsonObject) -> list[JsonObject]:
    rows = list_at(body, "messages")
    return list(takewhile(lambda row: isinstance(row, dict) and row.get("role") in openai.INSTRUCTIONS, rows))
