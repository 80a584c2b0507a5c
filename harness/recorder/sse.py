"""Server-sent events in bytes: LF, CR and CR LF as line ends, with or without the blank after the colon.

Source: WHATWG HTML, section "Server-sent events" (parsing an event stream). Text is decoded one whole event at a time.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import orjson

from traces.schema import JsonObject

_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """An event: its name ("" where it has none), its data as JSON (`None`: no JSON object), and where it ends."""

    name: str
    data: JsonObject | None
    end: int


def events(stream: bytes) -> Iterator[Event]:
    """The events of a stream; what is not ended by a blank line is one too, since streams break off."""
    name, data, at = b"", [], 0
    while at < len(stream):
        found = _LINE_END.search(stream, at)
        line, at = (stream[at : found.start()], found.end()) if found else (stream[at:], len(stream))
        if line:
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"event":
                name = value
            elif key == b"data":
                data.append(value)
        if not line or at >= len(stream):
            if data:
                yield Event(name.decode("utf-8", "replace"), _object(b"\n".join(data)), at)
            name, data = b"", []


def _object(text: bytes) -> JsonObject | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
