"""mitmproxy flow files (`mitmdump -w`): bodies as they went over the wire, times in seconds.

A flow that was streamed through without a callable holds no reply body: its usage is unknown.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from traces.errors import MalformedRow
from traces.importers import bodies, tnetstrings
from traces.importers.endpoints import flat_headers
from traces.importers.exchange import Attempts, Exchange, call_of, readable, status_of
from traces.importers.fields import moment, obj
from traces.importers.reading import reject
from traces.lines import LINE_LIMIT, OnReject
from traces.schema import Call, JsonObject, Place

NAME = "mitmproxy"
_FLOW = re.compile(rb"[0-9]{1,12}:[0-9]{1,2}:[a-z_]+[;,]")
_NAMES = (b"9:websocket;", b"8:response;", b"7:request;", b"11:client_conn;")


def sniff(head: bytes) -> bool:
    """A netstring object whose names are those of a flow; a long body may hide all but the first ones."""
    return _FLOW.match(head) is not None and any(name in head for name in _NAMES)


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a flow that asks a model. A file that breaks off in a flow is pending: it may still be written."""
    attempts, number = Attempts(), 0
    with path.open("rb") as file:
        try:
            for offset, length, raw in tnetstrings.records(file, LINE_LIMIT):
                number += 1
                place = Place(f"{path}", number, offset, length)
                if raw is None:
                    reject(on_reject, place, f"the flow has {length} bytes, more than {LINE_LIMIT}; skipped unread")
                    continue
                try:
                    call, said = _call(path.stem, place, tnetstrings.loads(raw))
                except MalformedRow as error:
                    reject(on_reject, place, f"{error}")
                    continue
                if call is not None:
                    for trouble in said:
                        reject(on_reject, place, trouble, kept=True)
                    yield attempts.numbered(call)
        except MalformedRow as error:
            place = Place(f"{path}", number + 1, file.tell(), 0)
            reject(on_reject, place, f"{error}", pending="breaks off" in f"{error}")


def request(span: bytes) -> JsonObject | None:
    """The request body of a flow."""
    flow = tnetstrings.loads(span)
    return _body(obj(flow, "request")) if isinstance(flow, dict) else None


def _call(stem: str, place: Place, flow: Any) -> tuple[Call | None, list[str]]:
    """The call of one flow, and what of it could not be read."""
    if not isinstance(flow, dict):
        raise MalformedRow("want a flow, got another value")
    sent, back = obj(flow, "request"), obj(flow, "response")
    if not sent:
        return None, []
    headers = flat_headers(_decoded(sent.get("headers")))
    said: list[str] = []
    body = readable(partial(_body, sent), "request", said)
    reply = readable(partial(_reply, back), "response", said)
    host = _text(sent.get("authority")) or headers.get("host") or _text(sent.get("host"))
    found = call_of(
        Exchange(
            place=place,
            name=f"{stem}:{place.line}",
            trace=stem,
            method=_text(sent.get("method")),
            url=f"https://{host}{_text(sent.get('path'))}",
            headers=headers,
            body=body,
            started=moment(sent.get("timestamp_start"), "request.timestamp_start"),
            first=moment(back.get("timestamp_start"), "response.timestamp_start"),
            ended=moment(back.get("timestamp_end"), "response.timestamp_end"),
            status=status_of(back.get("status_code")),
            reply=reply,
        )
    )
    return found, said


def _body(sent: JsonObject) -> JsonObject | None:
    raw = sent.get("content")
    return bodies.json_object(bodies.unpacked(raw, _coding(sent))) if isinstance(raw, bytes) else None


def _reply(back: JsonObject) -> str | None:
    raw = back.get("content")
    return bodies.unpacked(raw, _coding(back)) if isinstance(raw, bytes) else None


def _coding(message: JsonObject) -> str:
    return flat_headers(_decoded(message.get("headers"))).get("content-encoding", "")


def _decoded(headers: object) -> list[list[str]]:
    """Header pairs, which are bytes in a flow, as text."""
    pairs = headers if isinstance(headers, list) else []
    return [[_text(part) for part in pair] for pair in pairs if isinstance(pair, list)]


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
