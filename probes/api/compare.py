"""Findings against rule data: what agrees, what to change to what, and what the findings leave open."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from localmodel.rules.models import normalise
from localmodel.rules.step import DatedRules
from localmodel.rules.types import RuleValue
from probes.api.claim import fits
from probes.api.invalidation import NONE
from probes.api.report import plain
from probes.errors import BadFindings
from traces.schema import JsonObject

Word: TypeAlias = Literal["agrees", "change", "open", "no_rule"]


class Compared(NamedTuple):
    """One finding against the value in force: `word`, a sentence, and the table to add where a value should change."""

    rule: str | None
    probe: str
    word: Word
    text: str
    current: Any = None
    measured: Any = None
    suggestion: str = ""


def read_findings(path: Path) -> list[JsonObject]:
    """The claims in a record of `probe rules`. Raises `BadFindings`."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadFindings(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    found = [row for number, text in enumerate(lines, 1) for row in _claims(path, number, text)]
    if not found:
        raise BadFindings(f"{path}: no finding in {len(lines)} lines; want the record of `cachewright probe rules`")
    return found


def _claims(path: Path, number: int, text: str) -> Iterator[JsonObject]:
    if not text.strip():
        return
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFindings(f"{path}:{number}: not JSON; want one object a line") from None
    if isinstance(row, dict) and isinstance(row.get("claim"), str) and "finding" in row:
        if not isinstance(row.get("model"), str) or not isinstance(row.get("probe"), str):
            raise BadFindings(f"{path}:{number}: the finding names no model or no probe")
        yield row


def compare(row: JsonObject, ruleset: DatedRules) -> Compared:
    """One finding against the ruleset's value for its model on its day."""
    rule = row["rule"] if isinstance(row.get("rule"), str) else None
    probe, value = row["probe"], row.get("value") if _is_sound(row.get("value")) else None
    current = ruleset.at(normalise(row["model"]), "claude_api", _moment(row)).values.get(rule or "")
    if rule is None or current is None:
        return Compared(rule, probe, "no_rule", f"{row.get('finding')}: {row.get('why', '')}")
    agrees = _agrees(rule, value, current)
    if value is None or agrees is None or row.get("finding") == "inconclusive":
        return Compared(rule, probe, "open", f"{row.get('finding')}: {row.get('why', '')}", current.value, value)
    said = f"{current.value} ({current.status}, checked {current.checked})"
    if agrees:
        return Compared(rule, probe, "agrees", f"{said}; measured {plain(value)}", current.value, value)
    text = f"{said}, but measured {plain(value)}"
    return Compared(rule, probe, "change", text, current.value, value, _suggest(rule, value, row))


def _is_sound(value: Any) -> bool:
    """Whether a probe can have found this value: the file may be anybody's."""
    if isinstance(value, dict):
        top = value.get("at_most")
        return _is_amount(value.get("above")) and (top is None or _is_amount(top))
    return isinstance(value, bool | str) or (_is_amount(value) and isinstance(value, int))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _agrees(rule: str, value: Any, current: RuleValue) -> bool | None:
    if rule == "isolation_scope":
        return None  # two keys cannot tell a workspace from an organization
    try:
        return fits(value, current.value)
    except (TypeError, KeyError):
        return None


def _moment(row: JsonObject) -> datetime | None:
    try:
        return datetime.fromisoformat(str(row.get("at")))
    except ValueError:
        return None


def _suggest(rule: str, value: Any, row: JsonObject) -> str:
    """The TOML table that would say what was measured; "" where rule data cannot say it."""
    figure = simplest(value["above"], value["at_most"]) if isinstance(value, dict) else value
    if figure is None or value == NONE:
        return ""
    moment = _moment(row)
    day = "" if moment is None else f"checked = {moment.date()}\n"
    return (
        f'[[{rule}]]\nvalue = {json.dumps(figure)}\nstatus = "measured"\n{day}source = "probe"\n'
        f"models = [{json.dumps(normalise(row['model']))}]\nnote = {json.dumps(str(row.get('why', '')))}"
    )


def simplest(above: float, at_most: float | None) -> int | None:
    """The roundest whole number of seconds in the interval, `None` where it holds none or has no end."""
    if at_most is None:
        return None
    for unit in (3600, 1800, 600, 300, 60, 30, 10, 5, 1):
        first = (int(above // unit) + 1) * unit
        if first <= at_most:
            return first
    return None
