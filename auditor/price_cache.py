"""Prices of one model from the package `genai-prices` and our overlay, kept in a small cache file.

Importing `genai_prices` costs some 0.3 to 0.9 s, too much for a command that prices three models. So the history of
each model asked for is kept in one JSON file whose name holds the package's version and the overlay's digest; the
package is imported only for a model that the file does not know. Nothing is ever fetched from the network.
"""

import hashlib
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.errors import BadPriceFile
from auditor.price_rows import Price, PriceRow, Window, row_from, row_to, scaled
from traces.schema import JsonObject, Ttl

if TYPE_CHECKING:
    from genai_prices.types import ConditionalPrice, MatchLogic, ModelInfo, ModelPrice, PriceVariant

OVERLAY = Path(__file__).parent / "prices" / "overlay.toml"

_FORMAT = 3
"""Raised when the cache file's form changes; part of its name, so that old files are simply not read."""

_PROVIDERS = {
    "bedrock": "aws",
    "google_cloud": "google",
    "vertex": "google",
    "vertex_ai": "google",
    "gemini": "google",
    "foundry": "azure",
    "azure_openai": "azure",
    "xai": "x-ai",
    "moonshot": "moonshotai",
    "kimi": "moonshotai",
}
"""Our names of providers → those of genai-prices, where they differ."""

_USUAL = ("default", "standard", "auto")
"""Terms that are no variant."""

_TAG = r"(?>\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|00\d|v\d+(?::\d+)?|latest|preview|exp)"
_VARIANT = re.compile(rf"(?:{_TAG})?+(?:[-@:.]{_TAG})*+(?:\[1m\])?")
"""What may follow a model's name without making it another model: dates, versions, and a client's context mark."""


def is_variant(model: str, name: str) -> bool:
    """Whether `model` is `name` itself or a dated or versioned form of it: never a neighbour such as `name`-mini."""
    return model.startswith(name) and _VARIANT.fullmatch(model, len(name)) is not None


class PriceCache:
    """Histories of models, from the cache file where it knows them, else from genai-prices and the overlay.

    `directory` defaults to the user's cache directory. A missing, corrupt or unwritable file costs time, never an
    error. `seed` gives rows that ship with the program; they are asked first. Processes may share the file: it is
    replaced as a whole, and what a race loses is found again.
    """

    def __init__(self, directory: Path | None = None, seed: Callable[[], JsonObject] = dict) -> None:
        self._seed = seed
        self.path = (directory or default_directory()) / cache_name()
        self._known: dict[str, tuple[PriceRow, ...]] = {}
        self._written: JsonObject | None = None

    def history(self, provider: str, model: str) -> tuple[PriceRow, ...]:
        """All rows of a model, plain rows oldest first, then rows with hours; () where the price is unknown."""
        key = f"{_PROVIDERS.get(provider, provider)}/{model}".lower()
        if key not in self._known:
            self._known[key] = self._find(key)
        return self._known[key]

    def _find(self, key: str) -> tuple[PriceRow, ...]:
        if key in self._seed():
            return _rows_from(self._seed()[key])
        if self._written is None:
            self._written = self._read()
        try:
            return _rows_from(self._written[key])
        except (KeyError, BadPriceFile):
            rows = extract(*key.split("/", 1))
            self._keep(key, rows)
            return rows

    def _read(self) -> JsonObject:
        try:
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _keep(self, key: str, rows: tuple[PriceRow, ...]) -> None:
        # Read again first: another process may have added models since.
        self._written = {**self._read(), key: [row_to(row) for row in rows]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, json.dumps(self._written).encode())
        except OSError:
            pass  # without a cache the next run is slower, nothing else


def default_directory() -> Path:
    """The user's cache directory for this program."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cachewright"))


@cache
def cache_name() -> str:
    """File name of the cache for the installed genai-prices and this overlay."""
    digest = hashlib.blake2b(OVERLAY.read_bytes(), digest_size=6).hexdigest()
    return f"prices-{_FORMAT}-{genai_version()}-{digest}.json"


def genai_version() -> str:
    """Version of the installed genai-prices, from its directory's name: `importlib.metadata` alone costs 40 ms."""
    spec = importlib.util.find_spec("genai_prices")
    if spec and spec.origin:
        for info in Path(spec.origin).parent.parent.glob("genai_prices-*.dist-info"):
            return info.name.removeprefix("genai_prices-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("genai-prices")


def _replace(path: Path, content: bytes) -> None:
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _rows_from(value: object) -> tuple[PriceRow, ...]:
    if not isinstance(value, list):
        raise BadPriceFile("price cache: not a list of rows; the entry is looked up again")
    return tuple(row_from(table, "price cache") for table in value)


def extract(provider: str, model: str) -> tuple[PriceRow, ...]:
    """A model's history from genai-prices, corrected by the overlay; imports the package.

    `provider` is a provider id of genai-prices, `model` the recorded id in lower case. A match by genai-prices counts
    only where `model` is a dated or versioned form of a name it lists, because its rules go by prefix or substring
    ("claude-opus-4-1" would price "claude-opus-4-10").
    """
    model = model.removeprefix(f"{provider}/")
    found = _match(provider, model)
    owner = found[0] if found else provider
    corrected = _overlay().history(owner, model)
    rows = _with_times(corrected or (_rows_of(found[1]) if found else ()), _times_of(found[1]) if found else {})
    return _overlay().completed(owner, model, rows)


def listed(provider: str, model: str) -> tuple[PriceRow, ...]:
    """What genai-prices alone says of a model, without the overlay; () where it does not know it."""
    found = _match(provider, model)
    return _rows_of(found[1]) if found else ()


def _match(provider: str, model: str) -> "tuple[str, ModelInfo] | None":
    """The provider that lists the model (Azure, for one, refers to others) and what genai-prices knows of it."""
    from genai_prices.data_snapshot import get_snapshot

    listed = {entry.id: entry for entry in get_snapshot().providers}
    if provider not in listed:
        return None
    # genai-prices also reads compact dates ("gpt-5.2-20251211") as the dashed ones that it lists.
    names = dict.fromkeys((model, re.sub(r"-(\d{4})(\d{2})(\d{2})$", r"-\1-\2-\3", model)))
    for owner in (provider, *(listed[provider].fallback_model_providers or ())):
        for info in listed[owner].models if owner in listed else ():
            if any(info.is_match(name) and _trusted(info.match, name) for name in names):
                return owner, info
    return None


def _trusted(clause: "MatchLogic", model: str) -> bool:
    return any(
        start < end and (start == 0 or model[start - 1] in "./:") and _VARIANT.fullmatch(model, end)
        for start, end in _spans(clause, model)
    )


def _spans(clause: "MatchLogic", model: str) -> Iterator[tuple[int, int]]:
    """Where in `model` the names stand that a rule of genai-prices lists."""
    from genai_prices.types import ClauseAnd, ClauseContains, ClauseEndsWith, ClauseEquals, ClauseOr, ClauseRegex

    if isinstance(clause, ClauseOr | ClauseAnd):
        for part in clause.or_ if isinstance(clause, ClauseOr) else clause.and_:
            yield from _spans(part, model)
    elif isinstance(clause, ClauseRegex):
        if found := re.search(clause.regex, model):
            yield found.span()
    else:
        if isinstance(clause, ClauseEquals):
            text = clause.equals
        elif isinstance(clause, ClauseContains):
            text = clause.contains
        else:
            text = clause.ends_with if isinstance(clause, ClauseEndsWith) else clause.starts_with
        start = model.find(text.lower())
        if start >= 0:
            yield start, start + len(text)


def _rows_of(info: "ModelInfo") -> tuple[PriceRow, ...]:
    from genai_prices.types import ModelPrice, TimeOfDateConstraint

    if isinstance(info.prices, ModelPrice):
        return (_row_of(info.prices),)
    hours = [c for c in info.prices if isinstance(c.constraint, TimeOfDateConstraint)]
    dated = sorted((c for c in info.prices if c not in hours), key=_start)
    # The first price also holds before its own start, as in genai-prices itself.
    starts = [None, *(_midnight(_start(c)) for c in dated[1:]), None]
    rows = [
        replace(_row_of(c.prices), since=since, until=until)
        for c, since, until in zip(dated, starts, starts[1:], strict=False)
    ]
    windows = [replace(_row_of(c.prices), window=_window_of(c)) for c in hours]
    return (*rows, *windows)


def _times_of(info: "ModelInfo") -> dict[str, Decimal]:
    """Factors of price variants (batch, fast, flex, priority) on the usual prices, where one holds for all of them.

    A variant is held against the price in force on its own first day: of announced prices each has one. That day is
    often the package's check and not the offer's start, so the factor holds at all times.
    """
    rows = [row for row in _rows_of(info) if row.window is None]
    found: dict[str, set[Decimal | None]] = {}
    for variant in info.price_variants or () if rows else ():
        if len(variant.when) != 1 or (name := next(iter(variant.when.values()))) in _USUAL:
            continue
        start, other = _start(variant), _row_of(variant.prices)
        base = next((row for row in reversed(rows) if start == date.min or row.active(_midnight(start))), rows[-1])
        found.setdefault(name, set()).update(
            _ratio(getattr(other, each), getattr(base, each)) for each in ("input", "read", "output")
        )
    return {name: factor for name, factors in found.items() if len(factors) == 1 and (factor := factors.pop())}


def _ratio(price: Price | None, base: Price | None) -> Decimal | None:
    one, other = (each if each is None or isinstance(each, Decimal) else each[0][1] for each in (price, base))
    return one / other if one is not None and other else None


def _with_times(rows: tuple[PriceRow, ...], factors: dict[str, Decimal]) -> tuple[PriceRow, ...]:
    if not factors:
        return rows
    return tuple(replace(row, times=tuple(sorted((factors | dict(row.times)).items()))) for row in rows)


def _start(entry: "ConditionalPrice | PriceVariant") -> date:
    return getattr(entry.constraint, "start_date", date.min)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _window_of(entry: "ConditionalPrice") -> Window:
    from genai_prices.types import TimeOfDateConstraint

    assert isinstance(entry.constraint, TimeOfDateConstraint)
    return Window(_utc(entry.constraint.start_time), _utc(entry.constraint.end_time))


def _utc(clock: time) -> time:
    if clock.tzinfo is None:
        return clock
    return datetime.combine(date(2000, 1, 1), clock).astimezone(UTC).time()


def _row_of(prices: "ModelPrice") -> PriceRow:
    return PriceRow(
        input=_price_of(prices.input_mtok),
        read=_price_of(prices.cache_read_mtok),
        write_5m=_price_of(prices.cache_write_mtok),
        write_1h=_price_of(prices.cache_write_1h_mtok),
        output=_price_of(prices.output_mtok),
        source=f"genai-prices {genai_version()}",
    )


def _price_of(value: Any) -> Price | None:
    if value is None or isinstance(value, Decimal):
        return value
    return ((0, value.base), *((tier.start, tier.price) for tier in value.tiers))


@dataclass(frozen=True, slots=True)
class _LongWrite:
    times_input: Decimal
    unsplit: Ttl
    source: str


@dataclass(frozen=True, slots=True)
class _Overlay:
    """The corrections of `overlay.toml`: (provider, model name) → rows, → price of the longer write, → factors."""

    rows: dict[tuple[str, str], tuple[PriceRow, ...]]
    long_writes: dict[tuple[str, str], _LongWrite]
    times: dict[tuple[str, str], dict[str, Decimal]]

    def history(self, provider: str, model: str) -> tuple[PriceRow, ...]:
        for (owner, name), rows in self.rows.items():
            if owner == provider and is_variant(model, name):
                return rows
        return ()

    def completed(self, provider: str, model: str, rows: tuple[PriceRow, ...]) -> tuple[PriceRow, ...]:
        """Rows with the longer write and the factors that genai-prices lacks."""
        for (owner, name), rule in self.long_writes.items():
            if owner == provider and is_variant(model, name):
                rows = tuple(_add_long_write(row, rule) for row in rows)
                break
        for (owner, name), factors in self.times.items():
            if owner == provider and is_variant(model, name):
                return _with_times(rows, factors)
        return rows


def _add_long_write(row: PriceRow, rule: _LongWrite) -> PriceRow:
    source = f"{row.source}; longer write: {rule.source}"
    return replace(row, write_1h=scaled(row.input, rule.times_input), unsplit=rule.unsplit, source=source)


@cache
def _overlay() -> _Overlay:
    content = tomllib.loads(OVERLAY.read_text("utf-8"))
    rows = {
        (entry["provider"], name): tuple(row_from(row, f"{OVERLAY}: {name}") for row in entry["rows"])
        for entry in content["history"]
        for name in entry["models"]
    }
    long_writes = {
        (entry["provider"], name): _LongWrite(Decimal(entry["times_input"]), entry["unsplit"], entry["source"])
        for entry in content["long_write"]
        for name in entry["models"]
    }
    times = {
        (entry["provider"], name): {term: Decimal(factor) for term, factor in entry["factors"].items()}
        for entry in content["times"]
        for name in entry["models"]
    }
    return _Overlay(rows, long_writes, times)
