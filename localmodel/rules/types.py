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
Boundaries: TypeAlias = Literal["markers", "every_block", "message_ends", "units", "handles"]
ROUTING = 3
_EFFECT = {"tools": 0, "system": 1, "messages": 2, "routing": ROUTING}
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

    `invalidation` maps a parameter to the first level that it invalidates (0 tools, 1 system, 2 messages; `ROUTING`:
    it is no part of the key, but another value may reach a machine that does not hold the entry).
    `values` holds the provenance of each rule by id, for verdicts to cite.

    Lifetimes come in two classes, called by their names at Anthropic: "5m" is a provider's shorter one, "1h" its
    longer one. `ttl_s` is when an entry is certain to be gone; where a provider gives a range, entries are certain to
    live for `ttl_sure_s` and expected to for `ttl_likely_s`.

    boundaries    where entries end: at markers, at every block (any common beginning), at message ends, at units that
                  the provider persists, or at handles made beforehand
    unmarked      the same for requests without a marker, where those are cached too
    interval      only every so many tokens a prefix can end (0: anywhere); `granularity` is the unit of reported reads
    rounding      tokens by which a read may fall short without that being a loss
    guaranteed    whether a hit is promised; where not, a prediction is an upper bound
    evicts        entries do not run out but are dropped when memory is needed
    lookup_first / lookup_latest / lookup_ends   breakpoints and message ends that a request looks at
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
    boundaries: Boundaries = "markers"
    unmarked: Boundaries | None = None
    interval: int = 0
    granularity: int = 1
    rounding: int = 0
    guaranteed: bool = True
    writes_reported: bool = True
    ttl_sure_s: Mapping[Ttl, int] = field(default_factory=dict)
    ttl_likely_s: Mapping[Ttl, int] = field(default_factory=dict)
    evicts: bool = False
    refresh_on_read: bool = True
    last_token_computed: bool = False
    lookup_first: int = 0
    lookup_latest: int = 0
    lookup_ends: int = 0

    def lifetime(self, ttl: Ttl) -> RuleValue | None:
        """The rule that gives the (longest) lifetime of entries of a class."""
        word = "short" if ttl == "5m" else "long"
        return self.values.get(f"ttl_seconds_{ttl}") or self.values.get(f"ttl_max_seconds_{word}")

    def sure_s(self, ttl: Ttl) -> int:
        """Seconds for which an entry of this class is certain to live, short of eviction."""
        return self.ttl_sure_s.get(ttl, self.ttl_s[ttl])

    def likely_s(self, ttl: Ttl) -> int:
        """Seconds after which an entry of this class is probably gone."""
        return self.ttl_likely_s.get(ttl, self.ttl_s[ttl])


def writes_reported(rules: Rules, style: Boundaries) -> bool:
    """Whether bills have a class of writes: implicit caching beside explicit markers has none."""
    return rules.writes_reported and (rules.boundaries != "markers" or style == "markers")


def rules_of(digest: str, rows: Mapping[str, RuleValue]) -> Rules:
    """The rules in force, from one row for each rule."""
    value = {rule: row.value for rule, row in rows.items()}
    named = {rule.removeprefix("invalidates_"): value[rule] for rule in rows if rule.startswith("invalidates_")}
    explicit = "ttl_seconds_5m" in rows
    short, long = ("_5m", "_1h") if explicit else ("_short", "_long")
    lives = "ttl_seconds" if explicit else "ttl_max_seconds"
    default: Ttl = "5m" if value.get("default_ttl", value.get("default_lifetime")) in ("5m", "short") else "1h"
    return Rules(
        ruleset=digest,
        max_breakpoints=value.get("max_breakpoints", 0),
        lookback=value.get("lookback_positions", 0),
        collapse=frozenset(value.get("lookback_collapse", ())),
        ttl_s={"5m": value[lives + short], "1h": value[lives + long]},
        default_ttl=default,
        min_tokens=value["min_tokens"],
        min_tokens_known=bool(rows["min_tokens"].models) or rows["min_tokens"].status == "documented",
        automatic=value.get("automatic_breakpoint", True),
        cannot_mark=frozenset(value.get("cannot_mark", ())),
        implicit_kinds=frozenset(value.get("implicit_breakpoints", ())),
        implicit_ttl=value.get("implicit_ttl", "5m"),
        strips_thinking=value.get("strips_thinking", False),
        readable_fallback_s=value["readable_fallback_seconds"],
        refresh_breakpoints=value.get("refresh_breakpoints", True),
        invalidation={name: _EFFECT[effect] for name, effect in named.items()},
        rates=Rates(value["write_multiplier" + short], value["write_multiplier" + long], value["read_multiplier"]),
        values=rows,
        boundaries=value.get("boundaries", "markers"),
        unmarked=None if value.get("unmarked", "nothing") == "nothing" else value["unmarked"],
        interval=value.get("boundary_interval_tokens", 0),
        granularity=max(1, value.get("read_granularity_tokens", 1)),
        rounding=value.get("rounding_tokens", 0),
        guaranteed=value.get("guaranteed", True),
        writes_reported=value.get("writes_reported", True),
        ttl_sure_s={} if explicit else {"5m": value["ttl_seconds_short"], "1h": value["ttl_seconds_long"]},
        ttl_likely_s={}
        if explicit
        else {"5m": value["ttl_likely_seconds_short"], "1h": value["ttl_likely_seconds_long"]},
        evicts=value.get("lifetime_ends") == "eviction",
        refresh_on_read=value["refresh_on_read"],
        last_token_computed=value.get("last_token_computed", False),
        lookup_first=value.get("lookup_explicit_first", 0),
        lookup_latest=value.get("lookup_explicit_latest", 0),
        lookup_ends=value.get("lookup_message_ends", 0),
    )


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
    (-1: none), `last_index` the last block written or read (-1: none). A read below `least_tokens` is less than the
    rules let expect; it is less than `read_tokens` where part of the hit rests on what the client sent back. `style`
    names the matcher that answered.
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
    least_tokens: int = 0
    style: Boundaries = "markers"

    @property
    def reports_writes(self) -> bool:
        """Whether the provider's bill has a class of writes for such a request."""
        return writes_reported(self.rules, self.style)

    @property
    def promised(self) -> bool:
        """Whether the provider promises the hit; where not, it may miss and nobody is to blame."""
        return self.rules.guaranteed or self.style == "markers"

    @property
    def write_tokens(self) -> int:
        """Tokens written, of all lifetimes."""
        return self.write_5m_tokens + self.write_1h_tokens
