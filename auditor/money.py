"""Bills: tokens by class with their input-token equivalents and dollars, for single calls and whole traces."""

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from auditor.price_rows import MILLION, at
from auditor.pricing import PriceList, PriceRow, cost, equivalents, rates_of
from auditor.records import Audited
from auditor.replay import Charge, Sent
from localmodel.rules.types import Rates
from traces.schema import Ttl

_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Bill:
    """Input tokens by class, their equivalents in ordinary input tokens, and dollars (`None`: some part unpriced)."""

    calls: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    write_tokens: int = 0
    uncached_tokens: int = 0
    equivalents: Decimal = _ZERO
    usd: Decimal | None = _ZERO

    def __add__(self, other: "Bill") -> "Bill":
        return self._combined(other, 1)

    def __sub__(self, other: "Bill") -> "Bill":
        return self._combined(other, -1)

    def _combined(self, other: "Bill", sign: int) -> "Bill":
        usd = None if self.usd is None or other.usd is None else self.usd + sign * other.usd
        return Bill(
            self.calls + sign * other.calls,
            self.input_tokens + sign * other.input_tokens,
            self.read_tokens + sign * other.read_tokens,
            self.write_tokens + sign * other.write_tokens,
            self.uncached_tokens + sign * other.uncached_tokens,
            self.equivalents + sign * other.equivalents,
            usd,
        )

    @property
    def hit_ratio(self) -> float | None:
        """Read tokens over input tokens, `None` without input."""
        return self.read_tokens / self.input_tokens if self.input_tokens else None


class _Prices(NamedTuple):
    """Dollars per million tokens of each class in one tier (`None`: unpriced), and the same relative to plain input."""

    rates: Rates
    input: Decimal | None
    read: Decimal | None
    write_5m: Decimal | None
    write_1h: Decimal | None


class Money:
    """Prices the calls of one audit; holds each call's recorded bill and the total."""

    def __init__(self, calls: list[Audited], prices: PriceList) -> None:
        self._prices = prices
        self._recorded: dict[int, Bill] = {}
        self._tiers: dict[tuple[int, int], _Prices] = {}
        self._single: dict[tuple[str, str], PriceRow | None] = {}
        self.total = Bill()
        for audited in calls:
            self.total = self.total + self.recorded(audited)

    def recorded(self, audited: Audited) -> Bill:
        """Input side of the bill as the provider reported it; zero where usage is unknown."""
        known = self._recorded.get(audited.index)
        if known is None:
            known = self._recorded[audited.index] = self._bill(audited)
        return known

    def _bill(self, audited: Audited) -> Bill:
        usage, call = audited.call.usage, audited.call
        if call.failed or usage.input_tokens is None or usage.read_tokens is None:
            return Bill(1 if not call.failed else 0)
        row = self.row(audited)
        rules = audited.outcome.rules.rates if audited.outcome is not None else DEFAULT_RATES
        rates, tier = self._tier(row, usage.input_tokens, rules).rates, tier_of(audited)
        # Only the input side is compared here; output is the same under every policy.
        bare = replace(usage, output_tokens=0)
        return Bill(
            1,
            usage.input_tokens,
            usage.read_tokens,
            usage.write_tokens or 0,
            usage.uncached_tokens or 0,
            equivalents(usage, rates, tier=tier) or _ZERO,
            cost(bare, row, tier=tier).usd if row is not None else None,
        )

    def row(self, audited: Audited) -> PriceRow | None:
        """The price row in force for a call, `None` where its model is unpriced."""
        call = audited.call
        if call.model is None:
            return None
        return self._row(call.provider, call.model, call.started_at if call.clock == "utc" else None)

    def _row(self, provider: str, model: str, moment: datetime | None) -> PriceRow | None:
        key = (provider, model)
        if key in self._single:
            return self._single[key]
        history = self._prices.history(provider, model)
        if not history or (
            len(history) == 1 and not history[0].since and not history[0].until and not history[0].window
        ):
            self._single[key] = history[0] if history else None
        return self._prices.rate(provider, model, moment)

    def _tier(self, row: PriceRow | None, input_tokens: int, fallback: Rates) -> _Prices:
        if row is None:
            return _Prices(fallback, None, None, None, None)
        tiered = not all(price is None or isinstance(price, Decimal) for price in (row.input, row.read, row.write_5m))
        key = (id(row), input_tokens if tiered else 0)
        known = self._tiers.get(key)
        if known is None:
            base = at(row.input, input_tokens)
            short = at(row.write_5m, input_tokens) or base
            prices = (base, at(row.read, input_tokens), short, at(row.write_1h, input_tokens) or short)
            known = self._tiers[key] = _Prices(rates_of(row, input_tokens) or fallback, *prices)
        return known

    def predicted(self, sent: Sent, charge: Charge) -> Bill:
        """What the rules say a request is billed, at the prices of its model and time."""
        prompt, (read, write_5m, write_1h, uncached) = sent.prompt, charge
        total = read + write_5m + write_1h + uncached
        row = self._row(prompt.provider, prompt.model, sent.at) if prompt.model else None
        prices = self._tier(row, total, DEFAULT_RATES)
        rates = prices.rates
        worth = uncached + write_5m * rates.write_5m + write_1h * rates.write_1h + read * rates.read
        return Bill(1, total, read, write_5m + write_1h, uncached, worth, _dollars(charge, prices))


def _dollars(charge: Charge, prices: _Prices) -> Decimal | None:
    each = (prices.read, prices.write_5m, prices.write_1h, prices.input)
    usd = _ZERO
    for tokens, price in zip(charge, each, strict=True):
        if price is None and tokens:
            return None
        usd += tokens * (price or _ZERO)
    return usd / MILLION


DEFAULT_RATES = Rates(write_5m=Decimal("1.25"), write_1h=Decimal(2), read=Decimal("0.1"))
"""Usual relations where neither a price nor a ruleset is at hand (a usage table without a model)."""


def tier_of(audited: Audited) -> Ttl:
    """Lifetime that a call's writes were asked for, for usage without a split; five minutes where nothing says."""
    prompt = audited.prompt
    if prompt is not None and prompt.marks and all(mark.ttl == "1h" for mark in prompt.marks):
        return "1h"
    return prompt.automatic or "5m" if prompt is not None and not prompt.marks else "5m"
