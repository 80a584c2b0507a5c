"""What our corrections of genai-prices still correct: the overlay against the package, model by model.

Each `[[history]]` of the overlay says in `differs` which prices it is there for. A difference that it does not name,
and one that it names and that is gone, are unexpected: the package changed, and the overlay has to be read again.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from auditor.price_cache import OVERLAY, listed
from auditor.price_rows import PRICES, Price, PriceRow, at, plain, row_from
from auditor.pricing import PriceList
from traces.schema import JsonObject

ABSENT = "absent"
_LENGTHS = (1, 100_001, 200_001, 272_001)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Difference:
    """One price of a model where overlay and package part: for the first time at `since` (`None`: always).

    `price` is "absent" where the package does not have the model; `ours` and `theirs` are amounts per million tokens,
    or "unknown"; both are "" where a difference that the overlay names is gone.
    """

    provider: str
    model: str
    price: str
    since: datetime | None
    ours: str
    theirs: str
    expected: bool


def check(now: datetime) -> list[Difference]:
    """All differences, in the overlay's order; none of what is gone is left out."""
    content = tomllib.loads(OVERLAY.read_text("utf-8"))
    return [each for entry in content["history"] for model in entry["models"] for each in _compared(entry, model, now)]


def as_text(found: list[Difference]) -> Iterator[str]:
    """A line a difference."""
    for each in found:
        when = "" if each.since is None else f" at {each.since:%Y-%m-%d %H:%M}"
        if each.price == ABSENT:
            what = "not in genai-prices" if each.expected else "not in genai-prices any more"
        elif not each.ours:
            what = f"{each.price}: genai-prices says the same by now"
        else:
            what = f"{each.price}{when}: {each.ours} here, {each.theirs} in genai-prices"
        yield f"{'expected' if each.expected else 'UNEXPECTED':<10}  {each.provider}/{each.model}  {what}"


def as_json(found: list[Difference]) -> list[JsonObject]:
    """Differences, ready for JSON."""
    return [
        {
            "provider": each.provider,
            "model": each.model,
            "price": each.price,
            "since": None if each.since is None else each.since.isoformat(),
            "ours": each.ours,
            "theirs": each.theirs,
            "expected": each.expected,
        }
        for each in found
    ]


def _compared(entry: JsonObject, model: str, now: datetime) -> Iterator[Difference]:
    provider, differs = entry["provider"], list(entry["differs"])
    ours = tuple(row_from(row, f"{OVERLAY}: {model}") for row in entry["rows"])
    theirs = listed(provider, model)
    if not theirs:
        yield Difference(provider, model, ABSENT, None, "", "", ABSENT in differs)
        return
    seen = set()
    for price, since, mine, other in parting(ours, theirs, now):
        if price not in seen:
            seen.add(price)
            yield Difference(provider, model, price, since, mine, other, price in differs)
    for gone in differs:
        if gone not in seen:
            yield Difference(provider, model, gone, None, "", "", False)


def parting(
    ours: tuple[PriceRow, ...], theirs: tuple[PriceRow, ...], now: datetime
) -> Iterator[tuple[str, datetime | None, str, str]]:
    """Prices that differ, with the moment, our amount and theirs."""
    both = [_list(ours), _list(theirs)]
    for moment in _moments((*ours, *theirs), now):
        one, other = (each.rate("", "any", moment) for each in both)
        for name, field in PRICES.items():
            for length in _LENGTHS:
                a, b = _amount(one, field, length), _amount(other, field, length)
                if a != b:
                    yield name, moment, a, b
                    break


def _list(rows: tuple[PriceRow, ...]) -> PriceList:
    return PriceList(lambda provider, model: rows)


def _moments(rows: tuple[PriceRow, ...], now: datetime) -> list[datetime]:
    """One moment in each span in which no price can change: every edge of a row, in and out of its hours, and now."""
    edges = {edge for row in rows for edge in (row.since, row.until) if edge is not None}
    days = {now, *edges, *(edge - _HOUR for edge in edges)}
    hours = {row.window.start for row in rows if row.window is not None}
    week = {day + timedelta(days=n) for day in days for n in range(7)} if hours else days
    return sorted(days | {datetime.combine(day.date(), hour, UTC) for day in week for hour in hours})


def _amount(row: PriceRow | None, field: str, length: int) -> str:
    price: Price | None = None if row is None else getattr(row, field)
    amount = at(price, length)
    return "unknown" if amount is None else plain(amount)
