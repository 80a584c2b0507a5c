"""Parts of a JSON document with their byte places, found without loading it: exports and session files that are one
object with a long list inside.

The scanner only follows brackets and strings, so a part that is damaged inside costs itself alone, and a document that
breaks off still gives all parts in front of the break.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import BinaryIO

import orjson

from traces.errors import MalformedRow
from traces.lines import BOM, objects
from traces.schema import JsonObject

BLOCK = 2**20
_TOKEN = re.compile(rb'["{}\[\]:,]|[^\s"{}\[\]:,]+')
_NESTED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
"""Inside a value: whole texts are one match, a quote alone is a text that goes on in the next block."""
_IN_STRING = re.compile(rb'["\\]')
_NAME = re.compile(rb'"(\w{1,40})"\s*:')
_ENTERED = ("request", "trace", "meta_info", "log", "info")
_SIGNS = frozenset((b'"', b"{", b"}", b"[", b"]", b":", b","))


@dataclass(frozen=True, slots=True)
class Part:
    """One value: its path of names ("log.entries"), its number in a list (-1: not in one), and its bytes' place."""

    path: str
    index: int
    offset: int
    length: int

    @property
    def name(self) -> str:
        """How a message calls this part; names come from the file and may hold anything."""
        return named(self.path, self.index)


def named(path: str, index: int) -> str:
    """A part's name for a message of one line."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)[:80]
    return shown if index < 0 else f"{shown}[{index}]"


def parts(file: BinaryIO, *wanted: str) -> Iterator[Part]:
    """The members of the document's object, and in the place of a list whose path is wanted its elements.

    A wanted path "" means the elements of a document that is a list. Objects on the way to a wanted path are entered.
    Raises `MalformedRow` (after all whole parts) where the document breaks off or its brackets do not match.
    """
    return _Scan(file, wanted).parts()


@lru_cache(maxsize=2)
def shapes(head: bytes) -> tuple[frozenset[str], ...]:
    """Names in the rows at the start of a file, for telling formats apart: of its first row or document, which may be
    cut, and of each whole line; of a list, those of its first element. Some members (`_ENTERED`) give their own names
    too, as "request.url".

    The last answers are kept, since every format asks for the same head.
    """
    return (_first_shape(head), *(_names(row) for row in objects(head)))


def _first_shape(head: bytes) -> frozenset[str]:
    found: dict[str, bytes] = {}
    file = BytesIO(head)
    scan = _Scan(file, ("", *(f"{name}." for name in _ENTERED)))
    try:
        for part in scan.parts():
            found.setdefault(part.path, head[part.offset : part.offset + part.length])
    except MalformedRow:
        for path in scan.open_paths():
            found.setdefault(path, b"")
    if "" not in found:
        return frozenset((*found, *(path.partition(".")[0] for path in found)))
    element = _object(found[""])
    if element:
        return _names(element)
    return frozenset(name.decode(errors="replace") for name in _NAME.findall(head))  # a first element that is cut


def _names(row: JsonObject) -> frozenset[str]:
    inner = ((name, row[name]) for name in _ENTERED if isinstance(row.get(name), dict))
    return frozenset((*row, *(f"{name}.{key}" for name, value in inner for key in value)))


def _object(raw: bytes) -> JsonObject:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class _Level:
    """An object or list that the scan has entered: `key` is the member it stands at, `start` where its value began."""

    path: str
    is_list: bool
    key: str | None = None
    index: int = 0
    start: int = -1


class _Scan:
    """One pass over a document. `depth` counts brackets inside the value that is being passed over."""

    def __init__(self, file: BinaryIO, wanted: tuple[str, ...]) -> None:
        self.file, self.wanted = file, wanted
        self.levels: list[_Level] = []
        self.depth = 0
        self.closing = self.done = False

    def open_paths(self) -> list[str]:
        """Paths of what was entered but not left, the innermost value last."""
        return [_joined(level) for level in self.levels]

    def parts(self) -> Iterator[Part]:
        position = 0
        for position, token, end in self._tokens():
            if self.done:
                raise MalformedRow(f"more text behind the end of the document (byte {position})")
            yield from self._take(position, token, end)
        if not self.done:
            raise MalformedRow(f"the document breaks off (byte {self.file.tell()})")

    def _take(self, position: int, token: bytes, end: int) -> Iterator[Part]:
        level = self.levels[-1] if self.levels else None
        if self.closing and level is not None:
            self.closing = False
            yield self._part(level, end)
        elif self.depth:
            pass  # a text that went over the end of a block
        elif level is None:
            if token not in b"{[" or (token == b"[" and "" not in self.wanted):
                raise MalformedRow(f"want an object, got {token.decode(errors='replace')!r} (byte {position})")
            self.levels.append(_Level("", token == b"["))
        elif token in (b"}", b"]"):
            yield from self._leave(level, position, token)
        else:
            yield from self._inside(level, position, token, end)

    def _inside(self, level: _Level, position: int, token: bytes, end: int) -> Iterator[Part]:
        if token == b",":
            yield from self._scalar(level, position)
            level.key = None
        elif token == b":":
            level.start = -1
        elif token == b'"' and not level.is_list and level.key is None:
            level.key = _text(self.file, position, end)
        elif token == b'"' or token == b"v":
            level.start = position if level.start < 0 else level.start
        else:
            self._enter(level, position, token)

    def _enter(self, level: _Level, position: int, token: bytes) -> None:
        path = _joined(level)
        deeper = token == b"[" and path in self.wanted and not level.is_list
        deeper = deeper or (token == b"{" and not level.is_list and any(w.startswith(f"{path}.") for w in self.wanted))
        if deeper:
            self.levels.append(_Level(path, token == b"["))
        else:
            level.start, self.depth = position, 1

    def _leave(self, level: _Level, position: int, token: bytes) -> Iterator[Part]:
        if (token == b"]") != level.is_list:
            raise MalformedRow(f"brackets do not match (byte {position})")
        yield from self._scalar(level, position)
        self.levels.pop()
        if self.levels:
            self.levels[-1].start = -1
        self.done = not self.levels

    def _scalar(self, level: _Level, position: int) -> Iterator[Part]:
        """A text, number or word that ends in front of a comma or bracket."""
        if level.start >= 0:
            yield self._part(level, position)

    def _part(self, level: _Level, end: int) -> Part:
        part = Part(_joined(level), level.index if level.is_list else -1, level.start, end - level.start)
        level.start = -1
        level.index += 1
        return part

    def _tokens(self) -> Iterator[tuple[int, bytes, int]]:
        """Position, token and end of brackets, of each text (`"`) and, where parts are told apart, of commas, colons
        and the start of bare values (`v`)."""
        base, text_start, escaped = 0, -1, False
        self.file.seek(0)
        while block := self.file.read(BLOCK):
            at = len(BOM) if base == 0 and block.startswith(BOM) else 0
            while at < len(block):
                if escaped:
                    escaped, at = False, at + 1
                    continue
                if self.depth and text_start < 0:
                    match = self._over(block, at)
                else:
                    match = (_TOKEN if text_start < 0 else _IN_STRING).search(block, at)
                if match is None:
                    break
                at = match.end()
                if text_start < 0 and match[0] == b'"':
                    text_start = base + match.start()
                elif text_start < 0:
                    token = match[0] if match[0] in _SIGNS else b"v"
                    yield base + match.start(), token, base + at
                elif match[0] == b'"':
                    yield text_start, b'"', base + at
                    text_start = -1
                else:
                    escaped = True
            base += len(block)

    def _over(self, block: bytes, at: int) -> re.Match[bytes] | None:
        """The bracket that closes the value being passed over, or the start of a text that goes on behind the block."""
        for match in _NESTED.finditer(block, at):
            token = match[0]
            if token in (b"{", b"["):
                self.depth += 1
            elif token in (b"}", b"]"):
                self.depth -= 1
                if not self.depth:
                    self.closing = True
                    return match
            elif len(token) == 1:
                return match
        return None


def _joined(level: _Level) -> str:
    if level.is_list:
        return level.path
    return f"{level.path}.{level.key}" if level.path else level.key or ""


def _text(file: BinaryIO, start: int, end: int) -> str:
    """The name that stands at a place, the file's own position kept."""
    here = file.tell()
    file.seek(start + 1)
    name = file.read(end - start - 2)
    file.seek(here)
    return name.decode(errors="replace")
