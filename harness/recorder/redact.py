"""`--redact bodies`: a body in which each content block is lengths and keyed digests of its lines, and nothing else.

A block keeps its type, its role, its cache marker and its place, and gets a text of the block's own length made of
digests. Equal blocks stay equal, different ones different and edited ones similar, so verdict and cause come out as
they would have. Lost are: what a block said, which words changed, and whether only its serialisation changed.
"""

from typing import Any

import orjson

from harness.recorder.assemble import Reply, of_json, of_stream
from harness.recorder.secrets import Masker
from harness.recorder.sse import events
from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import JsonObject

# Parameters that may enter the cache's key, and what tells which API and lifetime was asked for. They hold no content.
_KEPT = frozenset((
    *("model", "max_tokens", "max_completion_tokens", "max_output_tokens", "stream", "stream_options", "store"),
    *("temperature", "top_p", "top_k", "service_tier", "speed", "cache_control", "prompt_cache_retention"),
    *("prompt_cache_options", "reasoning_effort", "parallel_tool_calls", "n"),
))  # fmt: skip
_DIGESTED = frozenset((
    *("tool_choice", "thinking", "output_config", "output_format", "context_management", "reasoning"),
    *("response_format", "text", "prompt_cache_key"),
))  # fmt: skip
_LISTS = ("tools", "system", "instructions")
_MESSAGES = ("messages", "input", "contents")
_REPLY_KEPT = ("id", "type", "object", "role", "model", "status", "stop_reason", "usage", "diagnostics", "created")
_MESSAGE_KEPT = ("type", "role", "content", "cache_control", "id")
PIECE = 256
"""Bytes of a text that share one digest at most."""

_WORDS = " the of and"


def redacted_request(body: bytes, masker: Masker) -> bytes:
    """The body with digests in place of content; empty for one that is no JSON object."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return b""
    if not isinstance(value, dict):
        return b""
    kept: JsonObject = {}
    for key, member in value.items():
        if key in _LISTS:
            kept[key] = _blocks(member, masker)
        elif key in _MESSAGES:
            kept[key] = [_message(one, masker) for one in member] if isinstance(member, list) else _text(member, masker)
        elif key in _KEPT:
            kept[key] = member
        elif key in _DIGESTED:
            kept[key] = _parameter(member, masker)
    return orjson.dumps(kept)


def redacted_reply(body: bytes, stream: bool, api: str | None, masker: Masker) -> bytes:
    """The final message's identity, usage and reason to stop, with the size of its content."""
    reply: Reply = of_stream(events(body), api) if stream else of_json(body)
    message = reply.message or {}
    kept = {key: message[key] for key in _REPLY_KEPT if key in message}
    error = message.get("error")
    if isinstance(error, dict):
        kept["error"] = {"type": error.get("type")}
    facts = {"bytes": len(body), "digest": masker.digest(body), "finished": reply.finished, "error": reply.error}
    kept["redacted"] = {**facts, "seen": reply.seen}
    return orjson.dumps(kept)


def _message(message: Any, masker: Masker) -> Any:
    if not isinstance(message, dict):
        return _text(message, masker)
    if "content" not in message:
        return _block(message, masker)
    kept: JsonObject = {key: message[key] for key in ("type", "role") if isinstance(message.get(key), str)}
    kept["content"] = _blocks(message["content"], masker)
    if "cache_control" in message:
        kept["cache_control"] = message["cache_control"]
    rest = {key: value for key, value in message.items() if key not in _MESSAGE_KEPT}
    if rest:
        kept["rest"] = _text(rest, masker)
    return kept


def _blocks(value: Any, masker: Masker) -> Any:
    if isinstance(value, list):
        return [_block(one, masker) for one in value]
    return None if value is None else _text(value, masker)


def _block(block: Any, masker: Masker) -> Any:
    if not isinstance(block, dict):
        return _text(block, masker)
    kept: JsonObject = {}
    if isinstance(block.get("type"), str):
        kept["type"] = block["type"]
    if block.get("defer_loading") is True:
        kept["defer_loading"] = True
    if isinstance(block.get("name"), str):
        kept["name"] = f"name-{masker.digest(block['name'].encode(errors='replace'))[:8]}"
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    empty = block.get("type") == "text" and block.get("text") == ""
    kept["text"] = "" if empty else _text(bare, masker)
    if "cache_control" in block:
        kept["cache_control"] = block["cache_control"]
    return kept


def _parameter(value: Any, masker: Masker) -> Any:
    """A parameter by its digest; words that name a mode stay, since rules speak of them."""
    if isinstance(value, dict):
        return {key: one if key in ("type", "effort") else _parameter(one, masker) for key, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else _text(value, masker)


def _text(value: Any, masker: Masker) -> str:
    """A text as long as the JSON text of `value`: for each of its lines, or 256 bytes of one, digits and filling.

    An edit then stays one: most of the text is as before, and an audit sees the same block changed, not another one.
    """
    try:
        raw = dump(value)
    except MalformedRow:
        raw = repr(value).encode(errors="replace")
    lines = (line[at : at + PIECE] for line in raw.split(b"\\n") for at in range(0, len(line) or 1, PIECE))
    return "".join(_piece(line, masker) for line in lines)


def _piece(raw: bytes, masker: Masker) -> str:
    return (masker.digest(raw)[:16] + _WORDS * (len(raw) // len(_WORDS) + 1))[: max(8, len(raw))]
