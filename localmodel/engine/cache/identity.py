"""Who a page is: a chain of keyed 256-bit digests from everything its numbers depend on down to its own tokens.

    root      = H(key = b"",  every field of `Root`)
    page 0    = H(key = root, root + the page's 16 token ids)
    page i    = H(key = root, page i-1 + the page's 16 token ids)
    a tail    = the same over its ids, filled up with zeros, + their number

H is BLAKE2b-256. A digest finds a page; it is never believed alone. The token ids are compared on every hit, and beside
the chain runs an independent one (`check`, xxh3-128), so that a collision in H alone cannot join two prefixes.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import TypeAlias

import xxhash

from localmodel.engine.cache.errors import CacheError

PAGE_TOKENS = 16
"""Tokens of one page. 16 tokens of the default model in bf16 are 368,640 bytes: 90 disk pages of 4 KiB, one read."""

MAX_TOKEN_ID = 2**32 - 1
_TOKENS = struct.Struct(f"<{PAGE_TOKENS}I")

Tokens: TypeAlias = tuple[int, ...]
Identify: TypeAlias = Callable[[bytes, bytes], bytes]
"""(key of at most 64 bytes, data) -> digest of exactly 32 bytes. Given from outside only to test collisions."""


@dataclass(frozen=True, slots=True)
class Root:
    """All that the numbers in a page depend on besides its tokens, and who may see them.

    Two roots that differ in any field share nothing. `namespace` is the scope of sharing: a tenant, a key, an epoch.
    """

    weights: str
    tokenizer: str
    template: str
    dtype: str
    layout: str
    numerics: str
    namespace: str

    def canonical(self) -> bytes:
        """Every field with its length before it, so that no two different roots give the same bytes."""
        parts = [text.encode() for text in astuple(self)]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)


@dataclass(frozen=True, slots=True)
class Link:
    """One place in a chain: what a page's children need to know of it."""

    identity: bytes
    check: bytes


@dataclass(frozen=True, slots=True)
class PageKey:
    """What a stored page must equal to be used: 32-byte digests, a 16-byte check and layout, and 1 to 16 token ids."""

    identity: bytes
    layout: bytes
    root: bytes
    parent: bytes
    check: bytes
    tokens: Tokens


def blake2b_256(key: bytes, data: bytes) -> bytes:
    """The digest H of the chain."""
    return hashlib.blake2b(data, digest_size=32, key=key, person=b"cachewright/page").digest()


def layout_id(layout: str) -> bytes:
    """16 bytes that stand for a layout in a stored page."""
    return hashlib.blake2b(layout.encode(), digest_size=16, person=b"cachewright/lay").digest()


def pack_tokens(tokens: Tokens) -> bytes:
    """Up to 16 token ids as 64 bytes, little endian, all 32 bits of each (cut ids have mixed up prompts elsewhere)."""
    return _TOKENS.pack(*tokens, *(0,) * (PAGE_TOKENS - len(tokens)))


def unpack_tokens(data: bytes, count: int) -> Tokens:
    """The inverse of `pack_tokens`, given how many there were."""
    return _TOKENS.unpack(data)[:count]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share at their start."""
    if a == b:
        return len(a)
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def check_ids(tokens: Sequence[int], at: int = 0) -> None:
    """Refuse ids that do not fit in 32 bits; `at` is the position of the first one, for the message."""
    if not tokens or (min(tokens) >= 0 and max(tokens) <= MAX_TOKEN_ID):
        return
    place, bad = next((i, t) for i, t in enumerate(tokens) if not 0 <= t <= MAX_TOKEN_ID)
    raise CacheError(f"token {at + place} has id {bad}, allowed are 0 to {MAX_TOKEN_ID}")


class Chain:
    """Computes the identities below one root."""

    def __init__(self, root: Root, identify: Identify = blake2b_256) -> None:
        fields = root.canonical()
        self.root = identify(b"", fields)
        self.top = Link(self.root, xxhash.xxh3_128_digest(fields))
        self._layout = layout_id(root.layout)
        self._identify = identify

    def link(self, parent: Link, tokens: Tokens) -> Link:
        """The place of a page with these tokens under `parent`."""
        data = pack_tokens(tokens)
        if len(tokens) < PAGE_TOKENS:
            data += bytes([len(tokens)])
        return Link(self._identify(self.root, parent.identity + data), xxhash.xxh3_128_digest(parent.check + data))

    def key(self, parent: Link, tokens: Tokens) -> PageKey:
        """The same as the key of a stored page."""
        link = self.link(parent, tokens)
        return PageKey(link.identity, self._layout, self.root, parent.identity, link.check, tokens)
