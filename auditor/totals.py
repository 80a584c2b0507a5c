"""Sums of an audit: tokens and money over all calls, by kind, agent and model, and paid tokens by cause."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from auditor.money import Money
from auditor.price_rows import DOLLARS, MILLION, PriceRow, at
from auditor.pricing import CERTAIN, Cost
from auditor.records import Audited, Diagnosis
from traces.schema import Usage

# Calls that exist to keep or count the cache: they cost, but say nothing about how well it is used.
UNRATED_KINDS = ("keepalive", "count")
NECESSARY = "new_content"


@dataclass(slots=True)
class Sum:
    """Tokens and money of some calls. Calls with unknown usage are counted apart and are in no token sum.

    Dollars lie between `low` and `high`; `other` are amounts by currency that are never added to them.
    """

    calls: int = 0
    unknown_calls: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    write_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    rated_input: int = 0
    rated_read: int = 0
    equivalents: Decimal = Decimal(0)
    usd: Decimal = Decimal(0)
    low: Decimal = Decimal(0)
    high: Decimal = Decimal(0)
    other: dict[str, Decimal] = field(default_factory=dict)
    priced_calls: int = 0
    reasons: set[str] = field(default_factory=set)

    @property
    def hit_ratio(self) -> float | None:
        """Read over input tokens, weighted by tokens, keep-alives left out; `None` where nothing is known."""
        return round(self.rated_read / self.rated_input, 6) if self.rated_input else None

    def pay(self, paid: Cost, calls: int = 1) -> None:
        """Add a bill of so many calls."""
        self.priced_calls += calls
        if paid.usd is None:
            self.other[paid.currency] = self.other.get(paid.currency, Decimal(0)) + paid.amount
        else:
            self.usd += paid.usd
            self.low += paid.low
            self.high += paid.high
        self.reasons.update(reason for reason in paid.reasons if reason not in CERTAIN)


@dataclass(slots=True)
class Unpriced:
    """Calls of a model that has no price: how many, and their tokens, input and output."""

    calls: int = 0
    tokens: int = 0


@dataclass(slots=True)
class CauseSum:
    """Tokens paid again for one cause (or necessary ones): how many calls, and how they were billed.

    `again_usd` is what they cost beyond a read, `None` where some have no price; whether it was avoidable only a replay
    shows.
    """

    calls: int = 0
    tokens: int = 0
    written_tokens: int = 0
    uncached_tokens: int = 0
    avoidable_equivalents: Decimal = Decimal(0)
    avoidable_usd: Decimal | None = Decimal(0)
    again_usd: Decimal | None = Decimal(0)

    def take(self, written: int, uncached: int, again: Decimal | None = Decimal(0)) -> None:
        """Count a call's tokens."""
        self.calls += 1
        self.tokens += written + uncached
        self.written_tokens += written
        self.uncached_tokens += uncached
        self.again_usd = None if self.again_usd is None or again is None else self.again_usd + again


@dataclass(slots=True)
class Totals:
    """All sums of an audit. `unpriced` are models that have no price: the total is then partial."""

    whole: Sum
    by_kind: dict[str, Sum]
    by_agent: dict[str, Sum]
    by_model: dict[str, Sum]
    by_cause: dict[str, CauseSum]
    failed_calls: int
    unpriced: dict[str, Unpriced]

    @property
    def partial(self) -> bool:
        """Whether the dollar total leaves something out."""
        return bool(self.unpriced) or bool(self.whole.unknown_calls) or bool(self.whole.reasons)


def totals(calls: list[Audited], money: Money) -> Totals:
    """Sum up an audit."""
    whole, unpriced = Sum(), defaultdict[str, Unpriced](Unpriced)
    grouped: list[tuple[Callable[[Audited], str], dict[str, Sum]]] = [
        (lambda a: a.call.kind, {}),
        (lambda a: a.call.agent, {}),
        (lambda a: a.call.model or "unknown", {}),
    ]
    failed = 0
    for audited in calls:
        if audited.call.failed:
            failed += 1
            continue
        sums = [whole, *(group.setdefault(name(audited), Sum()) for name, group in grouped)]
        _add(audited, money, sums, unpriced)
    by_kind, by_agent, by_model = (group for _, group in grouped)
    return Totals(whole, by_kind, by_agent, by_model, by_cause(calls, money), failed, dict(unpriced))


def _add(audited: Audited, money: Money, sums: list[Sum], unpriced: dict[str, Unpriced]) -> None:
    usage = audited.call.usage
    known = usage.input_tokens is not None and usage.read_tokens is not None
    paid = money.cost(audited)
    if usage.input_tokens is not None and money.row(audited) is None:
        each_model = unpriced[audited.call.model or "unknown"]
        each_model.calls += 1
        each_model.tokens += usage.input_tokens + (usage.output_tokens or 0)
    worth, rated = money.recorded(audited).equivalents, audited.call.kind not in UNRATED_KINDS
    tokens, read, output = usage.input_tokens or 0, usage.read_tokens or 0, usage.output_tokens or 0
    written, uncached = usage.write_tokens or 0, usage.uncached_tokens or 0
    for each in sums:
        each.calls += 1
        each.output_tokens += output
        if paid is not None:
            each.pay(paid)
        if not known:
            each.unknown_calls += 1
            continue
        each.equivalents += worth
        each.input_tokens += tokens
        each.read_tokens += read
        each.write_tokens += written
        each.uncached_tokens += uncached
        if rated:
            each.rated_input += tokens
            each.rated_read += read


def by_cause(calls: list[Audited], money: Money) -> dict[str, CauseSum]:
    """Every token that was written or billed uncached, under exactly one cause or as new content.

    The column of written tokens adds up to the billed writes, that of uncached tokens to the rest. Lost tokens count
    as written first: a lost prefix stands in front of the tail that a call leaves uncached.
    """
    sums: dict[str, CauseSum] = defaultdict(CauseSum)
    for audited in calls:
        usage, diagnosis = audited.call.usage, audited.diagnosis
        if audited.call.failed or usage.input_tokens is None or usage.read_tokens is None:
            continue
        written, uncached = usage.write_tokens or 0, usage.uncached_tokens or 0
        for finding in diagnosis.findings if diagnosis is not None else []:
            if finding.lost_tokens:
                taken = min(finding.lost_tokens, written)
                rest = min(finding.lost_tokens - taken, uncached)
                sums[finding.cause].take(taken, rest, again_usd(money.row(audited), usage, taken, rest))
                written, uncached = written - taken, uncached - rest
        if diagnosis is not None and diagnosis.lost_tokens:
            each = sums[diagnosis.primary.cause]
            each.avoidable_equivalents += diagnosis.avoidable_equivalents or 0
            _count_dollars(each, diagnosis)
        sums[NECESSARY].take(written, uncached)
    return dict(sorted(sums.items(), key=lambda pair: (pair[0] == NECESSARY, -pair[1].tokens)))


def _count_dollars(each: CauseSum, diagnosis: Diagnosis) -> None:
    """Unknown as soon as one part of the avoidable money has no price."""
    if diagnosis.avoidable_equivalents is None:
        return
    if each.avoidable_usd is not None:
        known = diagnosis.avoidable_usd
        each.avoidable_usd = None if known is None else each.avoidable_usd + known


def again_usd(row: PriceRow | None, usage: Usage, written: int, uncached: int) -> Decimal | None:
    """What tokens that were paid for again cost beyond a read, in US dollars; `None` where that has no price."""
    if row is None or row.currency != DOLLARS:
        return None
    length = usage.input_tokens or 0
    base, read = at(row.input, length), at(row.read, length)
    long = usage.write_1h_tokens and not usage.write_5m_tokens
    write = at(row.write_1h if long else row.write_5m, length)
    write = base if write is None else write
    if read is None or (written and write is None) or (uncached and base is None):
        return None
    return (written * ((write or read) - read) + uncached * ((base or read) - read)) / MILLION
