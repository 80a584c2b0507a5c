"""Pages on disk, one file each, named by identity; they survive a restart.

A file appears whole or not at all: it is written beside, read back and verified, then renamed. Nothing is synced to the
device: a file that a power cut tore is refused when it is read, like any other damage. The folder is private to the
user, since a page gives away the text it was computed from. Its modification time is the time of last use; of pages
that were used together, those at the end of a prompt are deleted first.
"""

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from localmodel.engine.cache.family import Family
from localmodel.engine.cache.identity import PageKey, Tokens
from localmodel.engine.cache.tiers import (
    CORRUPT,
    HEADER_BYTES,
    Header,
    Payload,
    Refusal,
    mismatch,
    pack_header,
    read_header,
    unpack_page,
)

_SUFFIX = ".page"
_NAME = re.compile(r"[0-9a-f]{64}\.page")


class DiskTier:
    """Pages in a folder, at most `max_bytes` of files, the least recently used of them deleted first.

    `refused_at_start` lists the files that were damaged or of another format; opening the folder deleted them. Files of
    other layouts or weights stay and count towards the bound: a folder shared between models stays bounded too.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._family = Family()
        self._serial = count()
        self._stamp = 0
        self.used_bytes = 0
        self.refused_at_start: list[Refusal] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._shrink()

    def __len__(self) -> int:
        """Files in the tier."""
        return len(self._sizes)

    def __contains__(self, key: PageKey) -> bool:
        """Whether a file of this identity is there."""
        return _name(key) in self._sizes

    def put(self, key: PageKey, payload: Payload) -> Refusal | None:
        """Write the page unless it is there already; a file that is another page is replaced. A full or broken disk
        is a refusal, not an exception.
        """
        name = _name(key)
        size = HEADER_BYTES + len(payload)
        if name in self._sizes:
            if _same(self._folder / name, key):
                self._touch(name)
                return None
            self._delete(name)
        if size > self._max_bytes:
            return Refusal("no_room", f"a file of {size} bytes, this tier holds {self._max_bytes}")
        if (refusal := self._write(self._folder / name, key, payload)) is not None:
            return refusal
        self._sizes[name] = size
        self.used_bytes += size
        for needless in self._family.add(key.identity, key.parent, key.tokens):
            self._delete(_named(needless))
        self._shrink()
        return None

    def nearest(self, parent: bytes, wanted: Tokens) -> Tokens | None:
        """The tokens of the page stored after `parent` that shares the longest start with `wanted`, if any does."""
        return self._family.nearest(parent, wanted)

    def save(self, key: PageKey, read: Callable[[], Payload]) -> Refusal | None:
        """`put`, reading the page only where no sound file is there: what was computed anew heals a damaged one."""
        found = self.get(key)
        return self.put(key, read()) if found is None or isinstance(found, Refusal) else None

    def used(self, keys: Sequence[bytes]) -> None:
        """Count a use of these pages of one prompt; the order of files that were used together is last to first."""
        for identity in reversed(keys):
            if (name := _named(identity)) in self._sizes:
                self._touch(name)

    def get(self, key: PageKey) -> Payload | Refusal | None:
        """The verified payload. A damaged file is deleted; one that is merely another page stays."""
        name = _name(key)
        if name not in self._sizes:
            return None
        try:
            found = unpack_page((self._folder / name).read_bytes(), key)
        except OSError as error:
            found = Refusal("unreadable", f"{name}: {error.strerror}")
        if not isinstance(found, Refusal):
            self._touch(name)
        elif found.reason in CORRUPT:
            self._delete(name)
        return found

    def flush(self) -> None:
        """Nothing to do: what was put is on disk."""

    def _write(self, target: Path, key: PageKey, payload: Payload) -> Refusal | None:
        beside = target.with_name(f"{target.name}.{os.getpid()}-{next(self._serial)}.tmp")
        try:
            with beside.open("xb") as file:
                file.write(pack_header(key, payload))
                file.write(payload)
            written = unpack_page(beside.read_bytes(), key)
            if isinstance(written, Refusal):
                return Refusal(written.reason, f"read back after writing: {written.detail}")
            os.utime(beside, ns=self._now())
            beside.replace(target)
        except OSError as error:
            return Refusal("unreadable", f"{beside.name}: {error.strerror}")
        finally:
            with suppress(OSError):
                beside.unlink()
        return None

    def _scan(self) -> None:
        """Rebuild the index from the folder, least recently used first."""
        aged: list[tuple[int, str, Header]] = []
        for path in self._files():
            found = _examine(path)
            if isinstance(found, Refusal):
                self.refused_at_start.append(Refusal(found.reason, f"{path.name}: {found.detail}"))
                path.unlink(missing_ok=True)
            else:
                aged.append((path.stat().st_mtime_ns, path.name, found))
        for self._stamp, name, header in sorted(aged, key=lambda one: one[:2]):
            self._sizes[name] = size = HEADER_BYTES + header.length
            self._family.add(bytes.fromhex(name.removesuffix(_SUFFIX)), header.parent, header.tokens)
            self.used_bytes += size

    def _files(self) -> Iterator[Path]:
        """Our pages; what an interrupted write left beside them is deleted, anything else is not ours to touch."""
        for path in list(self._folder.iterdir()):
            if path.name.endswith(".tmp") and _SUFFIX in path.name:
                path.unlink(missing_ok=True)
            elif _NAME.fullmatch(path.name):
                yield path

    def _touch(self, name: str) -> None:
        self._sizes.move_to_end(name)
        with suppress(OSError):  # another process may have removed it; the payload in hand stays good
            os.utime(f"{self._folder}/{name}", ns=self._now())

    def _now(self) -> tuple[int, int]:
        """A time of use, later than any before: clocks of file systems tick in milliseconds."""
        self._stamp = max(time.time_ns(), self._stamp + 1)
        return self._stamp, self._stamp

    def _shrink(self) -> None:
        while self.used_bytes > self._max_bytes:
            oldest = bytes.fromhex(next(iter(self._sizes)).removesuffix(_SUFFIX))
            self._delete(_named(self._family.last_of_line(oldest)))

    def _delete(self, name: str) -> None:
        self.used_bytes -= self._sizes.pop(name)
        self._family.drop(bytes.fromhex(name.removesuffix(_SUFFIX)))
        with suppress(OSError):
            (self._folder / name).unlink()


def _name(key: PageKey) -> str:
    return _named(key.identity)


def _named(identity: bytes) -> str:
    return identity.hex() + _SUFFIX


def _same(path: Path, key: PageKey) -> bool:
    header = _examine(path)
    return not isinstance(header, Refusal) and mismatch(header, key) is None


def _examine(path: Path) -> Header | Refusal:
    """Whether a file can be a stored page at all: its header, if its length fits."""
    try:
        with path.open("rb") as file:
            header = read_header(file.read(HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        return Refusal("unreadable", str(error.strerror))
    if not isinstance(header, Refusal) and size != HEADER_BYTES + header.length:
        return Refusal("length", f"file of {size} bytes, the header says {HEADER_BYTES + header.length}")
    return header
