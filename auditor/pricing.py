"""What calls cost: dated prices per model, the bill of one call, and input-token equivalents.

Tokens are stored and money is not: cost is computed when read, from a call's usage and the price in force at its time.
A model without a price is unpriced (`None`), never free; a bill says what of it is uncertain, and between which bounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from auditor.price_cache import PriceCache, is_variant
from auditor.price_rows import (
    DOLLARS,
    MILLION,
    Price,
    PriceRow,
    Tiers,
    Window,
    at,
    load_prices,
    plain,
    row_to,
    varied,
)
from auditor.price_seed import seed
from localmodel.rules.types import Rates
from traces.schema import JsonObject, Ttl, Usage

__all__ = [
    "DEFAULT_RATES",
    "Cost",
    "Price",
    "PriceList",
    "PriceRow",
    "Reason",
    "Tiers",
    "Window",
    "as_json",
    "as_text",
    "cost",
    "equivalents",
    "load_prices",
    "open_prices",
    "plain",
    "rates_of",
    "show",
]

Lookup: TypeAlias = Callable[[str, str], tuple[PriceRow, ...]]
"""(provider, model) → its history, () where unknown."""

Reason: TypeAlias = Literal[
    "write_tier_inferred",
    "write_tier_unknown",
    "write_tokens_unknown",
    "write_split_exceeds_total",
    "read_tokens_unknown",
    "input_tokens_unknown",
    "output_tokens_unknown",
    "parts_exceed_input",
    "no_input_price",
    "no_read_price",
    "no_write_price",
    "no_write_1h_price",
    "no_output_price",
    "no_terms_price",
    "priced_by_request_model",
]

DEFAULT_RATES = Rates(write_5m=Decimal("1.25"), write_1h=Decimal(2), read=Decimal("0.1"))
"""Usual relations where neither a price nor a ruleset is at hand (a usage table without a model)."""

CERTAIN: frozenset[Reason] = frozenset(("write_tier_inferred", "priced_by_request_model"))
"""Remarks that leave a bill whole: what was asked for says what the answer left out."""

_FIRST_PARTIES = ("anthropic", "openai", "google", "deepseek", "moonshotai", "x-ai", "mistral", "zai", "minimax")
"""Where `show` looks a model up that is named without its provider."""


class PriceList:
    """Prices of models: the user's own first, then those that `lookup` finds.

    With `as_of` the list is taken as it stood then: of later calls each pays what was in force at that moment.
    """

    def __init__(
        self,
        lookup: Lookup,
        own: Mapping[str, tuple[PriceRow, ...]] | None = None,
        as_of: datetime | None = None,
    ) -> None:
        self._lookup = lookup
        self._own = own or {}
        self._as_of = as_of
        self._varied: dict[tuple[int, tuple[str, ...]], tuple[PriceRow, PriceRow]] = {}
        self._memo: dict[tuple[str, str], tuple[PriceRow, ...]] = {}

    def history(self, provider: str, model: str) -> tuple[PriceRow, ...]:
        """All price rows of a model: plain rows oldest first, then rows with hours; () where unpriced."""
        key = (provider, model)
        if key not in self._memo:
            self._memo[key] = self.own(model) or self._lookup(provider, model)
        return self._memo[key]

    def own(self, model: str) -> tuple[PriceRow, ...]:
        """The rows of the user's file for this model or the undated name of it, () where it has none."""
        if model in self._own:
            return self._own[model]
        names = [name for name in self._own if is_variant(model, name)]
        return self._own[max(names, key=len)] if names else ()

    def rate(
        self, provider: str, model: str | None, moment: datetime | None, terms: tuple[str, ...] = ()
    ) -> PriceRow | None:
        """The row that prices a call which started at `moment`, or `None` where the call is unpriced.

        Without a moment the last row of the history counts, one announced for a later day included. `terms` are those
        of the call where they are not the usual ones (`traces.facts.terms_of`).
        """
        rows = self.history(provider, model) if model else ()
        if self._as_of is not None:
            moment = self._as_of if moment is None else min(moment, self._as_of)
        if moment is None:
            row = next((row for row in reversed(rows) if row.window is None), None)
        else:
            row = next((row for row in reversed(rows) if row.active(moment)), None)
        return self._under(row, terms) if row is not None and terms else row

    def _under(self, row: PriceRow, terms: tuple[str, ...]) -> PriceRow:
        # Equal terms give one object, so that whoever sums up can tell equal prices by identity.
        key = (id(row), terms)
        if key not in self._varied:
            self._varied[key] = (row, varied(row, terms))
        return self._varied[key][1]


def open_prices(
    own: Path | None = None, cache_directory: Path | None = None, as_of: datetime | None = None
) -> PriceList:
    """The price list for a run: genai-prices with our overlay, and before it the user's file `own` if given.

    `as_of` leaves out what came into force later. Raises `BadPriceFile` for a file that cannot be used.
    """
    return PriceList(PriceCache(cache_directory, seed).history, load_prices(own) if own else None, as_of)


@dataclass(frozen=True, slots=True)
class Cost:
    """The bill of one call in `currency`. It lies between `low` and `high`; `amount` is the figure to add up.

    `partial` says that something is unpriced or uncertain, `reasons` what. Uncertain tokens are counted in `amount` as
    what they most plainly are: writes of unknown lifetime at the shorter one, input of unknown division as uncached.
    """

    amount: Decimal
    low: Decimal
    high: Decimal
    partial: bool
    reasons: tuple[Reason, ...] = ()
    currency: str = DOLLARS

    @property
    def usd(self) -> Decimal | None:
        """The figure where it is one in US dollars."""
        return self.amount if self.currency == DOLLARS else None


@dataclass(slots=True)
class _Bill:
    """Adds up a call's parts; prices are those of the call's length tier."""

    input: Decimal | None
    read: Decimal | None
    write_5m: Decimal | None
    write_1h: Decimal | None
    output: Decimal | None
    usd: Decimal = Decimal(0)
    low: Decimal = Decimal(0)
    high: Decimal = Decimal(0)
    reasons: list[Reason] = field(default_factory=list)

    def add(self, tokens: int, price: Decimal | None, missing: Reason) -> None:
        """Tokens of a known kind; `missing` is the reason to note where their price is unknown."""
        if price is None:
            if tokens:
                self.reasons.append(missing)
        else:
            self.add_between(tokens, price, price, price)

    def add_between(self, tokens: int, low: Decimal, price: Decimal, high: Decimal) -> None:
        """Tokens that cost `price` at best knowledge and between `low` and `high` for certain."""
        self.low += tokens * low / MILLION
        self.usd += tokens * price / MILLION
        self.high += tokens * high / MILLION


def cost(usage: Usage, row: PriceRow, *, tier: Ttl | None = None) -> Cost:
    """The bill of one call.

    A length tier is chosen by the total input and holds for all of the call's tokens, output included. Writes are
    priced by the split that the provider gave; `tier` is the lifetime that the request asked for, for writes without
    a split (noted as `write_tier_inferred`). Without either they lie between the two prices.
    """
    length = usage.input_tokens or sum(n or 0 for n in (usage.read_tokens, _written(usage)))
    bill = _Bill(
        input=at(row.input, length),
        read=at(row.read, length),
        write_5m=at(row.write_5m, length),
        write_1h=at(row.write_1h, length),
        output=at(row.output, length),
    )
    _bill_uncached(bill, usage, row)
    bill.add(usage.read_tokens or 0, bill.read, "no_read_price")
    _bill_writes(bill, usage, tier, row)
    if usage.output_tokens is None:
        bill.reasons.append("output_tokens_unknown")
    bill.add(usage.output_tokens or 0, bill.output, "no_output_price")
    if row.lacks:
        bill.reasons.append("no_terms_price")
    partial = not CERTAIN.issuperset(bill.reasons)
    return Cost(bill.usd, bill.low, bill.high, partial, tuple(dict.fromkeys(bill.reasons)), row.currency)


def _written(usage: Usage) -> int | None:
    """Tokens written, of all lifetimes. The provider's total is never added to its split."""
    parts = [part for part in (usage.write_5m_tokens, usage.write_1h_tokens) if part is not None]
    if usage.write_tokens is not None or not parts:
        return usage.write_tokens
    return sum(parts)


def _bill_uncached(bill: _Bill, usage: Usage, row: PriceRow) -> None:
    if usage.input_tokens is None:
        bill.reasons.append("input_tokens_unknown")
        return
    rest = usage.input_tokens - (usage.read_tokens or 0) - (_written(usage) or 0)
    if rest < 0:
        bill.reasons.append("parts_exceed_input")
        return
    if bill.input is None:
        bill.add(rest, None, "no_input_price")
        return
    bounds = [bill.input]
    if rest and usage.read_tokens is None:
        bill.reasons.append("read_tokens_unknown")
        bounds += [bill.read] if bill.read is not None else []
    if rest and _written(usage) is None and bill.write_5m is not None:
        bill.reasons.append("write_tokens_unknown")
        bounds += _write_prices(bill, row)
    bill.add_between(rest, min(bounds), bill.input, max(bounds))


def _write_prices(bill: _Bill, row: PriceRow) -> list[Decimal]:
    """What a written token without a stated lifetime may cost."""
    if row.unsplit is not None:
        prices = [bill.write_5m if row.unsplit == "5m" else bill.write_1h]
    else:
        prices = [bill.write_5m, bill.write_1h]
    return [price for price in prices if price is not None]


def _bill_writes(bill: _Bill, usage: Usage, tier: Ttl | None, row: PriceRow) -> None:
    short, long, unknown = _split(usage)
    if short + long > (_written(usage) or 0):
        bill.reasons.append("write_split_exceeds_total")
    bill.add(short, bill.write_5m, "no_write_price")
    bill.add(long, bill.write_1h, "no_write_1h_price")
    if unknown and tier is not None:
        _bill_inferred(bill, unknown, tier, row)
    elif unknown:
        _bill_unsplit(bill, unknown, row)


def _bill_inferred(bill: _Bill, tokens: int, tier: Ttl, row: PriceRow) -> None:
    if tier != row.unsplit and bill.write_5m is not None and bill.write_1h is not None:
        bill.reasons.append("write_tier_inferred")
    if tier == "5m":
        bill.add(tokens, bill.write_5m, "no_write_price")
    else:
        bill.add(tokens, bill.write_1h, "no_write_1h_price")


def _bill_unsplit(bill: _Bill, tokens: int, row: PriceRow) -> None:
    possible = _write_prices(bill, row)
    if not possible:
        bill.reasons.append("no_write_price")
        return
    if len(possible) > 1:
        bill.reasons.append("write_tier_unknown")
    bill.add_between(tokens, min(possible), possible[0], max(possible))


def _split(usage: Usage) -> tuple[int, int, int]:
    """Tokens written with the shorter lifetime, with the longer one, and with one that is not known."""
    total, short, long = _written(usage) or 0, usage.write_5m_tokens, usage.write_1h_tokens
    if short is None and long is None:
        return 0, 0, total
    if short is None or long is None:  # the total is the sum of both, so that one gives the other
        known = (short or 0) + (long or 0)
        other = max(total - known, 0)
        return (known, other, 0) if long is None else (other, known, 0)
    return short, long, max(total - short - long, 0)


def equivalents(usage: Usage, rates: Rates, *, tier: Ttl = "5m") -> Decimal | None:
    """A call's input in tokens of ordinary input: uncached + writes x their rate + reads x theirs.

    `tier` is the lifetime of writes for which the provider gave none. `None` where the division of the input is
    not known.
    """
    if usage.input_tokens is None or usage.read_tokens is None:
        return None
    short, long, unknown = _split(usage)
    uncached = usage.input_tokens - usage.read_tokens - short - long - unknown
    rate = rates.write_5m if tier == "5m" else rates.write_1h
    return uncached + short * rates.write_5m + long * rates.write_1h + unknown * rate + usage.read_tokens * rates.read


def rates_of(row: PriceRow, input_tokens: int = 0) -> Rates | None:
    """A row's prices relative to its input price, in the tier of `input_tokens`; `None` where that is not known.

    Without a price for writes they cost as much as other input: such providers take no fee for them.
    """
    base, read = at(row.input, input_tokens), at(row.read, input_tokens)
    if not base or read is None:
        return None
    short = at(row.write_5m, input_tokens)
    short = base if short is None else short
    long = at(row.write_1h, input_tokens)
    long = short if long is None else long
    return Rates(write_5m=short / base, write_1h=long / base, read=read / base)


def show(prices: PriceList, model: str, moment: datetime | None = None) -> list[PriceRow]:
    """The price rows of a model, all of them or the one in force at `moment`; [] where it is unpriced.

    `model` may be given as provider/model; without a provider the makers of models are asked in turn.
    """
    provider, slash, name = model.partition("/")
    candidates = [(provider, name)] if slash else [(maker, model) for maker in _FIRST_PARTIES]
    if prices.own(model):
        candidates = [(provider, model)]
    for maker, name in candidates:
        rows = prices.history(maker, name)
        if rows:
            row = prices.rate(maker, name, moment)
            return list(rows) if moment is None else [row] if row else []
    return []


def as_json(rows: Sequence[PriceRow]) -> list[JsonObject]:
    """Rows in the form of a price file, ready for JSON."""
    return [row_to(row) for row in rows]


_COLUMNS = ("since", "until", "when", "input above", "input", "write", "write long", "read", "output", "source")


def as_text(rows: Sequence[PriceRow]) -> str:
    """Rows as a table, a line per length tier, in money per million tokens; "?" is unknown."""
    lines = [_COLUMNS, *(line for row in rows for line in _lines(row))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _lines(row: PriceRow) -> list[tuple[str, ...]]:
    prices = (row.input, row.write_5m, row.write_1h, row.read, row.output)
    starts = sorted({0, *(above for price in prices if isinstance(price, tuple) for above, _ in price)})
    head = (_when(row.since), _when(row.until), _hours(row.window))
    times = "".join(f"; {name} times {plain(factor)}" for name, factor in row.times)
    source = ("" if row.currency == DOLLARS else f"{row.currency}; ") + row.source + times
    return [
        (*head, f"{start:,}" if start else "", *(_amount(at(price, start + 1)) for price in prices), source)
        for start in starts
    ]


def _when(moment: datetime | None) -> str:
    if moment is None:
        return ""
    return f"{moment:%Y-%m-%d}" if f"{moment:%H:%M}" == "00:00" else f"{moment:%Y-%m-%d %H:%M}"


def _hours(window: Window | None) -> str:
    if window is None:
        return ""
    days = "" if not window.weekdays else " days " + ",".join(map(str, window.weekdays))
    return f"{window.start:%H:%M}-{window.end:%H:%M} UTC{days}"


def _amount(price: Decimal | None) -> str:
    return "?" if price is None else plain(price)
