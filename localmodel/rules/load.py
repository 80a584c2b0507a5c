"""Rule files: reading, checking, inheriting, and choosing what is in force.

A rule file is TOML: `schema`, `provider`, `matcher`, `[sources]`, and for each rule an array of tables with the fields
of `FIELDS`. A file of one's own may say `inherits = "anthropic"` (or a path, relative to itself) and add or override
values. Everything unknown is an error: a misspelt rule must not be a rule that silently keeps its old value.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn, get_args

from localmodel.rules.errors import BadRuleFile
from localmodel.rules.models import normalise
from localmodel.rules.types import Rates, Rules, RuleValue, Status
from traces.schema import Level, Ttl

PLATFORMS = ("claude_api", "claude_platform_aws", "azure_foundry", "bedrock", "google_cloud")
MATCHERS = ("explicit_breakpoints",)
STATUSES: tuple[str, ...] = get_args(Status)
PARAMETERS = (
    "model", "web_search", "web_fetch", "citations", "speed", "tool_choice", "disable_parallel_tool_use", "images",
    "thinking", "effort", "output_format", "context_management", "betas",
)  # fmt: skip
FIELDS = ("value", "status", "checked", "source", "models", "platforms", "since", "until", "note", "conflict")
REQUIRED = FIELDS[:4]
HEADER = ("schema", "provider", "matcher", "inherits", "sources")
CONFLICT = "conflict: "
"""What stands in `RuleValue.note` in front of a source's disagreement."""

Check = Callable[[Any], Any]
"""Takes a value as TOML gave it; gives it as kept (lists as tuples); raises ValueError with what was expected."""


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, 0 or more")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _factor(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < 100:
        raise ValueError("a number from 0 to 100")
    return Decimal(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value


def _day(value: Any) -> date:
    # A datetime is a date to Python, but a rule begins with a day.
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("a date such as 2026-09-01, without quotes")
    return value


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(words) + _nearest(value, words))
        return str(value)

    return check


def _each(check: Check, what: str) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"a list of {what}")
        return tuple(check(item) for item in value)

    return check_all


def _exactly(*words: str) -> Check:
    def check(value: Any) -> tuple[str, ...]:
        if value != list(words):
            raise ValueError("[" + ", ".join(words) + "], the only order known")
        return words

    return check


def _result_kind(value: Any) -> str:
    if not isinstance(value, str) or not value.endswith("_tool_result"):
        raise ValueError("block kinds that end in _tool_result")
    return value


def _model(value: Any) -> str:
    name = normalise(_text(value))
    if name != value:
        raise ValueError(f"a model's plain name, {name!r}")
    return name


def _some(check: Check, what: str) -> Check:
    inner = _each(check, what)

    def check_some(value: Any) -> tuple[Any, ...]:
        # An empty list reads as "none of them", but an absent field means "all": refuse the doubtful form.
        if value == []:
            raise ValueError(f"at least one of the {what}, or no such field")
        return tuple(inner(value))

    return check_some


_LEVELS = _one_of(*(level.name.lower() for level in Level))
_TTLS = _one_of(*get_args(Ttl))

RULES: Mapping[str, Check] = {
    "prefix_order": _exactly(*(level.name.lower() for level in Level)),
    "max_breakpoints": _count,
    "automatic_breakpoint": _flag,
    "entries_after_request": _one_of("each_breakpoint"),
    "cannot_mark": _each(_one_of("thinking", "redacted_thinking", "empty_text", "deferred_tool"), "block kinds"),
    "implicit_breakpoints": _each(_result_kind, "block kinds"),
    "implicit_ttl": _TTLS,
    "lookback_positions": _count,
    "lookback_collapse": _each(_one_of("tool_use", "tool_result"), "block kinds"),
    "ttl_seconds_5m": _count,
    "ttl_seconds_1h": _count,
    "default_ttl": _TTLS,
    "ttl_clock": _one_of("request_start"),
    "ttl_order": _one_of("longer_first"),
    "refresh_on_read": _flag,
    "refresh_breakpoints": _flag,
    "readable_after": _one_of("first_response_begins"),
    "readable_fallback_seconds": _count,
    "isolation_scope": _one_of("workspace", "organization", "project"),
    "min_tokens": _count,
    **{f"invalidates_{name}": _LEVELS for name in PARAMETERS},
    "strips_thinking": _flag,
    "write_multiplier_5m": _factor,
    "write_multiplier_1h": _factor,
    "read_multiplier": _factor,
}

_CHECKS: Mapping[str, Check] = {
    "status": _one_of(*STATUSES),
    "checked": _day,
    "source": _text,
    "models": _some(_model, "models"),
    "platforms": _some(_one_of(*PLATFORMS), "platforms"),
    "since": _day,
    "until": _day,
    "note": _text,
    "conflict": _text,
}


@dataclass(frozen=True)
class Ruleset:
    """All values of one rule file and its parents.

    digest   SHA-256 in hex of the file's bytes, chained over its parents: two rulesets with one digest are equal
    values   by rule id, in file order, the parents' first
    sources  short public description by source key
    ranked   the same values, the most specific first: the first that applies is in force
    """

    digest: str
    provider: str
    values: Mapping[str, tuple[RuleValue, ...]]
    sources: Mapping[str, str]
    ranked: Mapping[str, tuple[RuleValue, ...]] = field(repr=False, compare=False)
    _cache: dict[tuple[str, str, date | None], Rules] = field(default_factory=dict, repr=False, compare=False)

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """The rules for `model` (any spelling) on `platform` at `moment` (aware; `None` is the latest).

        A platform or model that the file does not name gets the values that hold for all. Kept by day, because
        a replay asks once per call.
        """
        key = (model, platform, None if moment is None else utc_day(moment))
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._rules(normalise(model), platform, utc_day(moment))
        return found

    def in_force(self, rule: str, model: str, platform: str, day: date) -> RuleValue:
        """The one value of `rule` that holds for a normalised `model`; `load` has made sure that there is one."""
        return next(row for row in self.ranked[rule] if _applies(row, model, platform, day))

    def _rules(self, model: str, platform: str, day: date) -> Rules:
        rows = {rule: self.in_force(rule, model, platform, day) for rule in self.ranked}
        value = {rule: row.value for rule, row in rows.items()}
        return Rules(
            ruleset=self.digest,
            max_breakpoints=value["max_breakpoints"],
            lookback=value["lookback_positions"],
            collapse=frozenset(value["lookback_collapse"]),
            ttl_s={"5m": value["ttl_seconds_5m"], "1h": value["ttl_seconds_1h"]},
            default_ttl=value["default_ttl"],
            min_tokens=value["min_tokens"],
            min_tokens_known=bool(rows["min_tokens"].models),
            automatic=value["automatic_breakpoint"],
            cannot_mark=frozenset(value["cannot_mark"]),
            implicit_kinds=frozenset(value["implicit_breakpoints"]),
            implicit_ttl=value["implicit_ttl"],
            strips_thinking=value["strips_thinking"],
            readable_fallback_s=value["readable_fallback_seconds"],
            refresh_breakpoints=value["refresh_breakpoints"],
            invalidation={name: int(Level[value[f"invalidates_{name}"].upper()]) for name in PARAMETERS},
            rates=Rates(value["write_multiplier_5m"], value["write_multiplier_1h"], value["read_multiplier"]),
            values=rows,
        )


def utc_day(moment: datetime | None) -> date:
    """The day that dates rules: in UTC; `None` is the far future, so the latest values. Naive times count as UTC."""
    if moment is None:
        return date.max
    if moment.tzinfo is None or moment.tzinfo is UTC:
        return moment.date()
    return moment.astimezone(UTC).date()


def _applies(row: RuleValue, model: str, platform: str, day: date) -> bool:
    if (row.models and model not in row.models) or (row.platforms and platform not in row.platforms):
        return False
    return (row.since is None or row.since <= day) and (row.until is None or day < row.until)


@dataclass(frozen=True)
class _Layer:
    """One file, checked by itself."""

    place: str
    digest: str
    provider: str
    sources: Mapping[str, str]
    rows: Mapping[str, tuple[RuleValue, ...]]


def load(name_or_path: str) -> Ruleset:
    """The built-in ruleset of that name ("anthropic"), or that of a `.toml` file, with its parents.

    A child's value beats a parent's of equal or lower specificity, whatever their dates; a parent's value for a
    model or platform still beats a child's for all. Raises `BadRuleFile`, one line: file, fact, remedy.
    """
    return _combine(_layers(_locate(name_or_path, Path()), ()))


def _locate(name: str, base: Path) -> Path:
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return base / name
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in names:
        near = _nearest(name, names)
        raise BadRuleFile(f"{name}: no built-in ruleset of that name{near}; known: {', '.join(names)}, or a .toml file")
    return folder / f"{name}.toml"


def _layers(path: Path, below: tuple[Path, ...]) -> list[_Layer]:
    """The chain of files, the eldest first."""
    place = path.name if path.parent == Path(__file__).parent else str(path)
    if path.resolve() in below:
        _fail(place, "inherits from itself; name another parent")
    try:
        data = path.read_bytes()
        document = tomllib.loads(data.decode(), parse_float=Decimal)
    except OSError as error:
        _fail(place, f"cannot be read: {error.strerror}; give a built-in name or a TOML file")
    except (ValueError, RecursionError) as error:
        _fail(place, f"not TOML: {' '.join(str(error).split())}")
    parents: list[_Layer] = []
    if "inherits" in document:
        parent = _checked(place, "inherits", _text, document["inherits"])
        parents = _layers(_locate(parent, path.parent), (*below, path.resolve()))
    return [*parents, _layer(place, data, document, parents[-1] if parents else None)]


def _layer(place: str, data: bytes, document: Mapping[str, Any], parent: _Layer | None) -> _Layer:
    _known(place, "key", document, (*HEADER, *RULES))
    if document.get("schema") != 1 or document["schema"] is True:
        _fail(place, f"schema is {document.get('schema')!r}, this version reads schema = 1")
    if parent is None or "matcher" in document:
        _checked(place, "matcher", _one_of(*MATCHERS), document.get("matcher"))
    own = _checked(place, "provider", _text, document.get("provider", parent and parent.provider))
    sources = {**(parent.sources if parent else {}), **_sources(place, document.get("sources", {}))}
    rows = {rule: _rows(place, rule, document[rule], sources) for rule in document if rule in RULES}
    digest = hashlib.sha256((parent.digest if parent else "").encode() + data).hexdigest()
    return _Layer(place, digest, own, sources, rows)


def _sources(place: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        _fail(place, "sources must be a table [sources] of key = description")
    return {key: _checked(place, f"sources.{key}", _text, text) for key, text in table.items()}


def _rows(place: str, rule: str, tables: Any, sources: Mapping[str, str]) -> tuple[RuleValue, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        _fail(place, f"{rule} must be an array of tables; head each value with [[{rule}]]")
    rows = tuple(_row(f"{place}: {rule}, table {n}", rule, table, sources) for n, table in enumerate(tables, 1))
    for (m, first), (n, second) in combinations(enumerate(rows, 1), 2):
        if _rank(first) == _rank(second) and _meet(first, second):
            _fail(f"{place}: {rule}", f"tables {m} and {n} hold at the same time and are equally specific; date them")
    return rows


def _row(place: str, rule: str, table: Mapping[str, Any], sources: Mapping[str, str]) -> RuleValue:
    _known(place, "field", table, FIELDS)
    for name in REQUIRED:
        if name not in table:
            _fail(place, f"has no {name}; add {name} = …")
    got = {name: _checked(place, name, check, table[name]) for name, check in _CHECKS.items() if name in table}
    if got["source"] not in sources:
        _fail(place, f"source {got['source']!r} is not in [sources]{_nearest(got['source'], sources)}")
    if "since" in got and "until" in got and got["since"] >= got["until"]:
        _fail(place, f"until {got['until']} is not after since {got['since']}; until is the first day without it")
    if conflict := got.pop("conflict", None):
        # `RuleValue` has one text for remarks; `conflict_of` takes it apart again.
        got["note"] = f"{got['note']}; {CONFLICT}{conflict}" if "note" in got else f"{CONFLICT}{conflict}"
    return RuleValue(id=rule, value=_checked(place, "value", RULES[rule], table["value"]), **got)


def conflict_of(row: RuleValue) -> str | None:
    """What a source that disagrees with this value says, or `None`."""
    return row.note.partition(CONFLICT)[2] or None


def _combine(layers: list[_Layer]) -> Ruleset:
    last = layers[-1]
    rules = dict.fromkeys(rule for layer in layers for rule in layer.rows)
    values = {rule: tuple(row for layer in layers for row in layer.rows.get(rule, ())) for rule in rules}
    ranked = {rule: _ranked(rule, layers) for rule in RULES}
    for rule, rows in ranked.items():
        _require_cover(last.place, rule, rows)
    return Ruleset(last.digest, last.provider, values, last.sources, ranked)


def _rank(row: RuleValue, depth: int = 0) -> tuple[bool, bool, int, date]:
    return bool(row.platforms), bool(row.models), depth, row.since or date.min


def _ranked(rule: str, layers: Iterable[_Layer]) -> tuple[RuleValue, ...]:
    rows = [(_rank(row, depth), row) for depth, layer in enumerate(layers) for row in layer.rows.get(rule, ())]
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0], reverse=True))


def _meet(first: RuleValue, second: RuleValue) -> bool:
    """Whether some model, platform and day falls under both of two rows of equal rank."""
    for ours, theirs in ((first.models, second.models), (first.platforms, second.platforms)):
        if ours and not set(ours) & set(theirs):
            return False
    return max(first.since or date.min, second.since or date.min) < min(
        first.until or date.max, second.until or date.max
    )


def _require_cover(place: str, rule: str, rows: tuple[RuleValue, ...]) -> None:
    """A model and platform that nobody names must find a value on every day, so that choosing cannot fail."""
    days = {date.min, *(day for row in rows for day in (row.since, row.until) if day)}
    for day in sorted(days):
        if not any(_applies(row, "", "", day) for row in rows):
            when = "" if day == date.min else f" from {day}"
            _fail(f"{place}: {rule}", f"has no value for all models and platforms{when}; add a [[{rule}]] without them")


def _known(place: str, what: str, found: Iterable[str], known: Iterable[str]) -> None:
    for key in found:
        if key not in set(known):
            _fail(place, f"unknown {what} {key!r}{_nearest(key, known)}")


def _checked(place: str, name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        got = "nothing" if value is None else repr(value) if isinstance(value, str) else str(value)
        _fail(place, f"{name} is {got}, expected {error}")


def _nearest(word: Any, known: Iterable[str]) -> str:
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.0)
    return f", nearest is {close[0]!r}" if close else ""


def _fail(place: str, fact: str) -> NoReturn:
    raise BadRuleFile(f"{place}: {fact}")
