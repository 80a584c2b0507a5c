"""Sums over a whole store without auditing it again: what each session cost, and where the money went.

Tokens are summed by SQLite over an index that covers them; money is joined with the dated prices here. Where all calls
of a session have one price their sum is priced, else each call is: the figures are those of an audit, except that
writes whose lifetime the provider did not tell count as the shorter one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from auditor.money import DEFAULT_RATES
from auditor.price_rows import at
from auditor.pricing import PriceList, PriceRow, cost, equivalents, rates_of
from auditor.store import Store
from traces.schema import Usage

Dimension: TypeAlias = Literal["day", "model", "project", "kind", "cause"]
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
    FROM calls WHERE {_KNOWN} GROUP BY trace"""
_ALL = "SELECT trace, count(*), min(started_at), max(started_at) FROM calls GROUP BY trace"
_ONE = f"SELECT provider, model, started_at, {', '.join(_TOKENS)} FROM calls WHERE trace = ? AND {_KNOWN}"
_LOST = """
    SELECT trace, sum(lost_tokens) FROM outcomes INDEXED BY outcomes_lost JOIN calls ON key = call
    WHERE ruleset = ? AND lost_tokens > 0 GROUP BY trace"""
_SPARK = "SELECT input_tokens, read_tokens FROM calls WHERE trace = ? ORDER BY started_at, seq"
_EVERY = f"""
    SELECT provider, model, started_at, {", ".join(_TOKENS)}, substr(started_at, 1, 10), ifnull(model, 'unknown'),
        file, kind, cause, lost_tokens
    FROM calls LEFT JOIN outcomes ON call = key AND ruleset = ? WHERE {_KNOWN}"""


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
    found = {row[0]: Session(_text(row[0]), *row[1:]) for row in store.select(_ALL)}
    for row in store.select(_BY_TRACE):
        line = _Line._make((*row[:12], row[12:]))
        session = found.get(line.trace)
        if session is None:  # written between the two questions
            continue
        session.rated_input, session.rated_read = line.rated_input, line.rated_read
        session.model = _text(line.model) if line.model == line.other_model else ""
        session.cost = _cost_of(store, prices, line)
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
    for row in store.select(_EVERY, (ruleset,)):
        usage, price = Usage(*row[3:9]), _price(prices, *row[:3])
        worth, usd = _worth(usage, price)
        for name, value in _places(*row[9:14]):
            each = sums[name].setdefault(value, Cost())
            _add(each, usage, worth, usd)
            each.lost_tokens += row[14] or 0
    return {name: dict(sorted(found.items(), key=lambda pair: _order(name, pair))) for name, found in sums.items()}


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of several."""
    whole = Cost()
    for each in costs:
        for name in Cost.__slots__:
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
    return whole


def _places(day: str | None, model: Any, file: Any, kind: str, cause: str | None) -> Iterator[tuple[Dimension, str]]:
    yield "day", day or "unknown"
    yield "model", _text(model)
    yield "project", PurePath(_text(file)).parent.name or "-" if file else "-"
    yield "kind", kind
    yield "cause", cause or "-"


def _order(name: Dimension, pair: tuple[str, Cost]) -> tuple[Any, ...]:
    return (pair[0],) if name == "day" else (-pair[1].usd, -pair[1].equivalents)


def _cost_of(store: Store, prices: PriceList, line: _Line) -> Cost:
    """Price a session by its sums where every call has the same price and the same form of usage, else by calls."""
    if (line.provider, line.model) == (line.other_provider, line.other_model) and line.split in (0, line.calls):
        row = _price(prices, line.provider, line.model, line.first)
        if row is _price(prices, line.provider, line.model, line.last) and _flat(prices, line, row):
            usage = Usage(*line.tokens)
            return _add(Cost(calls=line.calls - 1), usage, *_worth(usage, row), line.calls)
    whole = Cost()
    for call in store.select(_ONE, (line.trace,)):
        usage = Usage(*call[3:])
        _add(whole, usage, *_worth(usage, _price(prices, *call[:3])))
    return whole


def _flat(prices: PriceList, line: _Line, row: PriceRow | None) -> bool:
    """Whether one price holds for every call of a line: no hours of the day, and no dearer tier reached."""
    if row is None:
        return True
    if any(each.window is not None for each in prices.history(line.provider, line.model)):
        return False
    kinds = (row.input, row.read, row.write_5m, row.write_1h, row.output)
    return all(at(price, 0) == at(price, line.longest) for price in kinds)


def _price(prices: PriceList, provider: str, model: Any, started: str | None) -> PriceRow | None:
    if not model:
        return None
    return prices.rate(_text(provider), _text(model), datetime.fromisoformat(started) if started else None)


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
