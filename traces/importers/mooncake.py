"""Mooncake request traces: `{"timestamp": ms, "input_length", "output_length", "hash_ids"}`, blocks of 512 tokens.

An id names its block and everything in front of it, so the longest common run of ids is what could be reused. There is
no text, no session and no usage: the prompt becomes one block an id, with its exact tokens, and what was read is
unknown. Times count from the start of the trace, not from a known day. Source: the trace's README (FAST '25).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from traces import rows
from traces.errors import MalformedRow
from traces.importers.documents import shapes
from traces.importers.fields import items
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import count, shown

NAME = "mooncake"
PAGE_TOKENS = 512
_FIELDS = frozenset(("timestamp", "input_length", "output_length", "hash_ids"))
_DAY = datetime(1970, 1, 1, tzinfo=UTC)


def sniff(head: bytes) -> bool:
    """Rows with lengths and block hashes."""
    return any(shape >= _FIELDS for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a row, with its prompt as page digests and known lengths."""
    return calls(json_lines(path, on_reject), partial(_call, path.stem), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The prompt of a row as pages."""
    row = rows.loads(span)
    return _pages(row) if isinstance(row, dict) else None


def _call(stem: str, item: Item) -> Iterator[Call]:
    row = item.row
    after = row.get("timestamp")
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after < 1e13:
        raise MalformedRow(f"timestamp: want milliseconds since the start, got {shown(after)}")
    pages = _pages(row)
    yield Call(
        id=f"{stem}:{item.place.line}",
        trace=stem,
        provider="mooncake",
        started_at=_DAY + timedelta(milliseconds=after),
        seq=item.place.line,
        api="messages",
        request=pages,
        tokens=_tokens(row, len(pages["messages"])),
        usage=Usage(count(row.get("input_length"), "input_length"), None, None, None, None,
                    count(row.get("output_length"), "output_length")),
        clock="relative",
        place=item.place,
    )  # fmt: skip


def _pages(row: JsonObject) -> JsonObject:
    """One message a page: what an id names is unknown, but equal ids are equal text."""
    ids = items(row, "hash_ids")
    if not all(type(name) is int for name in ids):
        raise MalformedRow("hash_ids: want a list of whole numbers")
    return {"messages": [{"role": "user", "content": f"page {name}"} for name in ids]}


def _tokens(row: JsonObject, pages: int) -> dict[str, int]:
    """Exact tokens of each page: all are full but the last."""
    whole = count(row.get("input_length"), "input_length") or 0
    sizes = [max(0, min(PAGE_TOKENS, whole - PAGE_TOKENS * number)) for number in range(pages)]
    return {f"/messages/{number}/content": size for number, size in enumerate(sizes)}
