"""Price rows: money per million tokens, dated, and the one written form of them.

The same table form serves the user's price file, the overlay in `prices/overlay.toml`, the cache and
`prices show --json`:

    {"currency": "USD", "per": 1000000, "input": "3.00", "cache_read": "0.30", "cache_write_5m": "3.75",
     "cache_write_1h": "6.00", "output": "15.00", "since": "2026-10-07", "until": …, "source": "…"}

A price is a number, better a string, or tiers `[[0, "0.10"], [100000, "0.50"]]`: above 100,000 tokens of total
input the second price holds for every token of the request. `cache_write` alone is the price of a provider with one
lifetime. `"times": {"batch": "0.5", "fast": "2"}` are factors on all prices of calls under other terms (`varied`).
Money is `Decimal`, never float; amounts of two currencies are never added.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from auditor.errors import BadPriceFile
from traces.schema import JsonObject, Ttl

MILLION = Decimal(1_000_000)
DOLLARS = "USD"

Tiers: TypeAlias = tuple[tuple[int, Decimal], ...]
"""((total input tokens above which the price holds, price), …), ascending, the first from 0."""

Price: TypeAlias = Decimal | Tiers


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of the day (UTC, `start` inclusive, `end` exclusive) in which a row holds.

    `weekdays` are ISO numbers (1 Monday … 7 Sunday), empty for all; on the dates in `except_on` it never holds.
    """

    start: time
    end: time
    weekdays: tuple[int, ...] = ()
    except_on: tuple[date, ...] = ()

    def active(self, moment: datetime) -> bool:
        """Whether `moment` (UTC) lies in the window; a window may run over midnight."""
        if moment.date() in self.except_on or (self.weekdays and moment.isoweekday() not in self.weekdays):
            return False
        clock = moment.time()
        if self.end < self.start:
            return clock >= self.start or clock < self.end
        return self.start <= clock < self.end


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Prices of one model over one span of time, in `currency` per million tokens; `None` is unknown.

    `since` is inclusive, `until` exclusive (UTC). `write_5m` is the price of the provider's shorter lifetime (5 min,
    30 min at OpenAI), `write_1h` that of the longer one (1 h, 12 h at OpenAI). `unsplit` names the lifetime of writes
    for which the provider's usage gives none, where the provider leaves no doubt about it. `times` are factors on all
    prices under other terms; `lacks` the terms of a call for which no factor is known, so that its price is partial.
    """

    input: Price | None = None
    read: Price | None = None
    write_5m: Price | None = None
    write_1h: Price | None = None
    output: Price | None = None
    since: datetime | None = None
    until: datetime | None = None
    window: Window | None = None
    unsplit: Ttl | None = None
    source: str = ""
    checked: date | None = None
    note: str = ""
    currency: str = DOLLARS
    times: tuple[tuple[str, Decimal], ...] = ()
    lacks: tuple[str, ...] = ()

    def active(self, moment: datetime) -> bool:
        """Whether this row may price a call that started at `moment`; a time without zone counts as UTC."""
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        after = self.since is None or moment >= self.since
        before = self.until is None or moment < self.until
        return after and before and (self.window is None or self.window.active(moment))


def at(price: Price | None, input_tokens: int) -> Decimal | None:
    """The price that a request with `input_tokens` of total input pays; a tier holds for the whole request."""
    if price is None or isinstance(price, Decimal):
        return price
    return [value for above, value in price if above == 0 or input_tokens > above][-1]


def scaled(price: Price | None, factor: Decimal) -> Price | None:
    """A price, in all its tiers, times a factor."""
    if price is None or isinstance(price, Decimal):
        return None if price is None else price * factor
    return tuple((above, value * factor) for above, value in price)


def varied(row: PriceRow, terms: tuple[str, ...]) -> PriceRow:
    """The row as it prices calls under other terms ("batch", "fast", "geo_us"): each multiplies all prices.

    Terms without a known factor stand in `lacks`, and the prices are then those of the usual terms.
    """
    factors = dict(row.times)
    factor, lacks = Decimal(1), []
    for term in terms:
        if term in factors:
            factor *= factors[term]
        else:
            lacks.append(term)
    if factor != 1:
        row = replace(
            row,
            input=scaled(row.input, factor),
            read=scaled(row.read, factor),
            write_5m=scaled(row.write_5m, factor),
            write_1h=scaled(row.write_1h, factor),
            output=scaled(row.output, factor),
        )
    return replace(row, lacks=tuple(lacks))


PRICES = {
    "input": "input",
    "cache_write_5m": "write_5m",
    "cache_write_1h": "write_1h",
    "cache_read": "read",
    "output": "output",
}
"""The written names of the prices, in the order in which people read them, and their fields."""

_WORDS = ("source", "note")
_WINDOW = ("hours", "weekdays", "except")
_KEYS = {
    *(*PRICES, *_WORDS, *_WINDOW, "cache_write", "currency", "per", "since", "until", "unsplit", "checked", "times"),
}


def row_from(table: object, where: str) -> PriceRow:
    """Read one row from its written form. `where` opens the message of a `BadPriceFile`."""
    if not isinstance(table, Mapping):
        raise BadPriceFile(f"{where}: a price must be a table, not {table!r}; see `prices show --json` for the form")
    _check_keys(table, where)
    per = _number(table.get("per", 1_000_000), f"{where}: per")
    if per == 0:
        raise BadPriceFile(f"{where}: per is 0; give the tokens that a price is for, such as 1000000")
    fields = dict(table)
    if "cache_write" in fields:
        fields["cache_write_5m"] = fields.pop("cache_write")
    prices = {name: _price(fields[key], per, f"{where}: {key}") for key, name in PRICES.items() if key in fields}
    return PriceRow(
        input=prices.get("input"),
        read=prices.get("read"),
        write_5m=prices.get("write_5m"),
        write_1h=prices.get("write_1h"),
        output=prices.get("output"),
        since=_moment(table.get("since"), f"{where}: since"),
        until=_moment(table.get("until"), f"{where}: until"),
        window=_window(table, where),
        unsplit=_unsplit(table.get("unsplit"), where),
        source=str(table.get("source", "")),
        checked=_day(table.get("checked"), f"{where}: checked"),
        note=str(table.get("note", "")),
        currency=table.get("currency", DOLLARS),
        times=_times(table.get("times", {}), f"{where}: times"),
    )


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        hint = "; quote a model name that holds a dot" if any(isinstance(table[k], dict) for k in unknown) else ""
        raise BadPriceFile(f"{where}: unknown key {unknown[0]!r}{hint}; known are {', '.join(sorted(_KEYS))}")
    if "cache_write" in table and "cache_write_5m" in table:
        raise BadPriceFile(f"{where}: both cache_write and cache_write_5m; keep one")
    currency = table.get("currency", DOLLARS)
    if not isinstance(currency, str) or not re.fullmatch("[A-Z]{3}", currency):
        raise BadPriceFile(f"{where}: currency is {currency!r}; give a code of three letters such as USD")


def _number(value: object, where: str) -> Decimal:
    try:
        number = Decimal(value) if isinstance(value, str | int | Decimal) and not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or number < 0 or number.adjusted() > 15:
        raise BadPriceFile(f'{where} is {value!r}; give a number of 0 or more, such as "3.00"')
    return number


def _price(value: object, per: Decimal, where: str) -> Price:
    if not isinstance(value, list | tuple):
        return _number(value, where) * MILLION / per
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        raise BadPriceFile(f'{where}: tiers must be pairs such as [[0, "0.10"], [100000, "0.50"]]')
    tiers = tuple((int(_number(above, where)), _number(price, where) * MILLION / per) for above, price in value)
    starts = [above for above, _ in tiers]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise BadPriceFile(f"{where}: tiers start at {starts} tokens; begin at 0 and go up")
    return tiers


def _times(value: object, where: str) -> tuple[tuple[str, Decimal], ...]:
    if not isinstance(value, Mapping):
        raise BadPriceFile(f'{where} is {value!r}; give factors such as {{"batch": "0.5"}}')
    return tuple((str(name), _number(factor, f"{where}.{name}")) for name, factor in value.items())


def _moment(value: object, where: str) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.isoformat() if isinstance(value, date) else str(value))
    except ValueError:
        raise BadPriceFile(f"{where} is {value!r}; give a date such as 2026-10-07 (UTC)") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _day(value: object, where: str) -> date | None:
    moment = _moment(value, where)
    return moment.date() if moment else None


def _unsplit(value: object, where: str) -> Ttl | None:
    if value is None:
        return None
    for ttl in get_args(Ttl):
        if value == ttl:
            return cast(Ttl, ttl)
    raise BadPriceFile(f"{where}: unsplit is {value!r}; give 5m or 1h")


def _window(table: Mapping[str, Any], where: str) -> Window | None:
    if "hours" not in table:
        return None
    try:
        days = [_day(day, f"{where}: except") for day in table.get("except", ())]
        start, end = (time.fromisoformat(part) for part in table["hours"].split("-"))
        weekdays = tuple(int(day) for day in table.get("weekdays", ()))
    except (AttributeError, TypeError, ValueError):
        given = ", ".join(f"{key} {table[key]!r}" for key in _WINDOW if key in table)
        remedy = 'give hours such as "01:00-04:00" (UTC), weekdays such as [1, 2], except as dates'
        raise BadPriceFile(f"{where}: {given}; {remedy}") from None
    return Window(start, end, weekdays, tuple(day for day in days if day))


def row_to(row: PriceRow) -> JsonObject:
    """The written form of a row, ready for JSON; unknown fields are left out. `row_from` reads it back."""
    table: JsonObject = {"currency": row.currency, "per": 1_000_000}
    for key, name in PRICES.items():
        price: Price | None = getattr(row, name)
        if price is not None:
            table[key] = plain(price) if isinstance(price, Decimal) else [[n, plain(p)] for n, p in price]
    table |= {name: value.isoformat() for name in ("since", "until", "checked") if (value := getattr(row, name))}
    table |= {name: value for name in ("unsplit", *_WORDS) if (value := getattr(row, name))}
    if row.times:
        table["times"] = {name: plain(factor) for name, factor in row.times}
    if row.window:
        table["hours"] = f"{row.window.start:%H:%M}-{row.window.end:%H:%M}"
        table["weekdays"] = list(row.window.weekdays)
        table["except"] = [day.isoformat() for day in row.window.except_on]
    return table


def plain(amount: Decimal) -> str:
    """A decimal as text without exponent and without zeros at its end: `Decimal("1.50E+1")` is "15"."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def load_prices(path: Path) -> dict[str, tuple[PriceRow, ...]]:
    """Read a user's price file (.toml, else JSON): model → plain rows oldest first, then rows with hours.

    Each model holds one row or a list of dated rows in the form that the module describes. Raises `BadPriceFile`.
    """
    content = _read(path)
    if not isinstance(content, dict):
        raise BadPriceFile(f'{path}: holds a {type(content).__name__}; give a table of models, {{"model": {{…}}}}')
    prices = {}
    for model, value in content.items():
        tables = value if isinstance(value, list) else [value]
        rows = [row_from(table, f'{path}: model "{model}"') for table in tables]
        for row in rows:
            if row.input is None:
                raise BadPriceFile(f'{path}: model "{model}": no input price; add input = "…"')
        prices[model] = tuple(sorted(rows, key=_order))
    return prices


def _order(row: PriceRow) -> tuple[bool, datetime]:
    # The last active row counts, so rows with hours stand behind the plain rows that they overrule.
    return row.window is not None, row.since or datetime.min.replace(tzinfo=UTC)


def _read(path: Path) -> object:
    # Floats become Decimal from their text, so that 0.30 in a file is exactly 0.30.
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text, parse_float=Decimal)
        return json.loads(text, parse_float=Decimal)
    except OSError as error:
        raise BadPriceFile(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except ValueError as error:
        form = "TOML" if path.suffix == ".toml" else "JSON"
        raise BadPriceFile(f"{path}: not {form} ({error}); correct the file") from None
    except RecursionError:
        raise BadPriceFile(f"{path}: nested too deeply to be read; give a table of models") from None
