"""Pages outside the engine's memory: what every tier promises, the stored form of a page, and the tier in host memory.

A tier takes and gives the bytes of one page and knows nothing of their meaning. What it gives has been compared
with what was wanted, field by field, and its payload with its checksum; what differs is refused with a reason, so that
a wrong page costs a computation and never an answer.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import xxhash

from localmodel.engine.cache.family import Family
from localmodel.engine.cache.identity import PAGE_TOKENS, PageKey, Tokens, common, pack_tokens, unpack_tokens

Payload: TypeAlias = bytes | bytearray | memoryview
Reason: TypeAlias = Literal[
    "magic", "version", "layout", "root", "parent", "tokens", "prefix", "length", "checksum", "unreadable", "no_room"
]

MAGIC = b"CWPAGE\r\n"
VERSION = 2
HEADER_BYTES = 4096
"""The payload starts here: a multiple of a disk page, so that it can be read straight into place."""

_HEADER = struct.Struct(f"<8sHH16s32s32s16s{4 * PAGE_TOKENS}sQ16sH")
CORRUPT: frozenset[Reason] = frozenset({"magic", "version", "length", "checksum", "unreadable"})
"""Reasons that condemn the stored page itself; the others only say that it is another page than the one wanted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a page was not stored or not restored: one word to count by and one sentence with the facts."""

    reason: Reason
    detail: str


class PageBytes(Protocol):
    """A tier: bytes of pages by key. Bounded; reading removes nothing but what proves corrupt."""

    def put(self, key: PageKey, payload: Payload) -> Refusal | None:
        """Keep a copy of the page, in place of another one of the same identity. None: it is kept (or was already)."""

    def get(self, key: PageKey) -> Payload | Refusal | None:
        """The verified bytes; a refusal if what is stored is not this page; None if nothing is stored."""

    def __contains__(self, key: PageKey) -> bool:
        """Whether something is stored under this identity; only `get` knows whether it is right."""

    def nearest(self, parent: bytes, wanted: Tokens) -> Tokens | None:
        """The tokens of the page stored after `parent` that shares the longest start with `wanted`, if any does."""

    def save(self, key: PageKey, read: Callable[[], Payload]) -> Refusal | None:
        """Have the page where it survives this process, if there is such a place; read it only if it is not there."""

    def used(self, keys: Sequence[bytes]) -> None:
        """Pages of these identities, first to last of one prompt, have been used without asking here."""

    def flush(self) -> None:
        """Bring what would be lost at the end of the process to a place where it survives, if there is one."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a stored page: layout, place in the chain, tokens, and the payload's length and checksum."""

    layout: bytes
    root: bytes
    parent: bytes
    check: bytes
    tokens: tuple[int, ...]
    length: int
    checksum: bytes


def pack_header(key: PageKey, payload: Payload) -> bytes:
    """The 4096 bytes before a payload; unused ones are zero."""
    tokens = pack_tokens(key.tokens)
    digest = xxhash.xxh3_128_digest(payload)
    fields = (key.layout, key.root, key.parent, key.check, tokens, len(payload), digest, len(key.tokens))
    return _HEADER.pack(MAGIC, VERSION, PAGE_TOKENS, *fields).ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes) -> Header | Refusal:
    """The header in the first 4096 bytes of a stored page, or why it is none."""
    if len(data) < HEADER_BYTES:
        return Refusal("length", f"{len(data)} bytes, the header alone has {HEADER_BYTES}")
    magic, version, count, layout, root, parent, check, tokens, length, digest, filled = _HEADER.unpack_from(data)
    if magic != MAGIC or data[_HEADER.size : HEADER_BYTES].strip(b"\0"):
        return Refusal("magic", "does not look like a stored page")
    if (version, count) != (VERSION, PAGE_TOKENS):
        return Refusal("version", f"format {version}, pages of {count} tokens; wanted {VERSION} and {PAGE_TOKENS}")
    if not 1 <= filled <= PAGE_TOKENS or any(tokens[4 * filled :]):
        return Refusal("magic", f"{filled} tokens of a page cannot be filled")
    return Header(layout, root, parent, check, unpack_tokens(tokens, filled), length, digest)


def mismatch(found: PageKey | Header, wanted: PageKey) -> Refusal | None:
    """The first field in which a stored page is another one than that wanted."""
    if found.layout != wanted.layout:
        return Refusal("layout", "stored with another layout of the page")
    if found.root != wanted.root:
        return Refusal("root", "stored under other weights, tokenizer, template, dtype, layout, numerics or namespace")
    if found.parent != wanted.parent:
        return Refusal("parent", "stored after another page than the one before it here")
    if found.tokens != wanted.tokens:
        return Refusal("tokens", "stored for other tokens")
    if found.check != wanted.check:
        return Refusal("prefix", "stored after another prefix (the identities collide)")
    return None


def unpack_page(data: bytes, wanted: PageKey) -> memoryview | Refusal:
    """The payload of a stored page, verified against the key and its checksum, or why it is refused."""
    header = read_header(data[:HEADER_BYTES])
    if isinstance(header, Refusal):
        return header
    if (wrong := mismatch(header, wanted)) is not None:
        return wrong
    payload = memoryview(data)[HEADER_BYTES:]
    if len(payload) != header.length:
        return Refusal("length", f"payload of {len(payload)} bytes, the header says {header.length}")
    if xxhash.xxh3_128_digest(payload) != header.checksum:
        return Refusal("checksum", f"the checksum of {len(payload)} bytes does not match")
    return payload


@dataclass(frozen=True, slots=True)
class _Kept:
    key: PageKey
    payload: bytes
    checksum: bytes


class HostTier:
    """Pages in host memory, at most `max_bytes` of payload. What it drops, least recently used first, goes `below`."""

    def __init__(self, max_bytes: int, below: PageBytes | None = None) -> None:
        self._max_bytes = max_bytes
        self._below = below
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._family = Family()
        self.used_bytes = 0

    def __len__(self) -> int:
        """Pages kept here, without those below."""
        return len(self._kept)

    def __contains__(self, key: PageKey) -> bool:
        """Whether something is stored under this identity, here or below."""
        return key.identity in self._kept or (self._below is not None and key in self._below)

    def put(self, key: PageKey, payload: Payload) -> Refusal | None:
        """Keep a copy of the page; one larger than the whole tier goes below at once."""
        if (kept := self._kept.get(key.identity)) is not None:
            if mismatch(kept.key, key) is None:
                self._kept.move_to_end(key.identity)
                return None
            self._discard(key.identity)
        if len(payload) > self._max_bytes:
            return self._spill(key, payload)
        data = bytes(payload)
        self._kept[key.identity] = _Kept(key, data, xxhash.xxh3_128_digest(data))
        self.used_bytes += len(data)
        for needless in self._family.add(key.identity, key.parent, key.tokens):
            self._discard(needless)
        while self.used_bytes > self._max_bytes:
            old = self._discard(self._family.last_of_line(next(iter(self._kept))))
            self._spill(old.key, old.payload)
        return None

    def get(self, key: PageKey) -> Payload | Refusal | None:
        """The verified bytes from here, else from below."""
        kept = self._kept.get(key.identity)
        if kept is None:
            return None if self._below is None else self._below.get(key)
        if (wrong := mismatch(kept.key, key)) is not None:
            return wrong
        if xxhash.xxh3_128_digest(kept.payload) != kept.checksum:
            self._discard(key.identity)
            return Refusal("checksum", f"the checksum of {len(kept.payload)} bytes in host memory does not match")
        self._kept.move_to_end(key.identity)
        return kept.payload

    def nearest(self, parent: bytes, wanted: Tokens) -> Tokens | None:
        """The better one of those here and below."""
        here = self._family.nearest(parent, wanted)
        below = None if self._below is None else self._below.nearest(parent, wanted)
        return max(here or (), below or (), key=lambda one: common(one, wanted)) or None

    def save(self, key: PageKey, read: Callable[[], Payload]) -> Refusal | None:
        """Have it below; without anything below, here."""
        return self.put(key, read()) if self._below is None else self._below.save(key, read)

    def used(self, keys: Sequence[bytes]) -> None:
        """For those below: what is here has its order from being put and got."""
        if self._below is not None:
            self._below.used(keys)

    def flush(self) -> None:
        """Copy everything below, so that it survives this process; oldest first, to keep the order there."""
        if self._below is not None:
            for kept in self._kept.values():
                self._below.put(kept.key, kept.payload)
            self._below.flush()

    def _discard(self, identity: bytes) -> _Kept:
        kept = self._kept.pop(identity)
        self._family.drop(identity)
        self.used_bytes -= len(kept.payload)
        return kept

    def _spill(self, key: PageKey, payload: Payload) -> Refusal | None:
        if self._below is None:
            return Refusal("no_room", f"a page of {len(payload)} bytes, this tier holds {self._max_bytes}")
        return self._below.put(key, payload)
