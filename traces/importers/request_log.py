"""Logs of requests without replies, as stub servers write them: `t` (seconds), `method`, `path`, `headers`, `body`.

Bodies can be compared; there is no usage, so nothing is a hit or a miss.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from traces import rows
from traces.importers.documents import shapes
from traces.importers.endpoints import flat_headers
from traces.importers.exchange import Attempts, Exchange, call_of, object_or_none, status_of
from traces.importers.fields import moment, text
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject
from traces.schema import Call, JsonObject

NAME = "request_log"
_FIELDS = frozenset(("method", "path", "headers", "t"))


def sniff(head: bytes) -> bool:
    """Flat lines with method, path, headers and time."""
    return any(shape >= _FIELDS and "request" not in shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a line that asks a model."""
    return calls(json_lines(path, on_reject), partial(_call, path.stem, Attempts()), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The request body of the line."""
    row = rows.loads(span)
    return object_or_none(row.get("body"), "body") if isinstance(row, dict) else None


def _call(stem: str, attempts: Attempts, item: Item) -> Iterator[Call]:
    row = item.row
    mode = text(row, "mode")
    found = call_of(
        Exchange(
            place=item.place,
            name=f"{stem}:{item.place.line}",
            trace=f"{stem} {mode}" if mode else stem,
            method=f"{row.get('method')}",
            url=f"{row.get('path')}",
            headers=flat_headers(row.get("headers")),
            body=object_or_none(row.get("body"), "body"),
            started=moment(row.get("t"), "t"),
            status=status_of(row.get("status")),
        )
    )
    if found is not None:
        yield attempts.numbered(found)
