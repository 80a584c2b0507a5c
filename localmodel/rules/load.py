"""Rule files: reading, checking, inheriting, and choosing what is in force.

A rule file is TOML: `schema`, `provider`, `matcher`, `[sources]`, and for each rule an array of tables with the fields
of `FIELDS`. A file of one's own may say `inherits = "anthropic"` (or a path, relative to itself) and add or override
values. Everything unknown is an error: a misspelt rule must not be a rule that silently keeps its old value.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

from localmodel.rules.checks import Check, nearest, one_of, text
from localmodel.rules.errors import BadRuleFile
from localmodel.rules.known import FIELD_CHECKS, FIELDS, HEADER, MATCHERS, REQUIRED, allowed
from localmodel.rules.models import matches, normalise
from localmodel.rules.types import Rules, RuleValue, rules_of

CONFLICT = "conflict: "
"""What stands in `RuleValue.note` in front of a source's disagreement."""


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
        return rules_of(self.digest, rows)


def utc_day(moment: datetime | None) -> date:
    """The day that dates rules: in UTC; `None` is the far future, so the latest values. Naive times count as UTC."""
    if moment is None:
        return date.max
    if moment.tzinfo is None or moment.tzinfo is UTC:
        return moment.date()
    return moment.astimezone(UTC).date()


def _applies(row: RuleValue, model: str, platform: str, day: date) -> bool:
    if (row.models and not any(matches(model, name) for name in row.models)) or (
        row.platforms and platform not in row.platforms
    ):
        return False
    return (row.since is None or row.since <= day) and (row.until is None or day < row.until)


@dataclass(frozen=True)
class _Layer:
    """One file, checked by itself."""

    place: str
    digest: str
    provider: str
    matcher: str
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
        near = nearest(name, names)
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
        parent = _checked(place, "inherits", text, document["inherits"])
        parents = _layers(_locate(parent, path.parent), (*below, path.resolve()))
    return [*parents, _layer(place, data, document, parents[-1] if parents else None)]


def _layer(place: str, data: bytes, document: Mapping[str, Any], parent: _Layer | None) -> _Layer:
    if document.get("schema") != 1 or document["schema"] is True:
        _fail(place, f"schema is {document.get('schema')!r}, this version reads schema = 1")
    matcher = document.get("matcher", parent and parent.matcher)
    _checked(place, "matcher", one_of(*MATCHERS), matcher)
    own = _checked(place, "provider", text, document.get("provider", parent and parent.provider))
    known = allowed(matcher)
    _known(place, "key", document, (*HEADER, *known))
    sources = {**(parent.sources if parent else {}), **_sources(place, document.get("sources", {}))}
    rows = {rule: _rows(place, rule, known[rule], document[rule], sources) for rule in document if rule in known}
    digest = hashlib.sha256((parent.digest if parent else "").encode() + data).hexdigest()
    return _Layer(place, digest, own, matcher, sources, rows)


def _sources(place: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        _fail(place, "sources must be a table [sources] of key = description")
    return {key: _checked(place, f"sources.{key}", text, told) for key, told in table.items()}


def _rows(place: str, rule: str, check: Check, tables: Any, sources: Mapping[str, str]) -> tuple[RuleValue, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        _fail(place, f"{rule} must be an array of tables; head each value with [[{rule}]]")
    rows = tuple(_row(f"{place}: {rule}, table {n}", rule, check, table, sources) for n, table in enumerate(tables, 1))
    for (m, first), (n, second) in combinations(enumerate(rows, 1), 2):
        if _rank(first) == _rank(second) and _meet(first, second):
            _fail(f"{place}: {rule}", f"tables {m} and {n} hold at the same time and are equally specific; date them")
    return rows


def _row(place: str, rule: str, check: Check, table: Mapping[str, Any], sources: Mapping[str, str]) -> RuleValue:
    _known(place, "field", table, FIELDS)
    for name in REQUIRED:
        if name not in table:
            _fail(place, f"has no {name}; add {name} = …")
    got = {name: _checked(place, name, each, table[name]) for name, each in FIELD_CHECKS.items() if name in table}
    if got["source"] not in sources:
        _fail(place, f"source {got['source']!r} is not in [sources]{nearest(got['source'], sources)}")
    if "since" in got and "until" in got and got["since"] >= got["until"]:
        _fail(place, f"until {got['until']} is not after since {got['since']}; until is the first day without it")
    if conflict := got.pop("conflict", None):
        # `RuleValue` has one text for remarks; `conflict_of` takes it apart again.
        got["note"] = f"{got['note']}; {CONFLICT}{conflict}" if "note" in got else f"{CONFLICT}{conflict}"
    return RuleValue(id=rule, value=_checked(place, "value", check, table["value"]), **got)


def conflict_of(row: RuleValue) -> str | None:
    """What a source that disagrees with this value says, or `None`."""
    return row.note.partition(CONFLICT)[2] or None


def _combine(layers: list[_Layer]) -> Ruleset:
    last = layers[-1]
    rules = dict.fromkeys(rule for layer in layers for rule in layer.rows)
    values = {rule: tuple(row for layer in layers for row in layer.rows.get(rule, ())) for rule in rules}
    ranked = {rule: _ranked(rule, layers) for rule in dict.fromkeys((*MATCHERS[last.matcher], *rules))}
    for rule, rows in ranked.items():
        _require_cover(last.place, rule, rows)
    return Ruleset(last.digest, last.provider, values, last.sources, ranked)


def _rank(row: RuleValue, depth: int = 0) -> tuple[bool, int, int, date]:
    # A name says more about a model than a pattern, and that more than nothing.
    named = 0 if not row.models else 1 if any(name.endswith("*") for name in row.models) else 2
    return bool(row.platforms), named, depth, row.since or date.min


def _ranked(rule: str, layers: Iterable[_Layer]) -> tuple[RuleValue, ...]:
    rows = [(_rank(row, depth), row) for depth, layer in enumerate(layers) for row in layer.rows.get(rule, ())]
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0], reverse=True))


def _meet(first: RuleValue, second: RuleValue) -> bool:
    """Whether some model, platform and day falls under both of two rows of equal rank."""
    if first.models and not any(_overlap(one, two) for one in first.models for two in second.models):
        return False
    if first.platforms and not set(first.platforms) & set(second.platforms):
        return False
    return max(first.since or date.min, second.since or date.min) < min(
        first.until or date.max, second.until or date.max
    )


def _overlap(one: str, two: str) -> bool:
    """Whether two models' names or patterns can mean one model."""
    return matches(one, two) or matches(two, one)


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
            _fail(place, f"unknown {what} {key!r}{nearest(key, known)}")


def _checked(place: str, name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        got = "nothing" if value is None else repr(value) if isinstance(value, str) else str(value)
        _fail(place, f"{name} is {got}, expected {error}")


def _fail(place: str, fact: str) -> NoReturn:
    raise BadRuleFile(f"{place}: {fact}")
