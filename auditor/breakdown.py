"""Sums of calls by day, hour, session, model, agent, kind, project or cause, each as one table.

A day is one of a time zone, so it may have 23 or 25 hours, and of an hour that comes twice each is a row of its own.
`ceiling_ratio` is the hit ratio had nothing been lost. `lost_usd` is what lost tokens cost beyond a read, a fact;
`avoidable_usd` is what a replay proves that it need not have cost, and empty where nothing could be replayed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from auditor.digest_totals import Amount, Group, Prices, add, grouped
from auditor.digests import Seen
from auditor.pricing import PriceList
from auditor.tables import Cell, Column, Table
from auditor.totals import CauseSum, Sum

By: TypeAlias = Literal["day", "hour", "session", "model", "agent", "kind", "cause", "project"]
BY: tuple[By, ...] = get_args(By)

UNKNOWN = "unknown"

_COLUMNS = (
    Column("calls", "count"),
    Column("input_tokens", "count"),
    Column("read_tokens", "count"),
    Column("write_tokens", "count"),
    Column("uncached_tokens", "count"),
    Column("output_tokens", "count"),
    Column("hit_ratio", "ratio"),
    Column("ceiling_ratio", "ratio"),
    Column("lost_tokens", "count"),
    Column("lost_usd", "usd"),
    Column("avoidable_usd", "usd"),
    Column("cost_usd", "usd"),
    Column("other_currencies", "text"),
    Column("partial", "flag"),
)

_CAUSE_COLUMNS = (
    Column("cause", "text"),
    Column("calls", "count"),
    Column("tokens", "count"),
    Column("written_tokens", "count"),
    Column("uncached_tokens", "count"),
    Column("lost_usd", "usd"),
    Column("avoidable_usd", "usd"),
)


@dataclass(slots=True)
class _Line:
    """The sums of one row. `tokens` counts all known input, also of calls that do not say what was read."""

    sums: Sum = field(default_factory=Sum)
    tokens: int = 0
    lost: int = 0
    again: Decimal | None = Decimal(0)
    avoidable: Decimal | None = None
    unpriced: bool = False

    def take(self, group: Group, amount: Amount) -> None:
        add(group, amount, [self.sums])
        self.tokens += amount.tokens[0]
        self.unpriced = self.unpriced or (amount.row is None and bool(group.known & 1))
        self.lost += amount.lost
        self.again = None if self.again is None or amount.again is None else self.again + amount.again

    def cells(self, label: str) -> tuple[Cell, ...]:
        one = self.sums
        ceiling = None if not one.rated_input else round(min(1, (one.rated_read + self.lost) / one.rated_input), 6)
        partial = self.unpriced or bool(one.unknown_calls) or bool(one.reasons)
        other = ", ".join(f"{currency} {amount:,.2f}" for currency, amount in one.other.items()) or None
        return (
            *(label, one.calls, self.tokens, one.read_tokens, one.write_tokens, one.uncached_tokens, one.output_tokens),
            *(one.hit_ratio, ceiling, self.lost, self.again if self.lost else None, self.avoidable),
            *(one.usd if one.priced_calls > 0 and (one.usd or not one.other) else None, other, partial),
        )


def breakdown(
    by: By, calls: Sequence[Seen], prices: PriceList, zone: tzinfo, avoidable: Mapping[int, Decimal] | None = None
) -> Table:
    """Sums of calls by one of `BY` except cause. `avoidable` is proved money by the place of a call in `calls`."""
    label, lines, whole = labels(by, zone), defaultdict[str, _Line](_Line), _Line()
    for group, amount in grouped(calls, Prices(prices), label).items():
        lines[group.label].take(group, amount)
        whole.take(group, amount)
    for place, usd in (avoidable or {}).items():
        for line in (lines[label(calls[place])], whole):
            line.avoidable = (line.avoidable or Decimal(0)) + usd
    names = sorted(lines, key=_moment if by in ("day", "hour") else lambda name: _weight(name, lines[name]))
    notes = [f"{by}s of {zone}"] if by in ("day", "hour") else []
    rows = [lines[name].cells(name) for name in names]
    return Table(by, (Column(by, "text"), *_COLUMNS), rows, whole.cells("total"), notes)


def causes(found: Mapping[str, CauseSum]) -> Table:
    """Where paid tokens went: again for a cause, or as new content."""
    rows: list[tuple[Cell, ...]] = [
        (
            *(name, each.calls, each.tokens, each.written_tokens, each.uncached_tokens),
            *(each.again_usd if each.again_usd else None, each.avoidable_usd if each.avoidable_equivalents else None),
        )
        for name, each in found.items()
    ]
    return Table("cause", _CAUSE_COLUMNS, rows)


def labels(by: By, zone: tzinfo) -> Callable[[Seen], str]:
    """What a call is counted under."""
    if by in ("day", "hour"):
        return _times(zone, hours=by == "hour")
    if by == "session":
        return lambda seen: seen.trace or UNKNOWN
    if by == "project":
        return lambda seen: seen.project or UNKNOWN
    if by == "model":
        return lambda seen: seen.model or UNKNOWN
    return (lambda seen: seen.agent) if by == "agent" else (lambda seen: seen.kind)


def _times(zone: tzinfo, *, hours: bool) -> Callable[[Seen], str]:
    """The local day, or the local hour with its offset from UTC: it tells an hour from the same one repeated."""

    @lru_cache(maxsize=4096)
    def name(quarter: int) -> str:
        # Offsets from UTC are whole quarters of an hour, so all moments of one have one day and one hour.
        local = datetime.fromtimestamp(quarter * 900, zone)
        return local.strftime("%Y-%m-%dT%H:00%z") if hours else local.strftime("%Y-%m-%d")

    return lambda seen: UNKNOWN if seen.at is None else name(int(seen.at // 900))


def _moment(name: str) -> tuple[bool, float]:
    """In order of time; of an hour that comes twice the first is the one with the larger offset."""
    return name == UNKNOWN, 0 if name == UNKNOWN else datetime.fromisoformat(name).timestamp()


def _weight(name: str, line: _Line) -> tuple[Decimal, int, str]:
    return -line.sums.usd, -line.tokens, name
