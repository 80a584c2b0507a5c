"""HAR 1.2 archives of browsers and proxies: `log.entries[]` with times, request and response.

Streamed replies are often missing or cut in them: such a call keeps its body and has unknown usage.
Source: the HAR 1.2 specification.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from traces import rows
from traces.importers import bodies
from traces.importers.documents import shapes
from traces.importers.endpoints import flat_headers
from traces.importers.exchange import Attempts, Exchange, call_of, object_or_none, readable, status_of
from traces.importers.fields import moment, obj
from traces.importers.reading import Item, calls, json_parts, reject
from traces.lines import OnReject
from traces.schema import Call, JsonObject

NAME = "har"
_ENTRIES = "log.entries"


def sniff(head: bytes) -> bool:
    """A document with a `log` of entries by a creator."""
    return any("log.entries" in shape or {"log.version", "log.creator"} <= shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call an entry that asks a model."""
    return calls(json_parts(path, on_reject, _ENTRIES), partial(_call, path.stem, Attempts(), on_reject), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The request body of an entry."""
    entry = rows.loads(span)
    return _body(obj(entry, "request")) if isinstance(entry, dict) else None


def _call(stem: str, attempts: Attempts, on_reject: OnReject | None, item: Item) -> Iterator[Call]:
    if item.path != _ENTRIES:
        return
    entry, sent, back = item.row, obj(item.row, "request"), obj(item.row, "response")
    started = moment(entry.get("startedDateTime"), "startedDateTime")
    said: list[str] = []
    body = readable(partial(_body, sent), "request", said)
    reply = readable(partial(_reply, back), "response", said)
    found = call_of(
        Exchange(
            place=item.place,
            name=f"{stem}:{item.index + 1}",
            trace=stem,
            method=f"{sent.get('method')}",
            url=f"{sent.get('url')}",
            headers=flat_headers(sent.get("headers")),
            body=body,
            started=started,
            first=_later(started, entry, "blocked", "dns", "connect", "send", "wait"),
            ended=_later(started, entry),
            status=status_of(back.get("status")),
            reply=reply,
            seq=item.index + 1,
        )
    )
    if found is None:
        return
    for trouble in said:
        reject(on_reject, item.place, f"{item.name}{trouble}", kept=True)
    yield attempts.numbered(found)


def _body(sent: JsonObject) -> JsonObject | None:
    """`postData.text`; packed bodies are there as base64 (`encoding`, as for responses)."""
    data = obj(sent, "postData")
    raw = data.get("text")
    if data.get("encoding") == "base64" and isinstance(raw, str):
        raw = bodies.unpacked(bodies.from_base64(raw))
    if isinstance(raw, str):
        return bodies.json_object(raw)
    return object_or_none(raw, "postData.text")


def _reply(back: JsonObject) -> str | None:
    content = obj(back, "content")
    raw = content.get("text")
    if not isinstance(raw, str) or content.get("encoding") != "base64":
        return raw if isinstance(raw, str) else None
    coding = flat_headers(back.get("headers")).get("content-encoding", "")
    return bodies.unpacked(bodies.from_base64(raw), coding)


def _later(started: datetime | None, entry: JsonObject, *phases: str) -> datetime | None:
    """The start plus the whole `time`, or plus the phases until the first byte; -1 marks a phase that was not there."""
    timings = obj(entry, "timings") if phases else entry
    values = [timings.get(name) for name in phases or ("time",)]
    known = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1e9]
    waited = not phases or timings.get("wait") in known
    if started is None or not known or not waited:
        return None
    return started + timedelta(milliseconds=sum(known))
