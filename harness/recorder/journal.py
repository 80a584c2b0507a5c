"""The spool: what passes through the proxy, appended to files as it happens, before the client sees the end of it.

One append is one `write` into the page cache, some microseconds, and survives the death of the process (not that of the
machine: nothing is synced). A call's records all stand in the segment in which it began; a segment is removed once
all of its calls are in the database. Its owner holds a lock on it, so that another process can tell a living proxy's
segments from those that a killed one left behind.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import NamedTuple

SEGMENT_BYTES = 32 * 2**20
"""A new segment begins after this many bytes."""

TAKEN_AT_ONCE = 64
"""Calls of a dead proxy that are handed over together; handing one over twice must do no harm."""

_HEAD = struct.Struct("<4sIBQI")  # mark, call, kind, nanoseconds of the clock, length
_MARK = b"cwj1"


class Kind(IntEnum):
    """What a record holds."""

    OPEN = 1
    REQUEST = 2
    HEAD = 3
    RESPONSE = 4
    END = 5


class Record(NamedTuple):
    """One record of one call: `at` in nanoseconds since 1970."""

    kind: Kind
    at: int
    data: bytes


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the spool. `open` counts its calls that are not in the database yet."""

    path: Path
    fd: int
    size: int = 0
    open: int = 0
    full: bool = False
    lock: Lock = field(default_factory=Lock)  # calls begin in the proxy's thread and are stored in the recorder's

    def append(self, call: int, records: list[Record], places: list[tuple[int, int]]) -> None:
        """Append a call's records in one write, and note their places. Raises OSError where they are not whole."""
        parts = []
        for kind, at, data in records:
            parts += [_HEAD.pack(_MARK, call, kind, at, len(data)), data]
        blob = b"".join(parts)
        written = 0
        try:
            while written < len(blob):
                written += os.write(self.fd, blob[written:] if written else blob)
        except OSError:
            os.ftruncate(self.fd, self.size)
            raise
        places.append((self.size, len(blob)))
        self.size += len(blob)

    def read(self, places: list[tuple[int, int]]) -> Iterator[Record]:
        """A call's records, by their places."""
        for at, length in places:
            for _, record in _records(os.pread(self.fd, length, at)):
                yield record

    def release(self) -> None:
        """One of its calls is in the database."""
        self._tidy(open=-1, full=self.full)

    def close(self) -> None:
        """No call begins in it any more."""
        self._tidy(open=0, full=True)

    def abandon(self) -> None:
        """Leave the file to the next recorder, whatever of it is not stored."""
        with self.lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def _tidy(self, *, open: int, full: bool) -> None:
        """Once nothing needs what is in it, empty the file, and remove it where no call begins in it any more.

        So what is purged from the database does not stay in the spool of a proxy that goes on.
        """
        with self.lock:
            self.open += open
            self.full = full
            if self.open or self.fd < 0:
                return
            if full:
                self.path.unlink(missing_ok=True)
                os.close(self.fd)
                self.fd = -1
            elif self.size:
                os.ftruncate(self.fd, 0)
                self.size = 0


class Journal:
    """The spool of one database: a directory beside it. For one thread at a time; `Segment.release` is for any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segment: Segment | None = None
        self._live: list[Segment] = []

    def segment(self) -> Segment:
        """The segment for a call that begins now; it counts as open. Raises OSError."""
        segment = self._segment
        if segment is None or segment.size >= SEGMENT_BYTES:
            fresh = self._new()
            if segment is not None:
                segment.close()
            self._live = [*(one for one in self._live if one.fd >= 0), fresh]
            segment = self._segment = fresh
        with segment.lock:
            segment.open += 1
        return segment

    def _new(self) -> Segment:
        path = self.folder / f"{os.getpid()}-{token_hex(4)}.spool"
        fresh = path.with_suffix(".new")  # nobody looks at it before it is locked
        try:
            fd = self._made(fresh)
        except FileNotFoundError:
            fd = self._made(fresh)  # another proxy has just removed the folder, as the last to leave
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(path)
        return Segment(path, fd)

    def _made(self, path: Path) -> int:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """No call begins any more: remove what is empty."""
        if self._segment is not None:
            self._segment.close()
        for segment in self._live:
            segment.abandon()
        try:
            self.folder.rmdir()
        except OSError:
            return  # another proxy's, or calls that could not be stored yet


def left_behind(folder: Path, take: Callable[[list[list[Record]]], None]) -> int:
    """Hand over the calls of each segment whose owner has died, then remove it; returns how many calls there were.

    Segments of living proxies are left alone. Raises what `take` raises, the segment then stays.
    """
    count = 0
    for path in sorted(folder.glob("*.spool")):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            calls: dict[int, list[Record]] = {}
            for call, record in _records(path.read_bytes()):
                calls.setdefault(call, []).append(record)
            found = list(calls.values())
            for at in range(0, len(found), TAKEN_AT_ONCE):
                take(found[at : at + TAKEN_AT_ONCE])
            count += len(found)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)
    return count


def _records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Records of a stretch of a segment; a torn one ends it."""
    at = 0
    while at + _HEAD.size <= len(data):
        mark, call, kind, time, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if mark != _MARK or at + length > len(data):
            return
        yield call, Record(Kind(kind), time, data[at : at + length])
        at += length
