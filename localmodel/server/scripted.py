"""A model without weights that answers from a script: the same request always gets the same answer.

A script is a TOML or JSON file: an optional `context_window`, and a list `reply` of objects with

    match       regular expression, searched in the last user text; left out: matches always
    text        answer text
    tools       list of {name, input}: tool calls after the text
    delay_ms    silence in front of the answer (a long prefill)
    piece_ms    silence between its pieces

The first reply that matches answers. Without one (or without a script): a tool that the request forces is called with
the smallest arguments its schema allows; a demanded JSON format gets the smallest value of its schema; after a tool
result comes a sentence; a last user text with `call NAME with {JSON}` calls that tool if it is offered; everything
else is echoed, shortened. Physical reuse of the prompt equals what the rules allow.
"""

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localmodel.server import pieces
from localmodel.server.blocks import text_of
from localmodel.server.errors import BadSettings
from localmodel.server.minimal import minimal
from localmodel.server.model import (
    Claimed,
    Event,
    Finished,
    Generation,
    Started,
    StopReason,
    TextPiece,
    ToolPiece,
    ToolStart,
    call_id,
)
from traces.canonical import dump
from traces.schema import JsonObject, Level
from traces.wire.anthropic import Part

WINDOW = 200_000
_CALL = re.compile(r"\bcall\s+([\w.-]+)\s+with\s+(\{.*)", re.DOTALL)
_ECHO_WORDS = 12
_PIECE_CHARS = 16


class Call(BaseModel):
    """One tool call of a scripted reply."""

    model_config = ConfigDict(extra="forbid")
    name: str
    input: JsonObject = Field(default_factory=dict)


class Reply(BaseModel):
    """One scripted reply."""

    model_config = ConfigDict(extra="forbid")
    match: re.Pattern[str] | None = None
    text: str = ""
    tools: list[Call] = Field(default_factory=list)
    delay_ms: int = Field(default=0, ge=0, le=600_000)
    piece_ms: int = Field(default=0, ge=0, le=60_000)


class Script(BaseModel):
    """All replies, tried in order."""

    model_config = ConfigDict(extra="forbid")
    context_window: int = Field(default=WINDOW, ge=1)
    reply: list[Reply] = Field(default_factory=list)


def read_script(path: Path) -> Script:
    """The script in a `.toml` or `.json` file. Raises `BadSettings`, one line: file, fact."""
    try:
        raw = path.read_bytes()
        document = orjson.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        return Script.model_validate(document)
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the whole"
        raise BadSettings(f"{path}: {place}: {first['msg']}") from None
    except ValueError as error:
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise BadSettings(f"{path}: not {form}: {error}") from None


class ScriptedBackend:
    """The scripted model; see the module for how it answers."""

    name = about = "scripted"
    identity: Mapping[str, str] = {"model": "scripted", "tokenizer": pieces.IDENTITY}

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or Script()
        self.context_window = self._script.context_window

    def block(self, part: Part) -> list[int]:
        """See `localmodel.server.pieces`."""
        return pieces.tokenise(text_of(part))

    def opening(self, *, bare: bool) -> list[int]:
        """Nothing."""
        return []

    def asking(self) -> list[int]:
        """Nothing."""
        return []

    async def check(self, request: Generation) -> None:
        """A script answers anything."""

    def pages(self) -> Mapping[str, int]:
        """There is no memory of KV."""
        return {}

    def close(self) -> None:
        """There is nothing to give back."""

    async def generate(
        self, request: Generation, prompt: Sequence[int], reuse_tokens: int
    ) -> AsyncGenerator[Event, None]:
        """Answer at once, or with the pauses that the script asks for."""
        reply = self._reply(request)
        yield Claimed(reuse_tokens)
        await asyncio.sleep(reply.delay_ms / 1000)
        yield Started()
        for event in _events(reply, request):
            if reply.piece_ms:
                await asyncio.sleep(reply.piece_ms / 1000)
            yield event

    def _reply(self, request: Generation) -> Reply:
        asked = last_user_text(request.body)
        for reply in self._script.reply:
            if reply.match is None or reply.match.search(asked):
                return reply
        return _default(request, asked)


def _default(request: Generation, asked: str) -> Reply:
    if isinstance(request.choice, tuple):
        return _forced(request, request.choice[1])
    if request.choice == "any" and request.tools:
        return _forced(request, next(iter(request.tools)))
    if request.format is not None:
        return Reply(text=dump(minimal(request.format)).decode())
    if ends_in_tool_result(request.body):
        return Reply(text="The tool has answered, and that is all.")
    if request.choice != "none" and (call := _asked_call(asked)) and call.name in request.tools:
        return Reply(text=f"Calling {call.name}.", tools=[call])
    words = asked.split()
    more = " …" if len(words) > _ECHO_WORDS else ""
    return Reply(text=f"You said: {' '.join(words[:_ECHO_WORDS])}{more}" if words else "You said nothing.")


def _forced(request: Generation, name: str) -> Reply:
    found = minimal(request.tools.get(name, {}).get("input_schema"))
    return Reply(tools=[Call(name=name, input=found if isinstance(found, dict) else {})])


def _asked_call(asked: str) -> Call | None:
    found = _CALL.search(asked)
    if found is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(found[2])  # the text may go on behind the object
    except (ValueError, RecursionError):
        return None
    return Call(name=found[1], input=value)


def _events(reply: Reply, request: Generation) -> Iterator[Event]:
    """The pieces of a reply, cut at the first stop sequence and at `max_tokens`.

    An answer counts what it will take in the next prompt, its frame included: what a model reads and writes is one row.
    """
    text, reason, stop = _stopped(reply.text, request.stop)
    left = request.max_tokens
    tokens = pieces.tokenise(text)
    if len(tokens) > left:
        text, reason, stop = pieces.detokenise(tokens[:left]), "max_tokens", None
    used = min(_size({"type": "text", "text": text}), left) if text else 0
    for start in range(0, len(text), _PIECE_CHARS):
        yield TextPiece(text[start : start + _PIECE_CHARS])
    for number, call in enumerate(reply.tools if reason == "end_turn" else []):
        raw = dump(call.input).decode(errors="replace")
        cost = _size({"type": "tool_use", "name": call.name, "input": call.input})
        if used + cost > left:
            reason = "max_tokens"
            break
        used += cost
        yield ToolStart(call_id(request.seed, number), call.name)
        for start in range(0, len(raw), _PIECE_CHARS):
            yield ToolPiece(raw[start : start + _PIECE_CHARS])
    if reason == "end_turn" and reply.tools:
        reason = "tool_use"
    yield Finished("max_tokens" if left == 0 else reason, used, stop)


def _size(block: JsonObject) -> int:
    """Tokens of a block of an answer."""
    return len(pieces.tokenise(text_of(Part("", Level.MESSAGES, "assistant", block))))


def _stopped(text: str, stop: tuple[str, ...]) -> tuple[str, StopReason, str | None]:
    found = [(text.find(one), one) for one in stop if one and one in text]
    if not found:
        return text, "end_turn", None
    place, one = min(found)
    return text[:place], "stop_sequence", one


def last_user_text(body: JsonObject) -> str:
    """All text of the last user message that has text."""
    for message in reversed(_messages(body)):
        if message.get("role") == "user" and (text := _text(message.get("content"))):
            return text
    return ""


def ends_in_tool_result(body: JsonObject) -> bool:
    """Whether the last thing the user sent is a tool's result."""
    last = next((one for one in reversed(_messages(body)) if one.get("role") == "user"), {})
    content = last.get("content")
    block = content[-1] if isinstance(content, list) and content else None
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _messages(body: JsonObject) -> list[JsonObject]:
    return [message for message in body.get("messages") or [] if isinstance(message, dict)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))
