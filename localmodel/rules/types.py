"""Values of the symbolic cache: entries, state, outcome, and the rates that money needs.

A rule's value is dated and carries where it comes from (`RuleValue`); `Rules` is what is in force for one model,
platform and moment. See `localmodel/rules/anthropic.toml` for the data and `step.py` for the semantics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from rpds import HashTrieMap

from traces.schema import Ttl

REFRESH_AT = 0.9
"""A keep-alive goes out when this share of an entry's lifetime has passed since it was last used."""

Status: TypeAlias = Literal["documented", "measured", "reported", "assumed"]
Engaged: TypeAlias = Literal["yes", "no_breakpoint", "below_minimum"]


@dataclass(frozen=True, slots=True)
class RuleValue:
    """One dated value of one rule, with its provenance. `since` is inclusive, `until` exclusive."""

    id: str
    value: Any
    status: Status
    checked: date
    source: str
    models: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    since: date | None = None
    until: date | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices relative to one ordinary input token; what keep-alive and placement decisions need (scale free)."""

    write_5m: Decimal
    write_1h: Decimal
    read: Decimal


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules in force for one model on one platform at one moment.

    `invalidation` maps a parameter to the first level that it invalidates (0 tools, 1 system, 2 messages).
    `values` holds the provenance of each rule by id, for verdicts to cite.
    """

    ruleset: str
    max_breakpoints: int
    lookback: int
    collapse: frozenset[str]
    ttl_s: Mapping[Ttl, int]
    default_ttl: Ttl
    min_tokens: int
    min_tokens_known: bool
    automatic: bool
    cannot_mark: frozenset[str]
    implicit_kinds: frozenset[str]
    implicit_ttl: Ttl
    strips_thinking: bool
    readable_fallback_s: int
    refresh_breakpoints: bool
    invalidation: Mapping[str, int]
    rates: Rates
    values: Mapping[str, RuleValue]


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A place where the provider looks up and writes: explicit marker, automatic one, or added by the provider."""

    index: int
    ttl: Ttl
    origin: Literal["explicit", "automatic", "implicit"] = "explicit"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one write left in the provider's cache. Alive while `now - used_at < ttl_s`; readable from `readable_at`."""

    ttl: Ttl
    ttl_s: int
    written_at: datetime
    used_at: datetime
    readable_at: datetime


EntryKey: TypeAlias = tuple[bytes, bytes]
"""(digest of the content up to the boundary, digest of scope, model and parameters for that boundary's level)."""


@dataclass(frozen=True, slots=True)
class CacheState:
    """All entries of a provider that the calls so far have left; a persistent map, so that `step` stays pure."""

    entries: "HashTrieMap[EntryKey, Entry]" = field(default_factory=HashTrieMap)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rules predict for one call, in tokens, and the boundaries it rests on.

    read + write_5m + write_1h + uncached = the whole input. `read_index` is the block at which the hit ends
    (-1: none), `last_index` the last block written or read (-1: none).
    """

    read_tokens: int
    write_5m_tokens: int
    write_1h_tokens: int
    uncached_tokens: int
    read_index: int
    last_index: int
    breakpoints: tuple[Breakpoint, ...]
    salts: tuple[bytes, bytes, bytes]
    engaged: Engaged
    rejected: tuple[str, ...]
    rules: Rules

    @property
    def write_tokens(self) -> int:
        """Tokens written, of all lifetimes."""
        return self.write_5m_tokens + self.write_1h_tokens
