"""A streamed reply as the final message with its usage: server-sent events of all dialects, also cut or in one piece.

Later usage overwrites earlier usage field by field and is never added. A stream without usage has none: unknown.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from traces.schema import JsonObject
from traces.wire.usage import merge_stream

_BREAK = re.compile(r"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(r"\r\n|\n|\r")
_FINAL = ("response.completed", "response.incomplete", "response.failed", "response.done")


def events(body: str) -> Iterator[JsonObject]:
    """JSON events of a text of server-sent events; comments, pings without data, `[DONE]` and damage are left out."""
    for block in _BREAK.split(body):
        data = "\n".join(line[5:].removeprefix(" ") for line in _LINE.split(block) if line.startswith("data:"))
        if not data or data == "[DONE]":
            continue
        try:
            value = orjson.loads(data)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            continue
        if isinstance(value, dict):
            yield value


def looks_like_events(body: str) -> bool:
    """Whether a text is server-sent events rather than one JSON value."""
    return body.lstrip("\ufeff \r\n").startswith(("event:", "data:", ":", "id:", "retry:"))


def fold(stream: Iterable[JsonObject]) -> JsonObject | None:
    """The final message of a stream, or `None` where it holds none. `error` is there where the stream reported one."""
    seen = list(stream)
    if any(event.get("type") == "message_start" for event in seen):
        return _messages(seen)
    if any(str(event.get("type", "")).startswith("response.") for event in seen):
        return _responses(seen)
    if any("choices" in event or "timings" in event for event in seen):
        return _chat(seen)
    if any("candidates" in event or "usageMetadata" in event for event in seen):
        return _gemini(seen)
    return _error(seen) or None


def _error(seen: list[JsonObject]) -> JsonObject:
    found = next((event["error"] for event in seen if event.get("error") is not None), None)
    return {} if found is None else {"error": found}


def _messages(seen: list[JsonObject]) -> JsonObject:
    """Anthropic Messages: `message_start` holds input and cache counts, `message_delta` the final output."""
    start = next(_dict(event.get("message")) for event in seen if event.get("type") == "message_start")
    message = dict(start)
    blocks: dict[Any, JsonObject] = {}
    deltas: list[JsonObject] = []
    for event in seen:
        kind, index = event.get("type"), str(event.get("index"))
        if kind == "content_block_start":
            blocks[index] = dict(_dict(event.get("content_block")))
        elif kind == "content_block_delta":
            _extend(blocks.setdefault(index, {}), _dict(event.get("delta")))
        elif kind == "message_delta":
            deltas.append(_dict(event.get("usage")))
            message.update({k: v for k, v in _dict(event.get("delta")).items() if v is not None})
    if blocks:
        message["content"] = [_finished(block) for block in blocks.values()]
    usage = merge_stream(_dict(start.get("usage")), deltas)
    if usage:
        message["usage"] = usage
    return message | _error(seen)


def _extend(block: JsonObject, delta: JsonObject) -> None:
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block.setdefault("type", name)
            block[name] = _str(block.get(name)) + delta[name]
    if isinstance(delta.get("partial_json"), str):
        block["partial_json"] = _str(block.get("partial_json")) + delta["partial_json"]


def _finished(block: JsonObject) -> JsonObject:
    """A tool call with its streamed arguments as an object, where they are whole."""
    arguments = block.pop("partial_json", None)
    if arguments:
        try:
            block["input"] = orjson.loads(arguments)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            block["input"] = arguments
    return block


def _responses(seen: list[JsonObject]) -> JsonObject:
    """OpenAI Responses: the last event repeats the whole response; its items, where it leaves them out, come before."""
    final = next((event for event in reversed(seen) if event.get("type") in _FINAL), None)
    latest = final or next((event for event in reversed(seen) if isinstance(event.get("response"), dict)), {})
    response = dict(_dict(latest.get("response")))
    if not response.get("output"):
        output = [
            event["item"] for event in seen if event.get("type") == "response.output_item.done" and "item" in event
        ]
        response |= {"output": output} if output else {}
    return response | _error(seen)


def _chat(seen: list[JsonObject]) -> JsonObject:
    """Chat Completions: usage stands in a last chunk without choices, if it was asked for; llama.cpp adds `timings`."""
    reply: JsonObject = {}
    text = ""
    for chunk in seen:
        reply |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                text += _str(_dict(choice.get("delta")).get("content"))
    if "object" in reply:
        reply["object"] = "chat.completion"
    return reply | {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def _gemini(seen: list[JsonObject]) -> JsonObject:
    """Gemini: each chunk repeats the usage so far."""
    reply: JsonObject = {}
    usage: JsonObject = {}
    for chunk in seen:
        reply |= {name: value for name, value in chunk.items() if value is not None}
        usage |= {name: value for name, value in _dict(chunk.get("usageMetadata")).items() if value is not None}
    return reply | ({"usageMetadata": usage} if usage else {})


def _dict(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
