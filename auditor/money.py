"""Bills: tokens by class with their input-token equivalents and dollars, for single calls and whole traces."""

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from auditor.price_rows import MILLION, at
from auditor.pricing import DEFAULT_RATES, Cost, PriceList, PriceRow, cost, equivalents, rates_of
from auditor.records import Audited
from localmodel.rules.types import Rates
from traces.facts import facts_of, terms_of
from traces.schema import Prompt, Ttl, Usage

if TYPE_CHECKING:
    from auditor.replay import Charge, Sent

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

    def __sub__(self, other: "Bill") -> "Bill":
        return Bill(
            self.calls - other.calls,
            self.input_tokens - other.input_tokens,
            self.read_tokens - other.read_tokens,
            self.write_tokens - other.write_tokens,
            self.uncached_tokens - other.uncached_tokens,
            self.equivalents - other.equivalents,
            None if self.usd is None or other.usd is None else self.usd - other.usd,
        )

    @property
    def hit_ratio(self) -> float | None:
        """Read tokens over input tokens, `None` without input."""
        return self.read_tokens / self.input_tokens if self.input_tokens else None


@dataclass(slots=True)
class Tally:
    """A sum of bills in the making: summing up `Bill`s would make a new one at each step of a long sum."""

    calls: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    write_tokens: int = 0
    uncached_tokens: int = 0
    equivalents: Decimal = _ZERO
    usd: Decimal | None = _ZERO

    def add(self, bill: Bill, sign: int = 1) -> None:
        """Add a bill, or with sign -1 take it away."""
        self.calls += sign * bill.calls
        self.input_tokens += sign * bill.input_tokens
        self.read_tokens += sign * bill.read_tokens
        self.write_tokens += sign * bill.write_tokens
        self.uncached_tokens += sign * bill.uncached_tokens
        self.equivalents += sign * bill.equivalents
        self.usd = None if self.usd is None or bill.usd is None else self.usd + sign * bill.usd

    def bill(self) -> Bill:
        """The sum so far."""
        tokens = (self.input_tokens, self.read_tokens, self.write_tokens, self.uncached_tokens)
        return Bill(self.calls, *tokens, self.equivalents, self.usd)


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
        self._costs: dict[int, Cost | None] = {}
        self._flat: dict[int, _Prices] = {}
        self._tiers: dict[tuple[int, int], _Prices] = {}
        self._single: dict[tuple[str, str], PriceRow | None] = {}
        total = Tally()
        for audited in calls:
            total.add(self.recorded(audited))
        self.total = total.bill()

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
        rates = self._tier(row, usage.input_tokens, rules).rates
        return Bill(
            1,
            usage.input_tokens,
            usage.read_tokens,
            usage.write_tokens or 0,
            usage.uncached_tokens or 0,
            equivalents(usage, rates, tier=tier_of(audited) or "5m") or _ZERO,
            self._input_usd(audited, row),
        )

    def _input_usd(self, audited: Audited, row: PriceRow | None) -> Decimal | None:
        """Only the input side is compared between policies; output is the same under each."""
        paid = self.cost(audited)
        if row is None or paid is None or paid.usd is None:
            return None
        return paid.usd - _output_usd(audited.call.usage, row)

    def cost(self, audited: Audited) -> Cost | None:
        """What a call cost, input and output; `None` where its input or its model's price is unknown."""
        if audited.index not in self._costs:
            row, usage = self.row(audited), audited.call.usage
            known = row is not None and usage.input_tokens is not None
            paid = cost(usage, row, tier=tier_of(audited)) if row is not None and known else None
            if paid is not None and facts_of(audited.call).get("named") == "request":
                paid = replace(paid, reasons=(*paid.reasons, "priced_by_request_model"))
            self._costs[audited.index] = paid
        return self._costs[audited.index]

    def row(self, audited: Audited) -> PriceRow | None:
        """The price row in force for a call, `None` where its model is unpriced."""
        call = audited.call
        if call.model is None:
            return None
        return self._row(call.provider, call.model, call.started_at if call.clock == "utc" else None, terms_of(call))

    def _row(self, provider: str, model: str, moment: datetime | None, terms: tuple[str, ...] = ()) -> PriceRow | None:
        if terms:
            return self._prices.rate(provider, model, moment, terms)
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
        known = self._flat.get(id(row)) or self._tiers.get((id(row), input_tokens))
        if known is not None:
            return known
        base = at(row.input, input_tokens)
        short = at(row.write_5m, input_tokens) or base
        prices = (base, at(row.read, input_tokens), short, at(row.write_1h, input_tokens) or short)
        made = _Prices(rates_of(row, input_tokens) or fallback, *prices)
        if all(price is None or isinstance(price, Decimal) for price in (row.input, row.read, row.write_5m)):
            self._flat[id(row)] = made
        else:
            self._tiers[id(row), input_tokens] = made
        return made

    def predicted(self, sent: "Sent", charge: "Charge") -> Bill:
        """What the rules say a request is billed, at the prices of its model and time."""
        read, write_5m, write_1h, uncached = charge
        return Bill(1, sum(charge), read, write_5m + write_1h, uncached, *self._worth(sent.prompt, sent.at, charge))

    def moved(self, audited: Audited, base: "Charge", sent: "Sent", charge: "Charge") -> Bill:
        """The recorded bill of a call, moved by the difference of two predictions: as recorded, and as `sent`."""
        assert audited.prompt is not None
        known = self.recorded(audited)
        worth, usd = self._worth(sent.prompt, sent.at, charge)
        base_worth, base_usd = self._worth(audited.prompt, audited.at, base)
        read, write_5m, write_1h, uncached = map(sub, charge, base)
        return Bill(
            known.calls,
            known.input_tokens + sum(charge) - sum(base),
            known.read_tokens + read,
            known.write_tokens + write_5m + write_1h,
            known.uncached_tokens + uncached,
            known.equivalents + worth - base_worth,
            None if known.usd is None or usd is None or base_usd is None else known.usd + usd - base_usd,
        )

    def _worth(self, prompt: Prompt, moment: datetime, charge: "Charge") -> tuple[Decimal, Decimal | None]:
        """Input-token equivalents and dollars of predicted tokens."""
        read, write_5m, write_1h, uncached = charge
        row = self._row(prompt.provider, prompt.model, moment) if prompt.model else None
        prices = self._tier(row, sum(charge), DEFAULT_RATES)
        rates = prices.rates
        worth = uncached + write_5m * rates.write_5m + write_1h * rates.write_1h + read * rates.read
        return worth, _dollars(charge, prices)


def _output_usd(usage: Usage, row: PriceRow) -> Decimal:
    """Dollars of the output in the length tier of the input; zero where either is unknown."""
    price = at(row.output, usage.input_tokens or 0)
    return (usage.output_tokens or 0) * (price or _ZERO) / MILLION


def _dollars(charge: "Charge", prices: _Prices) -> Decimal | None:
    each = (prices.read, prices.write_5m, prices.write_1h, prices.input)
    usd = _ZERO
    for tokens, price in zip(charge, each, strict=True):
        if price is None and tokens:
            return None
        usd += tokens * (price or _ZERO)
    return usd / MILLION


def tier_of(audited: Audited) -> Ttl | None:
    """Lifetime that a call's writes were asked for, for usage without a split; `None` where nothing says."""
    prompt = audited.prompt
    if prompt is None:
        asked = {*(facts_of(audited.call).get("ttls") or ())}
    else:
        asked = {mark.ttl for mark in prompt.marks} | ({prompt.automatic} if prompt.automatic else set())
    return asked.pop() if len(asked) == 1 else None
