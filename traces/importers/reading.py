"""Rows of other tools' files with their places: JSON Lines, or the parts of one JSON document, and calls made of them.

Whatever cannot be used goes to `on_reject` in one line and reading goes on.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from traces import rows
from traces.errors import MalformedRow
from traces.importers import documents
from traces.lines import BOM, LINE_LIMIT, OnReject, Rejected, lines_of
from traces.schema import Call, JsonObject, Place
from traces.wire.usage import shown


@dataclass(frozen=True, slots=True)
class Item:
    """One row. `path` and `index` tell where in a document it stands ("" and -1 in JSON Lines); `raw` are its bytes."""

    place: Place
    value: Any
    raw: bytes
    path: str = ""
    index: int = -1

    @property
    def name(self) -> str:
        """How a message calls this row, with a colon; empty in JSON Lines, where the place says it all."""
        if not self.path and self.index < 0:
            return ""
        return f"{documents.named(self.path, self.index)}: "

    @property
    def row(self) -> JsonObject:
        """The value as an object. Raises `MalformedRow` for another type."""
        if not isinstance(self.value, dict):
            raise MalformedRow(f"not an object but {shown(self.value)}")
        return self.value


ToCalls: TypeAlias = Callable[[Item], Iterable[Call]]


def calls(items: Iterable[Item], to_calls: ToCalls, on_reject: OnReject | None) -> Iterator[Call]:
    """The calls that each row gives; a row that `to_calls` refuses with `MalformedRow` is rejected at its place."""
    for item in items:
        try:
            yield from to_calls(item)
        except MalformedRow as error:
            reject(on_reject, item.place, f"{item.name}{error}")


def reject(on_reject: OnReject | None, place: Place, reason: str, *, pending: bool = False, kept: bool = False) -> None:
    """Report a row that gave no call (`kept`: that gave one, of which something has to be said)."""
    if on_reject is not None:
        on_reject(Rejected(place, reason, pending, kept))


def json_lines(path: Path, on_reject: OnReject | None) -> Iterator[Item]:
    """The rows of a JSON Lines file that are JSON. A torn last line is pending."""
    with path.open("rb") as file:
        for place, line in lines_of(file, f"{path}"):
            if line is None:
                reject(on_reject, place, f"the row has {place.length} bytes, more than {LINE_LIMIT}; skipped unread")
            elif line and not line.isspace():
                try:
                    value = rows.loads(line)
                except MalformedRow as error:
                    torn = isinstance(error, rows.NotJson) and not line.endswith(b"\n")
                    reject(on_reject, place, f"{error}", pending=torn)
                    continue
                yield Item(place, value, line)


def whole_text(path: Path, on_reject: OnReject | None) -> str | None:
    """The text of a small file, `None` (and a reject) where it is too large to be one row."""
    raw = _whole(path, on_reject)
    return None if raw is None else raw.decode(errors="replace")


def _whole(path: Path, on_reject: OnReject | None) -> bytes | None:
    with path.open("rb") as file:
        raw = file.read(LINE_LIMIT + 1)
    if len(raw) <= LINE_LIMIT:
        return raw.removeprefix(BOM)
    reject(on_reject, Place(f"{path}", 1, 0, len(raw)), f"the file has more than {LINE_LIMIT} bytes; skipped unread")
    return None


def json_document(path: Path, on_reject: OnReject | None) -> Iterator[Item]:
    """A small file that is one JSON value."""
    raw = _whole(path, on_reject)
    if raw is None:
        return
    place = Place(f"{path}", 1, 0, len(raw))
    try:
        value = rows.loads(raw)
    except MalformedRow as error:
        reject(on_reject, place, f"{error}", pending=isinstance(error, rows.NotJson))
        return
    yield Item(place, value, raw)


def json_parts(path: Path, on_reject: OnReject | None, *wanted: str) -> Iterator[Item]:
    """The members of a JSON document, wanted lists element by element (see `documents.parts`).

    A document that breaks off is pending: many tools rewrite theirs in place.
    """
    name = f"{path}"
    with path.open("rb") as scanned, path.open("rb") as file:
        lines = _Lines(file)
        try:
            for part in documents.parts(scanned, *wanted):
                place = Place(name, lines.at(part.offset), part.offset, part.length)
                item = _loaded(file, place, part, on_reject)
                if item is not None:
                    yield item
        except MalformedRow as error:
            end = file.seek(0, 2)
            reject(on_reject, Place(name, lines.at(end), end, 0), f"{error}", pending="breaks off" in f"{error}")


def _loaded(file: BinaryIO, place: Place, part: documents.Part, on_reject: OnReject | None) -> Item | None:
    if place.length > LINE_LIMIT:
        reject(on_reject, place, f"{part.name} has {place.length} bytes, more than {LINE_LIMIT}; skipped unread")
        return None
    file.seek(place.offset)
    raw = file.read(place.length)
    try:
        return Item(place, rows.loads(raw), raw, part.path, part.index)
    except MalformedRow as error:
        reject(on_reject, place, f"{part.name}: {error}")
        return None


def json_rows(path: Path, on_reject: OnReject | None) -> Iterator[Item]:
    """Rows of a file that may be JSON Lines, one list of rows, or one row over many lines."""
    with path.open("rb") as file:
        head = file.read(2**16).removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        return (item for item in json_parts(path, on_reject, "") if item.index >= 0)
    line, end, _ = head.partition(b"\n")
    whole = not end or line.rstrip().endswith(b"}")
    return json_lines(path, on_reject) if whole else json_document(path, on_reject)


class _Lines:
    """Line numbers of byte places that only go forward."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.offset, self.line = file, 0, 1

    def at(self, offset: int) -> int:
        """The 1-based line on which the byte at `offset` stands."""
        while self.offset < offset:
            self.file.seek(self.offset)
            block = self.file.read(min(2**20, offset - self.offset))
            if not block:
                break
            self.line += block.count(b"\n")
            self.offset += len(block)
        return self.line
