"""Sums of digests: as `auditor.totals` makes them of audited calls, a group of like calls at a time.

A price is a factor of tokens, so calls that one price row prices alike are added up before they are priced; sums of
decimals come out the same, to the digit.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeAlias

from auditor.digests import Seen
from auditor.money import DEFAULT_RATES
from auditor.price_rows import PriceRow, at
from auditor.pricing import PriceList, cost, equivalents, rates_of
from auditor.totals import NECESSARY, UNRATED_KINDS, CauseSum, Sum, Totals, Unpriced
from traces.schema import Usage

_Tokens: TypeAlias = list[int]
_Key: TypeAlias = tuple[str, str | None, str, int, int]


class _Prices:
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
        moment = None if seen.at is None else datetime.fromtimestamp(seen.at, UTC)
        if seen.terms:
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


def totals_of(calls: Iterable[Seen], prices: PriceList) -> Totals:
    """Sum up digests of sessions. Agents are not told apart."""
    rows, groups, kept = _Prices(prices), defaultdict[_Key, _Tokens](lambda: [0] * 7), dict[int, PriceRow | None]()
    causes: dict[str, CauseSum] = defaultdict(CauseSum)
    for seen in calls:
        row = rows.row(seen)
        kept[id(row)] = row
        known = (
            (seen.input is not None)
            | (seen.read is not None) << 1
            | (seen.write is not None) << 2
            | (seen.write_5m is not None) << 3
            | (seen.write_1h is not None) << 4
            | (seen.output is not None) << 5
        )
        tokens = groups[seen.provider, seen.model, seen.kind, id(row), known]
        tokens[0] += 1
        for place, count in enumerate(
            (seen.input, seen.read, seen.write, seen.write_5m, seen.write_1h, seen.output), 1
        ):
            tokens[place] += count or 0
        if seen.input is not None and seen.read is not None:
            _cause(seen, causes)
    whole, unpriced = Sum(), defaultdict[str, Unpriced](Unpriced)
    by_kind, by_model = defaultdict[str, Sum](Sum), defaultdict[str, Sum](Sum)
    for (_, model, kind, row_id, known), tokens in groups.items():
        sums = [whole, by_kind[kind], by_model[model or "unknown"]]
        _add(tokens, known, kind, kept[row_id], sums)
        if known & 1 and kept[row_id] is None:
            each = unpriced[model or "unknown"]
            each.calls += tokens[0]
            each.tokens += tokens[1] + tokens[6]
    ordered = dict(sorted(causes.items(), key=lambda pair: (pair[0] == NECESSARY, -pair[1].tokens)))
    return Totals(whole, dict(by_kind), {}, dict(by_model), ordered, 0, dict(unpriced))


def _cause(seen: Seen, causes: dict[str, CauseSum]) -> None:
    """As `auditor.totals.by_cause`: lost tokens count as written first, the rest is new content."""
    written = seen.write or 0
    uncached = (seen.input or 0) - (seen.read or 0) - written
    if seen.lost and seen.cause is not None:
        taken = min(seen.lost, written)
        rest = min(seen.lost - taken, uncached)
        _count(causes[seen.cause], taken, rest)
        written, uncached = written - taken, uncached - rest
    _count(causes[NECESSARY], written, uncached)


def _count(each: CauseSum, written: int, uncached: int) -> None:
    each.calls += 1
    each.tokens += written + uncached
    each.written_tokens += written
    each.uncached_tokens += uncached


def _add(tokens: _Tokens, known: int, kind: str, row: PriceRow | None, sums: list[Sum]) -> None:
    calls, *counts = tokens
    told = [count if known >> place & 1 else None for place, count in enumerate(counts)]
    usage = Usage(*told)
    paid = cost(usage, row) if row is not None and usage.input_tokens is not None else None
    rates = (rates_of(row, usage.input_tokens or 0) if row is not None else None) or DEFAULT_RATES
    worth = equivalents(usage, rates, tier="5m") or Decimal(0)
    for each in sums:
        each.calls += calls
        each.output_tokens += usage.output_tokens or 0
        if paid is not None:
            each.pay(paid, calls)
        if usage.input_tokens is None or usage.read_tokens is None:
            each.unknown_calls += calls
            continue
        each.equivalents += worth
        each.input_tokens += usage.input_tokens
        each.read_tokens += usage.read_tokens
        each.write_tokens += usage.write_tokens or 0
        each.uncached_tokens += usage.uncached_tokens or 0
        if kind not in UNRATED_KINDS:
            each.rated_input += usage.input_tokens
            each.rated_read += usage.read_tokens
