"""What every matcher works with: a request's plan, look-ups and updates, and how long an entry lives."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

from localmodel.rules.types import Boundaries, Breakpoint, Entry, EntryKey, Rules
from traces.schema import Prompt, Ttl

Salts = tuple[bytes, bytes, bytes]
Lookup = Callable[[EntryKey], Entry | None]
Updates = list[tuple[EntryKey, Entry]]
Points = tuple[Sequence[Breakpoint], tuple[str, ...]]
"""Breakpoints in prompt order, and why the provider would refuse the request (empty: it would not)."""
Bill = tuple[int, int, int, int]
"""(read, written for the shorter lifetime, written for the longer one, uncached) tokens."""


class Plan(NamedTuple):
    """What a request asks of the cache, apart from the moment: computed once, however often it is replayed.

    salts      key of each level, which the entry of a prefix ending there is kept under
    points     all breakpoints in prompt order; `eligible` those whose prefix reaches the minimum
    style      where entries end for this request: names its matcher
    """

    prompt: Prompt
    rules: Rules
    salts: Salts
    points: tuple[Breakpoint, ...]
    eligible: tuple[Breakpoint, ...]
    rejected: tuple[str, ...]
    style: Boundaries = "markers"

    def key(self, index: int) -> EntryKey:
        """Key of the entry that ends with block `index`."""
        return self.prompt.chain[index], self.salts[self.prompt.blocks[index].level]


@lru_cache(maxsize=4096)
def salts_of(scope: str, model: str, params: tuple[tuple[str, str], ...], rules: Rules) -> Salts:
    """Key of each level (tools, system, messages): scope, model, and the parameters that invalidate that level."""
    keys = []
    for level in range(3):
        named = [pair for pair in params if rules.invalidation.get(pair[0], 3) <= level]
        keys.append(blake2b(repr((scope, model, named)).encode(errors="replace"), digest_size=16).digest())
    return keys[0], keys[1], keys[2]


@lru_cache(maxsize=4096)
def point_at(index: int, ttl: Ttl, origin: Literal["explicit", "automatic", "implicit"] = "explicit") -> Breakpoint:
    """One object for all breakpoints of a kind at an index: a long trace keeps those of each of its calls."""
    return Breakpoint(index, ttl, origin)


def alive(entry: Entry, at: datetime) -> bool:
    """Whether the entry's lifetime, counted from the start of the request that last used it, has not run out."""
    return (at - entry.used_at).total_seconds() < entry.ttl_s


def readable(entry: Entry, at: datetime) -> bool:
    """Whether the entry is alive and the response that wrote it had begun."""
    return entry.readable_at <= at and alive(entry, at)


def refreshed(entry: Entry, at: datetime, readable_at: datetime) -> Entry:
    """The entry after another use."""
    return Entry(entry.ttl, entry.ttl_s, entry.written_at, at, readable_at)
