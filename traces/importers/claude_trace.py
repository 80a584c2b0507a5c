"""claude-trace: `.claude-trace/log-*.jsonl`, one request with its reply a line, times in seconds.

By default it logs only requests to the Messages API with more than two messages, so short side calls are missing.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from traces import rows
from traces.importers.documents import shapes
from traces.importers.endpoints import flat_headers
from traces.importers.exchange import Attempts, Exchange, call_of, object_or_none, status_of
from traces.importers.fields import moment, obj
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject
from traces.schema import Call, JsonObject

NAME = "claude_trace"


def sniff(head: bytes) -> bool:
    """Lines with a request that has a time and a URL."""
    names = {"request.timestamp", "request.method", "request.url"}
    return any(names <= shape and "schema" not in shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a line that asks a model; a request without response is a call whose usage is unknown."""
    return calls(json_lines(path, on_reject), partial(_call, path.stem, Attempts()), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The request body of the line."""
    row = rows.loads(span)
    return object_or_none(obj(row, "request").get("body"), "request.body") if isinstance(row, dict) else None


def _call(stem: str, attempts: Attempts, item: Item) -> Iterator[Call]:
    row = item.row
    sent, back = obj(row, "request"), obj(row, "response")
    if not sent:
        return
    raw = back.get("body_raw")
    found = call_of(
        Exchange(
            place=item.place,
            name=f"{stem}:{item.place.line}",
            trace=stem,
            method=f"{sent.get('method')}",
            url=f"{sent.get('url')}",
            headers=flat_headers(sent.get("headers")),
            body=object_or_none(sent.get("body"), "request.body"),
            started=moment(sent.get("timestamp"), "request.timestamp"),
            ended=moment(back.get("timestamp"), "response.timestamp"),
            status=status_of(back.get("status_code")),
            reply=raw if isinstance(raw, str) and raw else object_or_none(back.get("body"), "response.body"),
        )
    )
    if found is not None:
        yield attempts.numbered(found)
