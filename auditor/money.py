"""Bills: tokens by class with their input-token equivalents and dollars, for single calls and whole traces."""

from dataclasses import dataclass
from decimal import Decimal

from auditor.pricing import PriceList, PriceRow, cost, equivalents, rates_of
from auditor.records import Audited
from auditor.replay import Sent
from localmodel.rules.types import Outcome, Rates
from traces.schema import Ttl, Usage

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


class Money:
    """Prices the calls of one audit; holds each call's recorded bill and the total."""

    def __init__(self, calls: list[Audited], prices: PriceList) -> None:
        self._prices = prices
        self._recorded: dict[int, Bill] = {}
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
        return self._priced(usage, row, self._rates(audited, row, usage.input_tokens), tier_of(audited))

    def row(self, audited: Audited) -> PriceRow | None:
        """The price row in force for a call, `None` where its model is unpriced."""
        call = audited.call
        if call.model is None:
            return None
        moment = call.started_at if call.clock == "utc" else None
        return self._prices.rate(call.provider, call.model, moment)

    def _rates(self, audited: Audited, row: PriceRow | None, input_tokens: int) -> Rates:
        rates = rates_of(row, input_tokens) if row is not None else None
        if rates is not None:
            return rates
        if audited.outcome is not None:
            return audited.outcome.rules.rates
        return DEFAULT_RATES

    def _priced(self, usage: Usage, row: PriceRow | None, rates: Rates, tier: Ttl) -> Bill:
        worth = equivalents(usage, rates, tier=tier) or _ZERO
        # Only the input side is compared here; output is the same under every policy.
        bare = Usage(
            usage.input_tokens, usage.read_tokens, usage.write_tokens, usage.write_5m_tokens, usage.write_1h_tokens, 0
        )
        priced = cost(bare, row, tier=tier) if row is not None else None
        return Bill(
            1,
            usage.input_tokens or 0,
            usage.read_tokens or 0,
            usage.write_tokens or 0,
            usage.uncached_tokens or 0,
            worth,
            priced.usd if priced is not None else None,
        )

    def predicted(self, sent: Sent, outcome: Outcome) -> Bill:
        """What the rules say a request is billed: at the call's own price, or the prompt's for an added request."""
        usage = Usage(
            input_tokens=outcome.read_tokens + outcome.write_tokens + outcome.uncached_tokens,
            read_tokens=outcome.read_tokens,
            write_tokens=outcome.write_tokens,
            write_5m_tokens=outcome.write_5m_tokens,
            write_1h_tokens=outcome.write_1h_tokens,
        )
        prompt = sent.prompt
        row = self._prices.rate(prompt.provider, prompt.model, sent.at) if prompt.model else None
        rates = rates_of(row, usage.input_tokens or 0) if row is not None else None
        return self._priced(usage, row, rates or outcome.rules.rates, "5m")


DEFAULT_RATES = Rates(write_5m=Decimal("1.25"), write_1h=Decimal(2), read=Decimal("0.1"))
"""Usual relations where neither a price nor a ruleset is at hand (a usage table without a model)."""


def tier_of(audited: Audited) -> Ttl:
    """Lifetime that a call's writes were asked for, for usage without a split; five minutes where nothing says."""
    prompt = audited.prompt
    if prompt is not None and prompt.marks and all(mark.ttl == "1h" for mark in prompt.marks):
        return "1h"
    return prompt.automatic or "5m" if prompt is not None and not prompt.marks else "5m"
