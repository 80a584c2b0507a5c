"""Which sessions' caches are still warm at a moment, until when, and what resuming each would cost.

An entry lives from the start of the last call that wrote or read it, for the lifetime of the latest write. Where a
provider gives a range, an entry is sure to live for the shortest lifetime and may be there until the longest. What is
said is what the rules and the bills let expect: whether a prefix is resumed as it was, the next request decides.
Where a session wrote for an hour first and for five minutes since, the part that was written for an hour outlives the
rest: such a session is partly warm.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Literal, TypeAlias

from auditor.digests import Seen
from auditor.price_rows import DOLLARS, MILLION, PriceRow, at
from auditor.pricing import PriceList
from auditor.tables import Cell, Column, Table
from localmodel.rules.book import Rulebook
from localmodel.rules.types import Rules
from traces.canonical import platform_of
from traces.schema import Ttl

State: TypeAlias = Literal["warm", "partly", "maybe", "expired", "unknown"]

MAIN_KINDS = ("main", "keepalive", "prewarm")
"""Calls that use a session's own prefix; sub-agents and side questions have prefixes of their own."""

COLUMNS = (
    Column("session", "text"),
    Column("project", "text"),
    Column("model", "text"),
    Column("state", "text"),
    Column("last_use", "time"),
    Column("until", "time"),
    Column("seconds_left", "span"),
    Column("seconds_since_expiry", "span"),
    Column("next_input_tokens", "count"),
    Column("resume_usd", "usd"),
    Column("cold_usd", "usd"),
)


@dataclass(slots=True)
class Session:
    """One conversation: its latest call, and the lifetime of its latest write (`None`: nothing says).

    `hours` are the ends, in tokens and ascending, of prefixes that were written for an hour and that every call since
    has read.
    """

    last: Seen
    ttl: Ttl | None = None
    hours: list[int] = field(default_factory=list)

    @property
    def standing(self) -> int:
        """Tokens that live for an hour from the latest call on, although later ones were written for less."""
        return self.hours[-1] if self.hours else 0

    def take(self, seen: Seen) -> None:
        """Take in the next call. In a prompt the part that is written for an hour comes first."""
        self.last, read = seen, seen.read or 0
        while self.hours and self.hours[-1] > read:
            self.hours.pop()
        if seen.write_1h:
            self.hours.append(read + seen.write_1h)
        if seen.write:
            self.ttl = _written(seen)


@dataclass(frozen=True, slots=True)
class Warmth:
    """A session at a moment. `resume_usd` is what sending its input again would cost as things stand, `cold_usd` what
    it costs once nothing is left; `None` where that is not known. `tokens` is the input of its latest call."""

    session: Seen
    state: State
    last_use: datetime
    until: datetime | None
    left: int | None
    tokens: int
    resume_usd: Decimal | None
    cold_usd: Decimal | None


def sessions(calls: Iterable[Seen]) -> list[Session]:
    """The conversations that calls belong to; calls without time or usage tell nothing."""
    found: dict[tuple[str, str], Session] = {}
    for seen in sorted((one for one in calls if _tells(one)), key=lambda one: one.at or 0):
        known = found.get((seen.trace, seen.agent))
        if known is None or known.last.model != seen.model:
            known = found[seen.trace, seen.agent] = Session(seen)
        known.take(seen)
    return [*found.values()]


def _tells(seen: Seen) -> bool:
    return seen.at is not None and seen.input is not None and seen.read is not None and seen.kind in MAIN_KINDS


def _written(seen: Seen) -> Ttl | None:
    """The lifetime of all that a call wrote: as billed, of both the shorter; else as asked for."""
    if seen.write_5m:
        return "5m"
    return "1h" if seen.write_1h else seen.asked


def warmth(session: Session, book: Rulebook, prices: PriceList, now: datetime) -> Warmth:
    """How a session stands at a moment."""
    last = session.last
    used, tokens = datetime.fromtimestamp(last.at or 0, UTC), last.input or 0
    rules = book.rules(last.provider, last.model or "", platform_of(None, last.provider), now)
    state, left = _state(session, rules, (now - used).total_seconds())
    until = None if left is None else datetime.fromtimestamp(now.timestamp() + left, UTC)
    row = prices.rate(last.provider, last.model, now, tuple(last.terms))
    cached = (last.read or 0) + (last.write or 0) if last.write is not None and _writes(rules) else tokens
    there = {"warm": cached, "partly": session.standing, "expired": 0}.get(state)
    resume, cold = (
        None if read is None else _dollars(row, session.ttl, read, cached - read, tokens - cached, tokens)
        for read in (there, 0)
    )
    return Warmth(last, state, used, until, left, tokens, resume, cold)


def _writes(rules: Rules | None) -> bool:
    return rules is not None and rules.writes_reported


def _state(session: Session, rules: Rules | None, idle: float) -> tuple[State, int | None]:
    """Warm or not, and the seconds that are left (negative: since when it is gone)."""
    if rules is None or rules.evicts:
        return "unknown", None
    ttl = session.ttl or rules.default_ttl
    longest, sure = rules.ttl_s[ttl], rules.sure_s(ttl)
    if idle < sure:
        return "warm", round(sure - idle)
    hour = rules.ttl_s["1h"]
    if session.standing and longest < hour:
        return ("partly" if idle < hour else "expired"), round(hour - idle)
    return ("maybe" if idle < longest else "expired"), round(longest - idle)


def _dollars(
    row: PriceRow | None, ttl: Ttl | None, read: int, written: int, uncached: int, length: int
) -> Decimal | None:
    """What the input of the next request costs, at the length of the latest one."""
    if row is None or row.currency != DOLLARS:
        return None
    base, reading = at(row.input, length), at(row.read, length)
    writing = at(row.write_1h if ttl == "1h" else row.write_5m, length)
    writing = base if writing is None else writing
    if base is None or writing is None or reading is None:
        return None
    return (read * reading + written * writing + uncached * base) / MILLION


def table(found: Iterable[Warmth], zone: tzinfo, cold: int | None) -> Table:
    """Sessions that may be warm, those first that end soonest; then the `cold` latest others (`None`: all)."""
    order = {"warm": 0, "partly": 1, "maybe": 1, "expired": 2, "unknown": 2}
    listed = sorted(found, key=lambda one: (order[one.state], one.left or 0 if order[one.state] < 2 else 0))
    alive = [one for one in listed if order[one.state] < 2]
    gone = sorted((one for one in listed if order[one.state] == 2), key=lambda one: one.last_use, reverse=True)
    shown = [*alive, *gone[: len(gone) if cold is None else cold]]
    left_out = len(alive) + len(gone) - len(shown)
    notes = [f"and {left_out:,} more that are no longer warm (--all lists them)"] if left_out else []
    return Table("now", COLUMNS, [_cells(one, zone) for one in shown], None, [f"times in {zone}", *notes])


def _cells(one: Warmth, zone: tzinfo) -> tuple[Cell, ...]:
    left = one.left
    return (
        *(one.session.trace, one.session.project, one.session.model, one.state, one.last_use.astimezone(zone)),
        *(None if one.until is None else one.until.astimezone(zone),),
        *(left if left is not None and left >= 0 else None, -left if left is not None and left < 0 else None),
        *(one.tokens, one.resume_usd, one.cold_usd),
    )
