"""claude-tap: one record a line; with Codex over WebSocket one record holds a whole connection with many responses.

`timestamp` is when the record was written, which is after the reply: the request began `duration_ms` earlier (of a
recorded connection, the first response was created 2 s after timestamp − duration and the last completed 2 s before
timestamp).
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import BytesIO
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from traces import rows
from traces.errors import MalformedRow
from traces.importers import streams
from traces.importers.documents import parts, shapes
from traces.importers.endpoints import flat_headers
from traces.importers.exchange import Attempts, Exchange, call_of, object_or_none, status_of
from traces.importers.fields import items, moment, obj, text
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Place

NAME = "claude_tap"


def sniff(head: bytes) -> bool:
    """Lines with a request that has a method and a path, and with a turn, a transport or a duration."""
    names, ours = {"request.method", "request.path"}, {"turn", "transport", "upstream_base_url", "duration_ms"}
    return any(names <= shape and ours & shape and "schema" not in shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a record, or one for each response of a WebSocket connection."""
    return calls(json_lines(path, on_reject), partial(_calls, path.stem, Attempts(), count(1)), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The request body of a record, or the request event itself where the place is that of an event."""
    row = rows.loads(span)
    if not isinstance(row, dict):
        return None
    return row if row.get("type") == "response.create" else object_or_none(obj(row, "request").get("body"), "body")


def _calls(stem: str, attempts: Attempts, numbers: "count[int]", item: Item) -> Iterator[Call]:
    row = item.row
    sent, back = obj(row, "request"), obj(row, "response")
    if not sent:
        return
    exchange = _exchange(stem, item, sent, back)
    events = items(back, "ws_events")
    if not events:
        body = back.get("body")
        reply = body if isinstance(body, str) else object_or_none(body, "response.body")
        answered = iter([replace(exchange, reply=reply)])
    else:
        answered = _connection(exchange, item, _requests(sent), _replies(events))
    for each in answered:
        call = call_of(replace(each, seq=next(numbers)))
        if call is not None:
            yield attempts.numbered(call)


def _exchange(stem: str, item: Item, sent: JsonObject, back: JsonObject) -> Exchange:
    row = item.row
    ended = moment(row.get("timestamp"), "timestamp")
    span = row.get("duration_ms")
    known = isinstance(span, int | float) and not isinstance(span, bool) and 0 <= span < 1e9
    body = object_or_none(sent.get("body"), "request.body")
    return Exchange(
        place=item.place,
        name=text(row, "request_id") or text(row, "id") or f"{stem}:{item.place.line}",
        trace=stem,
        method="POST" if body and body.get("type") == "response.create" else f"{sent.get('method')}",
        url=f"{text(row, 'upstream_base_url') or ''}{_path(sent, body)}",
        headers=flat_headers(sent.get("headers")),
        body=body,
        started=ended - timedelta(milliseconds=float(span)) if ended and known and span is not None else None,
        ended=ended,
        status=status_of(back.get("status")),
    )


def _path(sent: JsonObject, body: JsonObject | None) -> str:
    """A WebSocket that creates responses asks the Responses API, whatever its path is called (or masked to)."""
    path = text(sent, "path") or ""
    return "/v1/responses" if body and body.get("type") == "response.create" else path


def _creates(event: object) -> bool:
    return isinstance(event, dict) and event.get("type") == "response.create"


def _requests(sent: JsonObject) -> list[JsonObject]:
    """The request events; a record without them has its one request as the body."""
    created = [event for event in items(sent, "ws_events") if _creates(event)]
    body = sent.get("body")
    return created or ([body] if isinstance(body, dict) else [])


def _replies(events: list[Any]) -> list[list[JsonObject]]:
    """Events by response, in the order in which responses were created; those of no response are left out."""
    found: list[list[JsonObject]] = []
    for event in events:
        if not isinstance(event, dict):
            raise MalformedRow("response.ws_events: want a list of objects")
        if event.get("type") == "response.created":
            found.append([])
        if found and str(event.get("type", "")).startswith("response."):
            found[-1].append(event)
    return found


def _connection(
    whole: Exchange, item: Item, requests: list[JsonObject], replies: list[list[JsonObject]]
) -> Iterator[Exchange]:
    """The n-th request of a connection is answered by the n-th response. Each has its own times where it tells them."""
    alone = len(requests) <= 1 and len(replies) <= 1
    places = [item.place] if alone else _places(item)
    for number, (body, reply, place) in enumerate(zip_longest(requests, replies, places)):
        response = (streams.fold(reply) if reply else None) or {}
        started = moment(response.get("created_at"), "created_at")
        yield replace(
            whole,
            place=place or item.place,
            name=whole.name if number == 0 else f"{whole.name}#{number}",
            body=body,
            started=whole.started if alone or started is None else started,
            ended=whole.ended if alone else moment(response.get("completed_at"), "completed_at"),
            status=200 if response.get("status") == "completed" else None,
            reply=response or None,
        )


def _places(item: Item) -> list[Place]:
    """Where the request events of a connection stand in its line, so that each can be read again alone."""
    wanted = "request.ws_events"
    found = []
    for part in parts(BytesIO(item.raw), wanted):
        raw = item.raw[part.offset : part.offset + part.length]
        if part.path == wanted and part.index >= 0 and _creates(rows.loads(raw)):
            found.append(Place(item.place.file, item.place.line, item.place.offset + part.offset, part.length))
    return found
