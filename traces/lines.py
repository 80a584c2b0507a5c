"""Files of rows: lines with their places in constant memory, and what is said of a row that gave no call.

What native files (`traces.io`) and the importers of other tools' files (`traces.importers`) have in common.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, TypeAlias

import orjson

from traces.schema import JsonObject, Place

LINE_LIMIT = 64 * 2**20
"""Bytes of one row at most; the providers refuse requests of half that size."""

BOM = b"\xef\xbb\xbf"

BUFFER = 2**18
"""Bytes of a long file to read at a time: its rows are often longer than the usual buffer."""

_BLOCK = 2**20
# Rows that a format is told by.
_TELLING = 8


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that gave no call, and why.

    `pending`: the torn last line of a file that may still grow. `kept`: the row did give a call, of which the reason
    says what was left out or assumed.
    """

    place: Place
    reason: str
    pending: bool = False
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    @property
    def told(self) -> str:
        """The line that a user reads of it."""
        return f"{self}{' (may still be written)' if self.pending else ''}"


OnReject: TypeAlias = Callable[[Rejected], None]


def lines_of(file: BinaryIO, name: str) -> Iterator[tuple[Place, bytes | None]]:
    """Lines with their places; `None` instead of a line above the limit, which is never loaded as a whole."""
    for number, offset, length, line in spans_of(file):
        yield Place(name, number, offset, length), line


def spans_of(file: BinaryIO, offset: int = 0, number: int = 0) -> Iterator[tuple[int, int, int, bytes | None]]:
    """Number, offset, length and bytes of each line, `None` for bytes above the limit.

    `file` is open at `offset`, which is a line's start, with `number` lines in front of it. A byte order mark is taken
    off the first line of the file.
    """
    while line := file.readline(_BLOCK):
        number += 1
        length = len(line)
        whole: bytes | None = line
        if length == _BLOCK and not line.endswith(b"\n"):
            length += _to_line_end(file)
            file.seek(offset)
            whole = file.read(length) if length <= LINE_LIMIT else None
            file.seek(offset + length)
        if number == 1 and whole is not None:
            whole = whole.removeprefix(BOM)
        yield number, offset, length, whole
        if whole is not None and not whole.endswith(b"\n"):
            return  # the end, also where the rest of this line has been written since
        offset += length


@lru_cache(maxsize=1)
def objects(head: bytes) -> tuple[JsonObject, ...]:
    """The JSON objects that stand whole in the first lines of a file; what is cut or damaged is left out.

    The last answer is kept, since every format asks for the same head.
    """
    found = []
    for line in head.removeprefix(BOM).split(b"\n"):
        if line.lstrip().startswith(b"{"):
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            found.append(value)
            if len(found) == _TELLING:
                break
    return tuple(found)


def _to_line_end(file: BinaryIO) -> int:
    """Bytes from here to the end of the line, counted without keeping them."""
    length = 0
    while block := file.read(_BLOCK):
        end = block.find(b"\n")
        if end >= 0:
            return length + end + 1
        length += len(block)
    return length
