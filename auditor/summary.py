"""Sums over a whole store without auditing it again: what each session cost, and where the money went.

Tokens are summed by SQLite over an index that covers them; money is joined with the dated prices here. Where all calls
of a session have one price their sum is priced, else each call is, and so are those of sessions with calls under other
terms (batch, fast, a region). The figures are those of an audit, except that writes whose lifetime the provider did not
tell count as the shorter one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from decimal import Decimal
from math import inf
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from auditor.price_rows import at
from auditor.pricing import DEFAULT_RATES, PriceList, PriceRow, cost, equivalents, rates_of
from auditor.store import Store
from auditor.store_rows import json_value
from traces.facts import terms_in
from traces.schema import Usage

Dimension: TypeAlias = Literal["day", "model", "project", "kind", "cause"]
NOT_JUDGED = "not judged"
"""The cause of calls that no audit of this ruleset has seen."""

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

_KNOWN = "(status IS NULL OR status < 400) AND input_tokens IS NOT NULL AND read_tokens IS NOT NULL"
_TOKENS = ("input_tokens", "read_tokens", "write_tokens", "write_5m_tokens", "write_1h_tokens", "output_tokens")
_SUMS = ", ".join(f"sum({name})" for name in _TOKENS)
_UNRATED = "kind IN ('keepalive', 'count')"
_BY_TRACE = f"""
    SELECT trace, count(*), min(started_at), max(started_at), min(provider), max(provider),
        min(ifnull(model, '')), max(ifnull(model, '')), max(input_tokens), count(write_5m_tokens),
        sum(CASE WHEN {_UNRATED} THEN 0 ELSE input_tokens END), sum(CASE WHEN {_UNRATED} THEN 0 ELSE read_tokens END),
        {_SUMS}
    FROM calls WHERE {_KNOWN} {{where}} GROUP BY trace"""
_ALL = "SELECT trace, count(*), min(started_at), max(started_at) FROM calls WHERE true {where} GROUP BY trace"
_LATEST = "SELECT trace FROM calls ORDER BY started_at DESC, seq DESC LIMIT ?"
_ONE = f"SELECT provider, model, started_at, facts, {', '.join(_TOKENS)} FROM calls WHERE trace = ? AND {_KNOWN}"
_FACTS = "SELECT trace, facts FROM calls WHERE facts IS NOT NULL {where}"
_LOST = """
    SELECT trace, sum(lost_tokens) FROM outcomes INDEXED BY outcomes_lost JOIN calls ON key = call
    WHERE ruleset = ? AND lost_tokens > 0 GROUP BY trace"""
_SPARK = "SELECT input_tokens, read_tokens FROM calls WHERE trace = ? ORDER BY started_at, seq"
_EVERY = f"""
    SELECT provider, model, started_at, facts, {", ".join(f"calls.{name}" for name in _TOKENS)},
        substr(started_at, 1, 10), ifnull(model, 'unknown'), file, kind,
        CASE WHEN verdict IS NULL THEN '{NOT_JUDGED}' WHEN lost_tokens > 0 THEN cause ELSE 'nothing paid again' END,
        lost_tokens
    FROM calls LEFT JOIN outcomes ON call = key AND ruleset = ?
    WHERE {_KNOWN.replace("input_", "calls.input_").replace("read_", "calls.read_")}"""


@dataclass(slots=True)
class Cost:
    """Tokens and money of some calls with known usage. `usd` leaves out the `unpriced` ones."""

    calls: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    write_tokens: int = 0
    equivalents: Decimal = Decimal(0)
    usd: Decimal = Decimal(0)
    unpriced: int = 0
    lost_tokens: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Read over input tokens, `None` where there is no input."""
        return self.read_tokens / self.input_tokens if self.input_tokens else None


@dataclass(slots=True)
class Session:
    """One trace of the store. `calls` counts all of them, `cost` those with known usage.

    `rated_input` and `rated_read` leave keep-alives out, as the hit ratio does. `started` and `ended` are ISO times of
    the first and the last start, `model` is empty where there are several.
    """

    trace: str
    calls: int
    started: str | None
    ended: str | None
    model: str = ""
    cost: Cost = field(default_factory=Cost)
    rated_input: int = 0
    rated_read: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Read over input tokens, `None` where nothing is known."""
        return self.rated_read / self.rated_input if self.rated_input else None


class _Line(NamedTuple):
    """Calls of one session that SQLite summed up."""

    trace: Any
    calls: int
    first: str | None
    last: str | None
    provider: str
    other_provider: str
    model: str
    other_model: str
    longest: int
    split: int
    rated_input: int
    rated_read: int
    tokens: tuple[int | None, ...]


def sessions(store: Store, prices: PriceList) -> list[Session]:
    """All traces of a store, the latest first. Raises StoreError where the file fails."""
    return _summed(store, prices, "", ())


def latest(store: Store, prices: PriceList, most: int) -> list[Session]:
    """The traces of the latest calls, at most `most`: what a first screen shows before all others are summed up."""
    traces: dict[Any, None] = {}
    for (trace,) in store.select(_LATEST, (most * 20,)):
        traces[trace] = None
        if len(traces) == most:
            break
    return _summed(store, prices, f"AND trace IN ({','.join('?' * len(traces))})", tuple(traces))


def _summed(store: Store, prices: PriceList, where: str, some: tuple[Any, ...]) -> list[Session]:
    every = store.select(_ALL.format(where=where), some)
    found = {row[0]: Session(_text(row[0]), *row[1:]) for row in every}
    special = {trace for trace, facts in store.select(_FACTS.format(where=where), some) if _terms(facts)}
    priced = _Priced(prices)
    for row in store.select(_BY_TRACE.format(where=where), some):
        line = _Line._make((*row[:12], row[12:]))
        session = found.get(line.trace)
        if session is None:  # written between the two questions
            continue
        session.rated_input, session.rated_read = line.rated_input, line.rated_read
        session.model = _text(line.model) if line.model == line.other_model else ""
        alike = line.trace not in special and _alike(priced, line)
        session.cost = _at_once(priced, line) if alike else _one_by_one(store, priced, line.trace)
    return sorted(found.values(), key=lambda session: session.started or "", reverse=True)


def lost(store: Store, ruleset: str) -> dict[str, int]:
    """Tokens paid for again by trace, as far as this ruleset (by digest) judged the calls; others are not in it."""
    return {_text(trace): tokens for trace, tokens in store.select(_LOST, (ruleset,))}


def spark(store: Store, trace: str) -> list[float | None]:
    """Share of input read, call by call; `None` where unknown."""
    rows = store.select(_SPARK, (trace,))
    return [read / tokens if tokens and read is not None else None for tokens, read in rows]


def breakdown(store: Store, prices: PriceList, ruleset: str) -> dict[Dimension, dict[str, Cost]]:
    """What the calls of the store cost by day, model, project (folder of the recording), kind and cause of loss."""
    sums: dict[Dimension, dict[str, Cost]] = {name: {} for name in DIMENSIONS}
    priced = _Priced(prices)
    for provider, model, started, facts, *row in store.select(_EVERY, (ruleset,)):
        usage, price = Usage(*row[:6]), priced.row(provider, model, started, _terms(facts))
        worth, usd = _worth(usage, price)
        for name, value in _places(*row[6:11]):
            each = sums[name].setdefault(value, Cost())
            _add(each, usage, worth, usd)
            each.lost_tokens += row[11] or 0
    return {name: dict(sorted(found.items(), key=lambda pair: _order(name, pair))) for name, found in sums.items()}


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of several."""
    whole = Cost()
    for each in costs:
        for name in Cost.__slots__:
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
    return whole


def _places(day: str | None, model: Any, file: Any, kind: str, cause: str) -> Iterator[tuple[Dimension, str]]:
    yield "day", day or "unknown"
    yield "model", _text(model)
    yield "project", PurePath(_text(file)).parent.name or "-" if file else "-"
    yield "kind", kind
    yield "cause", cause


def _order(name: Dimension, pair: tuple[str, Cost]) -> tuple[Any, ...]:
    value, each = pair
    if name == "day":
        return (value,)
    return (-each.lost_tokens if name == "cause" else 0, -each.usd, -each.equivalents)


def _terms(facts: bytes | None) -> tuple[str, ...]:
    return () if facts is None else terms_in(json_value(facts))


def _alike(priced: "_Priced", line: _Line) -> bool:
    """Whether every call of a session has the same price and the same form of usage, terms aside."""
    if (line.provider, line.model) != (line.other_provider, line.other_model) or line.split not in (0, line.calls):
        return False
    row = priced.row(line.provider, line.model, line.first)
    alone = row is priced.row(line.provider, line.model, line.last) and not priced.hourly(line.provider, line.model)
    return alone and line.longest <= priced.first_tier(row)[1]


def _at_once(priced: "_Priced", line: _Line) -> Cost:
    flat, _ = priced.first_tier(priced.row(line.provider, line.model, line.first))
    return _add(Cost(calls=line.calls - 1), Usage(*line.tokens), *_worth(Usage(*line.tokens), flat), line.calls)


def _one_by_one(store: Store, priced: "_Priced", trace: Any) -> Cost:
    whole = Cost()
    for provider, model, started, facts, *tokens in store.select(_ONE, (trace,)):
        usage = Usage(*tokens)
        _add(whole, usage, *_worth(usage, priced.row(provider, model, started, _terms(facts))))
    return whole


class _Priced:
    """Price rows, looked up once for each model and day."""

    def __init__(self, prices: PriceList) -> None:
        self._prices = prices
        self._days: dict[tuple[str, str, str | None, tuple[str, ...]], PriceRow | None] = {}
        self._tiers: dict[int, tuple[PriceRow | None, float]] = {}
        self._hourly: dict[tuple[str, str], bool] = {}

    def row(self, provider: str, model: Any, started: str | None, terms: tuple[str, ...] = ()) -> PriceRow | None:
        """The row that prices a call under these terms."""
        if not model:
            return None
        day = started and (started if self.hourly(provider, model) else started[:10])
        key = (provider, model, day, terms)
        if key not in self._days:
            moment = datetime.fromisoformat(started) if started else None
            self._days[key] = self._prices.rate(_text(provider), _text(model), moment, terms)
        return self._days[key]

    def hourly(self, provider: str, model: Any) -> bool:
        """Whether a model's price depends on more than the day: hours, or a change within a day."""
        key = (provider, model)
        if key not in self._hourly:
            history = self._prices.history(_text(provider), _text(model)) if model else ()
            self._hourly[key] = any(row.window is not None or not _at_midnight(row) for row in history)
        return self._hourly[key]

    def first_tier(self, row: PriceRow | None) -> tuple[PriceRow | None, float]:
        """A row without its dearer tiers, and the input tokens up to which it holds.

        The sum of many calls must not be priced in a tier that no call reached.
        """
        known = self._tiers.get(id(row))
        if known is None:
            known = self._tiers[id(row)] = (None, inf) if row is None else _without_tiers(row)
        return known


def _without_tiers(row: PriceRow) -> tuple[PriceRow, float]:
    prices = (row.input, row.read, row.write_5m, row.write_1h, row.output)
    tiers = [above for price in prices if isinstance(price, tuple) for above, _ in price if above > 0]
    base, read, short, long, output = (at(price, 0) for price in prices)
    flat = replace(row, input=base, read=read, write_5m=short, write_1h=long, output=output)
    return flat, min(tiers, default=inf)


def _at_midnight(row: PriceRow) -> bool:
    return all(moment is None or moment.time() == time() for moment in (row.since, row.until))


def _worth(usage: Usage, row: PriceRow | None) -> tuple[Decimal, Decimal | None]:
    """Input-token equivalents and dollars, output included; `None` where there is no price."""
    rates = (rates_of(row, usage.input_tokens or 0) if row is not None else None) or DEFAULT_RATES
    return equivalents(usage, rates) or Decimal(0), None if row is None else cost(usage, row, tier="5m").usd


def _add(whole: Cost, usage: Usage, worth: Decimal, usd: Decimal | None, calls: int = 1) -> Cost:
    whole.calls += 1
    whole.input_tokens += usage.input_tokens or 0
    whole.read_tokens += usage.read_tokens or 0
    whole.write_tokens += usage.write_tokens or 0
    whole.equivalents += worth
    if usd is None:
        whole.unpriced += calls
    else:
        whole.usd += usd
    return whole


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)
