"""Sums of digests: as `auditor.totals` makes them of audited calls, a group of like calls at a time.

A price is a factor of tokens, so calls that one price row prices alike are added up before they are priced; sums of
decimals come out the same, to the digit.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

from auditor.digests import Seen
from auditor.price_rows import PriceRow, at
from auditor.pricing import DEFAULT_RATES, PriceList, cost, equivalents, rates_of
from auditor.totals import NECESSARY, UNRATED_KINDS, CauseSum, Sum, Totals, Unpriced, again_usd
from traces.schema import Kind, Ttl, Usage


class Group(NamedTuple):
    """Calls that are priced alike: what they have in common. `label` is what a table sorts them by."""

    label: str
    provider: str
    model: str | None
    kind: Kind
    known: int
    asked: Ttl | None
    row: int


@dataclass(slots=True)
class Amount:
    """Their number and tokens: whole input, read, written (all, short, long), output, and those lost.

    `again` is what the lost ones cost beyond a read, `None` where that has no price.
    """

    row: PriceRow | None
    calls: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * 6)
    lost: int = 0
    again: Decimal | None = Decimal(0)


class Prices:
    """Price rows in force, each flattened to the length tier of a call, so that equal prices are one object."""

    def __init__(self, prices: PriceList) -> None:
        self._list = prices
        self._single: dict[tuple[str, str], PriceRow | None] = {}
        self._bounds: dict[int, tuple[PriceRow, list[int]]] = {}
        self._flat: dict[tuple[int, int], PriceRow] = {}

    def row(self, seen: Seen) -> PriceRow | None:
        """The prices of one call, `None` where its model has none."""
        if seen.model is None:
            return None
        if seen.terms:
            moment = None if seen.at is None else datetime.fromtimestamp(seen.at, UTC)
            row = self._list.rate(seen.provider, seen.model, moment, tuple(seen.terms))
            return None if row is None else self._tier(row, seen.input or 0)
        key = (seen.provider, seen.model)
        row = self._single[key] if key in self._single else self._dated(key, seen)
        if row is None:
            return None
        return self._tier(row, seen.input or 0)

    def _dated(self, key: tuple[str, str], seen: Seen) -> PriceRow | None:
        history = self._list.history(*key)
        first = history[0] if history else None
        if len(history) < 2 and (first is None or not (first.since or first.until or first.window)):
            self._single[key] = first
            return first
        return self._list.rate(*key, None if seen.at is None else datetime.fromtimestamp(seen.at, UTC))

    def _tier(self, row: PriceRow, length: int) -> PriceRow:
        known = self._bounds.get(id(row))
        if known is None:
            prices = (row.input, row.read, row.write_5m, row.write_1h, row.output)
            tiers = [price for price in prices if price is not None and not isinstance(price, Decimal)]
            known = self._bounds[id(row)] = row, sorted({above for price in tiers for above, _ in price if above})
        bounds = known[1]
        if not bounds:
            return row
        key = (id(row), bisect_left(bounds, length))
        flat = self._flat.get(key)
        if flat is None:
            base, read, output = at(row.input, length), at(row.read, length), at(row.output, length)
            short, long = at(row.write_5m, length), at(row.write_1h, length)
            flat = replace(row, input=base, read=read, write_5m=short, write_1h=long, output=output)
            self._flat[key] = flat
        return flat


def grouped(calls: Iterable[Seen], rows: Prices, label: Callable[[Seen], str] | None = None) -> dict[Group, Amount]:
    """Calls added up, those together that have the same label, the same price, and the same figures known."""
    groups: dict[tuple[str, str, str | None, Kind, int, Ttl | None, int], Amount] = {}
    for seen in calls:
        row = rows.row(seen)
        whole, read, write = seen.input, seen.read, seen.write
        short, long, output = seen.write_5m, seen.write_1h, seen.output
        known = (
            (whole is not None)
            | (read is not None) << 1
            | (write is not None) << 2
            | (short is not None) << 3
            | (long is not None) << 4
            | (output is not None) << 5
        )
        name = "" if label is None else label(seen)
        key = (name, seen.provider, seen.model, seen.kind, known, seen.asked, id(row))
        amount = groups.get(key)
        if amount is None:
            amount = groups[key] = Amount(row)
        amount.calls += 1
        tokens = amount.tokens
        tokens[0] += whole or 0
        tokens[1] += read or 0
        tokens[2] += write or 0
        tokens[3] += short or 0
        tokens[4] += long or 0
        tokens[5] += output or 0
        if seen.lost:
            again = again_usd(row, seen.usage(), *lost_as_billed(seen))
            amount.again = None if amount.again is None or again is None else amount.again + again
            amount.lost += seen.lost
    return {Group(*key): amount for key, amount in groups.items()}


def lost_as_billed(seen: Seen) -> tuple[int, int]:
    """Lost tokens that were written again, and those that were billed uncached: as written first."""
    written = seen.write or 0
    taken = min(seen.lost, written)
    return taken, min(seen.lost - taken, max((seen.input or 0) - (seen.read or 0) - written, 0))


def totals_of(calls: Sequence[Seen], prices: PriceList) -> Totals:
    """Sum up digests of sessions. Agents are not told apart."""
    rows = Prices(prices)
    groups = grouped(calls, rows)
    whole, unpriced = Sum(), defaultdict[str, Unpriced](Unpriced)
    by_kind, by_model = defaultdict[str, Sum](Sum), defaultdict[str, Sum](Sum)
    for group, amount in groups.items():
        add(group, amount, [whole, by_kind[group.kind], by_model[group.model or "unknown"]])
        if group.known & 1 and amount.row is None:
            each = unpriced[group.model or "unknown"]
            each.calls += amount.calls
            each.tokens += amount.tokens[0] + amount.tokens[5]
    return Totals(whole, dict(by_kind), {}, dict(by_model), _causes(calls, groups, rows), 0, dict(unpriced))


def _causes(calls: Iterable[Seen], groups: dict[Group, Amount], rows: Prices) -> dict[str, CauseSum]:
    """As `auditor.totals.by_cause`: lost tokens count as written first, the rest is new content."""
    causes: dict[str, CauseSum] = defaultdict(CauseSum)
    new = CauseSum()
    for group, amount in groups.items():
        if group.known & 3 == 3:
            whole, read, written = amount.tokens[:3]
            new.take(written, whole - read - written)
            new.calls += amount.calls - 1
    for seen in calls:
        if seen.lost and seen.cause is not None and seen.input is not None and seen.read is not None:
            taken, rest = lost_as_billed(seen)
            causes[seen.cause].take(taken, rest, again_usd(rows.row(seen), seen.usage(), taken, rest))
            new.take(-taken, -rest)
            new.calls -= 1
    ordered = dict(sorted(causes.items(), key=lambda pair: -pair[1].tokens))
    return ordered | {NECESSARY: new} if new.calls else ordered


def add(group: Group, amount: Amount, sums: list[Sum]) -> None:
    """Add a group to each of these sums."""
    usage = usage_of(group, amount)
    row = amount.row
    paid = cost(usage, row, tier=group.asked) if row is not None and usage.input_tokens is not None else None
    rates = (rates_of(row, usage.input_tokens or 0) if row is not None else None) or DEFAULT_RATES
    worth = equivalents(usage, rates, tier=group.asked or "5m") or Decimal(0)
    for each in sums:
        each.calls += amount.calls
        each.output_tokens += usage.output_tokens or 0
        if paid is not None:
            each.pay(paid, amount.calls)
        if usage.input_tokens is None or usage.read_tokens is None:
            each.unknown_calls += amount.calls
            continue
        each.equivalents += worth
        each.input_tokens += usage.input_tokens
        each.read_tokens += usage.read_tokens
        each.write_tokens += usage.write_tokens or 0
        each.uncached_tokens += usage.uncached_tokens or 0
        if group.kind not in UNRATED_KINDS:
            each.rated_input += usage.input_tokens
            each.rated_read += usage.read_tokens


def usage_of(group: Group, amount: Amount) -> Usage:
    """The usage of a group together; what no call of it reports is unknown."""
    return Usage(*(count if group.known >> place & 1 else None for place, count in enumerate(amount.tokens)))
