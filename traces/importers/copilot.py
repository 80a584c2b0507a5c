"""GitHub Copilot CLI: `~/.copilot/session-state/*/events.jsonl`. It records the output tokens of each request only, so
its cache cannot be audited: input, reads and writes are unknown, never 0.

`session.shutdown` has totals by model; they are of the whole session and are added to no call.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from traces.importers.fields import moment, obj, text
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject, objects
from traces.schema import Call, Usage
from traces.wire.usage import count

NAME = "copilot"
_STARTS = ("assistant.turn_start", "user.message", "tool.execution_complete")


def sniff(head: bytes) -> bool:
    """Events with dotted types and data, of a session that Copilot started or that asked it."""
    for row in objects(head):
        if isinstance(row.get("data"), dict) and {"type", "timestamp"} <= row.keys():
            data = row["data"]
            if "copilotVersion" in data or (row["type"] == "assistant.message" and "outputTokens" in data):
                return True
    return False


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call an assistant message."""
    return calls(json_lines(path, on_reject), partial(_calls, _Session(path.stem)), on_reject)


@dataclass(slots=True)
class _Session:
    """The session, and when the request of the next message can have been sent at the earliest."""

    stem: str
    trace: str = ""
    model: str | None = None
    ready: datetime | None = None


def _calls(session: _Session, item: Item) -> Iterator[Call]:
    row, data, kind = item.row, obj(item.row, "data"), item.row.get("type")
    time = moment(row.get("timestamp"), "timestamp")
    if kind == "session.start":
        session.trace = text(data, "sessionId") or session.stem
        session.model = text(data, "selectedModel")
    elif kind == "session.model_change":
        session.model = text(data, "newModel")
    elif kind in _STARTS:
        session.ready = time
    elif kind == "assistant.message":
        agent = text(data, "parentToolCallId")
        yield Call(
            id=text(data, "apiCallId") or text(data, "messageId") or f"{session.stem}:{item.place.line}",
            trace=session.trace or session.stem,
            provider="copilot",
            started_at=session.ready if session.ready and (time is None or session.ready <= time) else time,
            seq=item.place.line,
            agent=agent or "main",
            kind="subagent" if agent else "main",
            model=text(data, "model") or session.model,
            ended_at=time,
            usage=Usage(output_tokens=count(data.get("outputTokens"), "data.outputTokens")),
            facts={"client": NAME, "times": "rows"},
            place=item.place,
        )
