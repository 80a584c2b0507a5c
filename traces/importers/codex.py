"""Codex rollouts: `$CODEX_HOME/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl`, rows of `{timestamp, type, payload}`.

Usage of one request stands in a `token_usage_record` (newer builds) or in the `last_token_usage` of a `token_count`
event, beside totals that run on over the whole thread, resumes included. An event whose totals did not move repeats an
earlier one. Input counts are whole. The model stands in `turn_context` only.

Rollouts give requests no ids before the record. A fork copies its parent's rows, so a request is identified by the
thread where its history began and by the totals that it left: the same in the parent and in each copy.
"""

from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from traces import times
from traces.errors import MalformedRow
from traces.facts import CLIENT, COMPACT, EFFORT, INTERRUPT
from traces.importers.transcripts import REFUSALS, facts_of, loaded, named, wrong
from traces.lines import BUFFER, OnReject, Rejected, objects, spans_of
from traces.schema import Call, Place, Usage
from traces.wire.usage import MAX_COUNT, checked

NAME = "codex"

_ROW_TYPES = frozenset(
    ("session_meta", "turn_context", "response_item", "event_msg", "compacted", "token_usage_record", "world_state")
)
# Items that the model made; all others of a conversation went to it.
_MADE = frozenset(("reasoning", "function_call", "custom_tool_call", "web_search_call", "local_shell_call"))
_SENT = frozenset(("function_call_output", "custom_tool_call_output"))
_EVENTS = {"context_compacted": COMPACT, "turn_aborted": INTERRUPT, "thread_rolled_back": "rolled_back"}
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class Tokens(Struct, frozen=True, gc=False):
    """A usage; cached and written tokens are parts of the input, reasoning is a part of the output."""

    input_tokens: _Count = 0
    cached_input_tokens: _Count | None = None
    cache_write_input_tokens: _Count | None = None
    output_tokens: _Count = 0


class Info(Struct, gc=False):
    """`info` of a token_count event; null in events that only tell of rate limits."""

    total_token_usage: Tokens | None = None
    last_token_usage: Tokens | None = None


class Payload(Struct, gc=False):
    """The fields that matter of all kinds of rows."""

    type: str | None = None
    role: str | None = None
    id: str | None = None
    forked_from_id: str | None = None
    cwd: str | None = None
    cli_version: str | None = None
    model_provider: str | None = None
    source: Any = None
    model: str | None = None
    effort: str | None = None
    info: Info | None = None
    response_id: str | None = None
    usage: Tokens | None = None
    thread_token_usage: Tokens | None = None


class Row(Struct, gc=False):
    """One line of a rollout."""

    timestamp: str | None = None
    type: str | None = None
    payload: Payload | None = None


_decode = msgspec.json.Decoder(Row).decode


def sniff(head: bytes) -> bool:
    """Whether rows of a rollout stand in the head of a file."""
    if head.startswith(b'{"timestamp":') and b'"type":"session_meta"' in head[:200]:
        return True  # also where the first row, which holds the system prompt, is longer than the head
    return any(
        isinstance(row.get("type"), str) and row["type"] in _ROW_TYPES and isinstance(row.get("payload"), dict)
        for row in objects(head)
    )


def read(path: Path, *, on_reject: OnReject | None) -> Iterator[Call]:
    """Calls of one rollout in its order."""
    rollout = _Rollout(path, on_reject)
    with path.open("rb", BUFFER) as file:
        for number, offset, length, line in spans_of(file):
            place = Place(rollout.name, number, offset, length)
            if line is None:
                rollout.reject(place, "row of more than 64 MiB, not read")
                continue
            row = rollout.row_of(line, place)
            try:
                call = None if row is None or row.payload is None else rollout.take(row, row.payload, place)
            except MalformedRow as error:
                rollout.reject(place, f"{error}")
                continue
            if call is not None:
                yield call


class _Rollout:
    """One file while it is read."""

    def __init__(self, path: Path, on_reject: OnReject | None) -> None:
        self.name, self.stem = f"{path}", path.stem
        self._on_reject = on_reject
        self._session: str | None = None
        self._origin: str | None = None
        self._parent: str | None = None
        self._agent = "main"
        self._provider = "openai"
        self._version: str | None = None
        self._cwd: str | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._total: Tokens | None = None
        self._recorded: Tokens | None = None
        self._previous: str | None = None
        self._since: list[str] = []
        self._sent: str | None = None
        self._began: str | None = None
        self._made: str | None = None

    def reject(self, place: Place, reason: str, *, pending: bool = False, kept: bool = False) -> None:
        """Say that a row gave nothing, or what was left out of it."""
        if self._on_reject is not None:
            self._on_reject(Rejected(place, reason, pending, kept))

    def row_of(self, line: bytes, place: Place) -> Row | None:
        """The row in a line, `None` with a word where it is none and should be."""
        try:
            return _decode(line)
        except REFUSALS as error:
            if not line.strip():
                return None
            reason = wrong(error)
        value, refused = loaded(line, place)
        if refused is not None:
            self.reject(place, refused.reason, pending=refused.pending)
            return None
        try:
            return msgspec.convert(value, Row)  # text that only the standard library reads
        except (msgspec.ValidationError, UnicodeEncodeError):
            if not isinstance(value, dict) or b"token" in line:
                self.reject(place, reason)
            return None

    def take(self, row: Row, payload: Payload, place: Place) -> Call | None:
        """Take in a row; gives the call that it tells of."""
        if row.type == "token_usage_record":
            return self._record(row, payload, place)
        if row.type == "event_msg" and payload.type == "token_count":
            return self._count(row, payload.info, place) if payload.info is not None else None
        if row.type == "session_meta":
            self._meta(payload)
        elif row.type == "turn_context":
            self._context(payload)
        elif row.type == "compacted" or payload.type in _EVENTS:
            self._note(COMPACT if row.type == "compacted" else _EVENTS[payload.type or ""])
        elif row.type == "response_item":
            self._item(row, payload)
        return None

    def _meta(self, payload: Payload) -> None:
        """A session's start, its resumption, or (behind the own one) that of the thread it was forked from."""
        if self._session is None:
            self._session = named(payload.id)
            self._parent = _parent_of(payload.source)
            self._agent = "main" if self._parent is None else (payload.id or "subagent")
            self._provider = payload.model_provider or self._provider
            self._origin = named(payload.forked_from_id) or named(payload.id)
        else:
            self._origin = named(payload.id) or self._origin
        if payload.cli_version and self._version and payload.cli_version != self._version:
            self._note(f"{CLIENT} {self._version} → {payload.cli_version}")
        self._version = payload.cli_version or self._version
        self._cwd = payload.cwd or self._cwd

    def _context(self, payload: Payload) -> None:
        self._model = payload.model or self._model
        if payload.effort and self._effort and payload.effort != self._effort:
            self._note(f"{EFFORT} {self._effort} → {payload.effort}")
        self._effort = payload.effort or self._effort

    def _item(self, row: Row, payload: Payload) -> None:
        if payload.type in _SENT or (payload.type == "message" and payload.role != "assistant"):
            self._sent = row.timestamp
        elif payload.type in _MADE or payload.type == "message":
            self._began = self._began or self._sent or row.timestamp
            self._made = row.timestamp

    def _record(self, row: Row, payload: Payload, place: Place) -> Call | None:
        if payload.usage is None:
            self.reject(place, "token_usage_record without usage")
            return None
        self._recorded, total = payload.usage, payload.thread_token_usage
        self._total = total or self._total
        name = named(payload.response_id) or (f"{self.stem}:{place.line}" if total is None else self._name(total))
        return self._call(row, payload.usage, name, place)

    def _count(self, row: Row, info: Info, place: Place) -> Call | None:
        total, last, before = info.total_token_usage, info.last_token_usage, self._total
        if total is None or total == before or (last is not None and last == self._recorded):
            self._recorded = None
            self._total = total or before
            return None
        self._total, self._recorded = total, None
        if last is None:
            last = _difference(total, before)
        elif before is not None and total.input_tokens - before.input_tokens > last.input_tokens:
            more = total.input_tokens - before.input_tokens - last.input_tokens
            self.reject(place, f"totals grew by {more:,} input tokens of requests that are not in the file", kept=True)
        return self._call(row, last, self._name(total), place)

    def _name(self, total: Tokens) -> str:
        """What identifies a request in all copies of its thread."""
        counts = f"{total.input_tokens}-{total.cached_input_tokens or 0}-{total.output_tokens}"
        return f"{self._origin or self.stem}:{counts}"

    def _call(self, row: Row, tokens: Tokens, name: str, place: Place) -> Call:
        started, ended = self._began or self._sent or row.timestamp, self._made or row.timestamp
        call = Call(
            id=name,
            trace=intern(self._parent or self._session or self.stem),
            provider=intern(self._provider),
            started_at=times.known(started),
            seq=place.line,
            agent=intern(self._agent),
            kind="main" if self._parent is None else "subagent",
            api="responses",
            model=None if self._model is None else intern(self._model),
            ended_at=times.known(ended),
            usage=_usage(tokens),
            facts=facts_of(NAME, self._version, self._cwd, self._previous, self._since),
            place=place,
        )
        self._previous, self._since, self._began, self._made = name, [], None, None
        return call

    def _note(self, word: str) -> None:
        if word not in self._since:
            self._since.append(word)


def _parent_of(source: object) -> str | None:
    """The thread that a sub-agent's session belongs to, `None` for a session of its own."""
    spawned = source.get("subagent") if isinstance(source, dict) else None
    while isinstance(spawned, dict):
        parent = spawned.get("parent_thread_id")
        if isinstance(parent, str):
            return named(parent)
        spawned = spawned.get("thread_spawn")
    return None


def _difference(total: Tokens, before: Tokens | None) -> Tokens:
    """What one request added to the totals. Raises `MalformedRow` where they began anew."""
    if before is None:
        return total
    if total.input_tokens < before.input_tokens or total.output_tokens < before.output_tokens:
        raise MalformedRow("totals shrank, and the event does not tell its own request's tokens")

    def grown(now: int | None, then: int | None) -> int | None:
        return None if now is None else max(0, now - (then or 0))

    return Tokens(
        grown(total.input_tokens, before.input_tokens) or 0,
        grown(total.cached_input_tokens, before.cached_input_tokens),
        grown(total.cache_write_input_tokens, before.cache_write_input_tokens),
        grown(total.output_tokens, before.output_tokens) or 0,
    )


def _usage(tokens: Tokens) -> Usage:
    read, write = tokens.cached_input_tokens, tokens.cache_write_input_tokens
    return checked(Usage(tokens.input_tokens, read, write, output_tokens=tokens.output_tokens))
