"""Gemini CLI chats: `~/.gemini/tmp/*/chats/session-*.json`, one document rewritten in place; newer builds, JSON Lines.

`tokens.input` is the whole prompt. A message's `timestamp` is when it was complete; the start of its request is not
told, and is taken as the later of the previous message and the last tool result before it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from traces.importers.documents import shapes
from traces.importers.fields import inclusive, items, moment, obj, text
from traces.importers.reading import Item, calls, json_lines, json_parts
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Kind, Usage

NAME = "gemini_cli"
_MESSAGES = "messages"
_SESSION = frozenset(("sessionId", "projectHash", "startTime"))


def sniff(head: bytes) -> bool:
    """A document (or first line) with a session and the hash of its project."""
    return any(shape >= _SESSION for shape in shapes(head)[:2])


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a `gemini` message with tokens; rounds of tools are messages of their own."""
    with path.open("rb") as file:
        lines = _MESSAGES not in shapes(file.read(2**16))[0]
    rows = _latest(json_lines(path, on_reject)) if lines else json_parts(path, on_reject, _MESSAGES)
    return calls(rows, partial(_calls, _Chat(path.stem)), on_reject)


def _latest(rows: Iterable[Item]) -> Iterator[Item]:
    """Rows, of several with one id that follow each other the last: a message is written anew when its tokens are known
    and when its tools have answered."""
    held: Item | None = None
    for item in rows:
        name = item.value.get("id") if isinstance(item.value, dict) else None
        if name is None:
            yield item
            continue
        if held is not None and held.value["id"] != name:
            yield held
        held = item
    if held is not None:
        yield held


@dataclass(slots=True)
class _Chat:
    """The session, and when the latest of the messages and tool results so far was there."""

    stem: str
    trace: str = ""
    kind: Kind = "main"
    latest: datetime | None = None

    def saw(self, moment: datetime | None) -> None:
        """Move the clock on."""
        if moment is not None and (self.latest is None or moment > self.latest):
            self.latest = moment


def _calls(chat: _Chat, item: Item) -> Iterator[Call]:
    if item.path == "sessionId":
        chat.trace = text({"id": item.value}, "id") or chat.stem
    if (item.path and item.path != _MESSAGES) or not isinstance(item.value, dict):
        return
    row = item.row
    if row.keys() >= _SESSION:
        chat.trace = text(row, "sessionId") or chat.stem
        chat.kind = "subagent" if text(row, "kind") == "subagent" else "main"
        return
    ended = moment(row.get("timestamp"), "timestamp")
    if row.get("type") == "gemini":
        yield _call(chat, item, row, ended)
    chat.saw(ended)
    for call in items(row, "toolCalls"):
        if isinstance(call, dict):
            chat.saw(moment(call.get("timestamp"), "toolCalls.timestamp"))


def _call(chat: _Chat, item: Item, row: JsonObject, ended: datetime | None) -> Call:
    number = item.index + 1 if item.path else item.place.line
    started = chat.latest if chat.latest and (ended is None or chat.latest <= ended) else ended
    return Call(
        id=text(row, "id") or f"{chat.stem}:{number}",
        trace=chat.trace or chat.stem,
        provider="gemini",
        started_at=started,
        seq=number,
        kind=chat.kind,
        api="generate_content",
        model=text(row, "model"),
        ended_at=ended,
        usage=_usage(obj(row, "tokens")),
        facts={"client": NAME, "times": "rows"},
        place=item.place,
    )


def _usage(tokens: JsonObject) -> Usage:
    """Thinking is counted beside the output."""
    parts = [tokens.get(name) for name in ("output", "thoughts")]
    whole = [part for part in parts if type(part) is int]
    raw = tokens | {"output": sum(whole) if len(whole) == sum(part is not None for part in parts) and whole else None}
    return inclusive(raw, whole="input", read="cached", output="output")
