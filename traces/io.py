"""Reading and writing calls: native JSON Lines (also gzip) and usage tables in CSV, told apart by content.

Readers stream in constant memory, go on after a bad line and report it. What is read is seekable bytes: a plain file
itself, or, for gzip, standard input ("-") and pipes, an uncompressed copy in a temporary folder that this process
removes when it ends. `Source` is that pair: the name the user gave (for messages) and the bytes (for re-reading);
`Place.file` is always the user's name, and `read_request` finds the bytes through it.
"""

import atexit
import gzip
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeAlias

from msgspec import structs

from traces import csvio, rows
from traces.errors import MalformedRow, UnreadableInput
from traces.files import STDIN, flat, is_stdin
from traces.files import find as find
from traces.importers.registry import importer_of
from traces.lines import BOM, LINE_LIMIT, lines_of, objects
from traces.lines import OnReject as OnReject
from traces.lines import Rejected as Rejected
from traces.schema import SCHEMA, Call, JsonObject, Place
from traces.sessions import distinct as distinct
from traces.sessions import is_copy as is_copy
from traces.sessions import read_as as read_as

Reader: TypeAlias = Callable[..., Iterator[Call]]
"""`read` of an importer (`traces.importers.registry`)."""

_BLOCK = 2**20
_SMALL_BLOCK = 2**12
_HEAD = 2**16
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes that can be sought in: `path` holds them, `name` is what the user called them.

    `stamp` tells the versions of the user's file apart, `damage` says why an uncompressed copy is incomplete.
    """

    name: str
    path: Path
    stamp: tuple[int, ...] = ()
    damage: str | None = None

    @property
    def stem(self) -> str:
        """File name without folders and endings: the default name of a trace."""
        return "stdin" if self.name == STDIN else Path(Path(self.name).name.removesuffix(".gz")).stem


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """Calls of one file in its order, one at a time. `Path("-")` is standard input.

    Each row that cannot be used goes to `on_reject` with its place. Raises `UnreadableInput` for a file that is not
    there, is of an unknown kind, or gave no call at all (after its rows were reported).
    """
    report = _Report(on_reject)
    try:
        source = _source(path)
        for call in _calls(source, report):
            report.calls += 1
            yield call
    except OSError as error:  # opened, but reading it fails
        raise UnreadableInput(f"{flat(path)}: {(error.strerror or 'cannot be read').lower()}") from None
    if source.damage:
        report(Rejected(Place(source.name, report.line + 1), source.damage))
    if not report.calls and (report.first or not report.imported):  # a session may have asked nothing yet
        raise UnreadableInput(_nothing(source, report))


def read_request(place: Place) -> JsonObject:
    """The request at a place, read again. Raises `MalformedRow` where there is none or it has changed."""
    source = _copies().get(place.file) or Source(place.file, Path(place.file))
    # A small buffer: the usual one would read a whole megabyte for a row of some kilobytes.
    with _opened(source.path, source.name, buffering=_SMALL_BLOCK) as file:
        request_in = _request_in(source, file)
        file.seek(place.offset)
        span = file.read(place.length)
    try:
        request = request_in(span.removeprefix(BOM))
    except MalformedRow as error:
        raise MalformedRow(f"{place}: has changed since it was read ({error}); read the file again") from None
    if not isinstance(request, dict):
        raise MalformedRow(f"{place}: has no request")
    return request


@lru_cache(maxsize=256)
def _importer(source: Source, head: bytes) -> ModuleType | None:
    """The importer of a source, asked once for each head."""
    return None if _is_native(head) else importer_of(head)


def _request_in(source: Source, file: BinaryIO) -> Callable[[bytes], object]:
    """How the bytes at a place of this file become a request."""
    importer = _importer(source, file.read(_HEAD))
    return _native_request if importer is None else getattr(importer, "request", _no_request)


def _native_request(line: bytes) -> object:
    row = rows.loads(line)
    return row.get("request") if isinstance(row, dict) else None


def _no_request(_: bytes) -> object:
    return None


def parse(line: bytes, place: Place | None = None) -> Call:
    """The call in one line of native JSONL; `parse(line of write)` is the call written, its place aside.

    Raises `MalformedRow`.
    """
    place = place or Place("line", 1, 0, len(line))
    return rows.from_line(line.removeprefix(BOM), place, rows.Context(Path(place.file).stem, _ignore))


def write(calls: Iterable[Call], file: BinaryIO) -> None:
    """Append calls as native JSON Lines. Raises `MalformedRow` for a body that is no JSON; see `csvio.write_table`."""
    for call in calls:
        file.write(rows.to_line(call) + b"\n")


def opened(path: Path) -> BinaryIO:
    """The bytes behind a user's path: gzip unpacked, "-" is standard input. Raises `UnreadableInput`."""
    source = _source(path)
    return _opened(source.path, source.name)


def plain_size(path: Path) -> int:
    """Bytes of a plain file, which is read where it stands; 0 for all else: gzip, pipes, standard input, no file."""
    try:
        if is_stdin(path) or not path.is_file():
            return 0
        with path.open("rb") as file:
            return 0 if file.read(2) == _GZIP else path.stat().st_size
    except OSError:
        return 0


class _Report:
    """Counts what one file gave, and passes rejections on."""

    def __init__(self, on_reject: OnReject | None) -> None:
        self.on_reject = on_reject
        self.calls = self.line = 0
        self.imported = False
        self.first: Rejected | None = None

    def __call__(self, rejected: Rejected) -> None:
        if not rejected.kept:
            self.first = self.first or rejected
        if self.on_reject:
            self.on_reject(rejected)

    def warn(self, place: Place, reason: str) -> None:
        self(Rejected(place, reason, kept=True))


_Parse: TypeAlias = Callable[[bytes, Place], Call]


def _calls(source: Source, report: _Report) -> Iterator[Call]:
    with _opened(source.path, source.name) as file:
        head = file.read(_HEAD)
        importer = None if _is_native(head) else importer_of(head)
        if importer is not None:
            report.imported = True
            yield from _imported(importer.read, source, report)
            return
        parse_row, header = _format(head, source, report)
        file.seek(0)
        for place, line in lines_of(file, source.name):
            report.line = place.line
            if line is None:
                size = f"{place.length} bytes, more than {LINE_LIMIT} ({LINE_LIMIT >> 20} MiB)"
                report(Rejected(place, f"the row has {size}; it was skipped unread"))
            elif line and not line.isspace() and place.line != header:
                try:
                    call = parse_row(line, place)
                except MalformedRow as error:
                    report(Rejected(place, f"{error}", pending=_is_torn(line, error)))
                    continue
                yield call


def _is_native(head: bytes) -> bool:
    """Whether a row of the native format stands whole in the head; no other format is asked then."""
    return any(row.get("schema") == SCHEMA or _is_call(row) for row in objects(head))


def _is_call(row: JsonObject) -> bool:
    """Other tools' rows may name a provider too, but not beside a body or usage."""
    return isinstance(row.get("provider"), str) and not row.keys().isdisjoint(("request", "response", "usage"))


def _imported(reader: Reader, source: Source, report: _Report) -> Iterator[Call]:
    """Calls of another tool's file, under the user's name for it where a copy is read."""
    if f"{source.path}" == source.name:
        yield from read_as(reader, source.path, on_reject=report)
        return

    def named(place: Place) -> Place:
        return structs.replace(place, file=source.name)

    def on_reject(rejected: Rejected) -> None:
        report(replace(rejected, place=named(rejected.place)))

    for call in read_as(reader, source.path, on_reject=on_reject):
        yield call if call.place is None else structs.replace(call, place=named(call.place))


def _format(head: bytes, source: Source, report: _Report) -> tuple[_Parse, int]:
    """The parser for this file's rows, and the line number of a table's header (0: none).

    A table starts with a known header, or with a row of other names and no line after it that starts like an object:
    a damaged first line must not turn a JSONL file into a table.
    """
    if head.startswith(_UTF16):
        mark = head[:2].hex(" ").upper()
        raise UnreadableInput(f"{flat(source.name)}: UTF-16 text (byte order mark {mark}); convert it to UTF-8")
    context = rows.Context(source.stem, report.warn)
    lines = head.removeprefix(BOM).split(b"\n")
    number, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip()), (0, b""))
    cut = number == len(lines) and len(head) == _HEAD
    objects = any(line.lstrip().startswith(b"{") for line in lines)
    if not cut and csvio.looks_like_header(first) and (csvio.knows(first) or not objects):
        return partial(csvio.table(first, flat(source.name)).call, context=context), number
    return partial(rows.from_line, context=context), 0


def _is_torn(line: bytes, error: MalformedRow) -> bool:
    return isinstance(error, rows.NotJson) and not line.endswith(b"\n") and line.lstrip().startswith(b"{")


def _nothing(source: Source, report: _Report) -> str:
    name = flat(source.name)
    if not report.first:
        return f"{name}: empty, no call in {report.line} lines" if report.line else f"{name}: empty (0 bytes)"
    reason = f"line {report.first.place.line}: {report.first.reason}"
    return f"{name}: no call in {report.line} lines; {reason}; want JSON Lines ({SCHEMA}) or a usage CSV"


def _source(path: Path) -> Source:
    """The bytes behind a user's path; copies gzip, standard input and pipes, once for each version of them."""
    name = f"{path}"
    copied = _copies().get(name)
    if is_stdin(path):
        if not copied and sys.stdin is None:
            raise UnreadableInput(f"{name}: standard input is closed; name a file")
        return copied or _spooled(name, sys.stdin.buffer)
    with _opened(path, name) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not file.isatty()):
            raise UnreadableInput(f"{flat(name)}: a device, which may never end; name a file")
        if not file.seekable():
            return copied or _spooled(name, file)
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if copied and copied.stamp == stamp:
            return copied
        _copies().pop(name, None)
        return _unzipped(name, stamp, file) or Source(name, path)


def _spooled(name: str, stream: BinaryIO) -> Source:
    """A copy of a stream that cannot be sought in, unpacked where it is gzip."""
    copy = _copied(name, stream.read)
    with _opened(copy, name) as file:
        source = _unzipped(name, (), file) or Source(name, copy)
    return _copies().setdefault(name, source)


def _unzipped(name: str, stamp: tuple[int, ...], file: BinaryIO) -> Source | None:
    """An unpacked copy, or `None` where the file is no gzip. Damaged data gives what stands before the damage."""
    is_gzip = file.read(2) == _GZIP
    file.seek(0)
    if not is_gzip:
        return None
    damage: list[str] = []
    # read1, since read would throw away what it unpacked in front of the damage
    copy = _copied(name, gzip.GzipFile(fileobj=file, mode="rb").read1, damage.append)
    return _copies().setdefault(name, Source(name, copy, stamp, damage[0] if damage else None))


def _copied(name: str, take: Callable[[int], bytes], on_damage: Callable[[str], None] | None = None) -> Path:
    """Bytes of a stream, taken a block at a time, in a new file of this process's own folder."""
    try:
        with tempfile.NamedTemporaryFile(dir=_folder(), delete=False) as target:
            try:
                while block := take(_BLOCK):
                    target.write(block)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                if on_damage:
                    on_damage(f"compressed data is damaged or ends early ({error}); rows after this point are lost")
    except OSError as error:
        raise UnreadableInput(f"{flat(name)}: cannot be copied for reading ({error.strerror or error})") from None
    return Path(target.name)


@cache
def _copies() -> dict[str, Source]:
    """Copies of this process by the user's name."""
    return {}


@cache
def _folder() -> Path:
    """A private folder for copies, removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="cachewright-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _opened(path: Path, name: str, buffering: int = _BLOCK) -> BinaryIO:
    try:
        return path.open("rb", buffering=buffering)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error}"
        raise UnreadableInput(f"{flat(name)}: {(reason or 'cannot be opened').lower()}") from None


def _ignore(place: Place, reason: str) -> None:
    """Warnings of a single row have nobody to hear them."""
