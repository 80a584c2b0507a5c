"""Rule values as a table or as JSON: what holds, for what, how sure, since when we know, and from where."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from localmodel.rules.known import PLATFORMS
from localmodel.rules.load import CONFLICT, Ruleset, conflict_of, utc_day
from localmodel.rules.models import normalise
from localmodel.rules.types import RuleValue

_HEAD = ("rule", "value", "applies to", "status", "checked", "source")
_VALUE_WIDTH = 32
_SCOPE_WIDTH = 52
_LINE_WIDTH = 120


def show(ruleset: Ruleset, *, model: str | None, moment: datetime | None) -> list[RuleValue]:
    """The values of `ruleset` in file order: all, or those in force for `model` (any spelling) and `moment`.

    A value is in force if it wins on at least one platform. With a moment alone, it wins for at least one model;
    with a model alone, the latest values count.
    """
    if model is None and moment is None:
        return [row for rows in ruleset.values.values() for row in rows]
    day = utc_day(moment)
    kept: list[RuleValue] = []
    for rule, rows in ruleset.values.items():
        winners = {id(ruleset.in_force(rule, name, on, day)) for name in _names(rows, model) for on in PLATFORMS}
        kept += [row for row in rows if id(row) in winners]
    return kept


def _names(rows: Sequence[RuleValue], model: str | None) -> set[str]:
    """Normalised models to ask for; "" stands for all that the file does not name."""
    if model is not None:
        return {normalise(model)}
    return {"", *(name for row in rows for name in row.models)}


def as_text(rows: Sequence[RuleValue]) -> str:
    """Aligned columns, one line a value (long cells wrapped), disputed values marked * and explained below."""
    if not rows:
        return "no values\n"
    cells: list[list[tuple[str, ...]]] = [[(word,) for word in _HEAD], *(_cells(row) for row in rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(_HEAD))]
    lines = [
        "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
        for row in cells
        for parts in zip_longest(*row, fillvalue="")
    ]
    return "\n".join([*lines, *_disputes(rows)]) + "\n"


def as_json(rows: Sequence[RuleValue]) -> str:
    """A JSON list of objects; dates as ISO text, multipliers as decimal text, absent dates and conflicts null."""
    return json.dumps([_plain(row) for row in rows], indent=2, ensure_ascii=False)


def _cells(row: RuleValue) -> list[tuple[str, ...]]:
    name = f"{row.id} *" if conflict_of(row) else row.id
    scope = wrap(_scope(row), _SCOPE_WIDTH, break_on_hyphens=False)
    value = wrap(_value(row.value), _VALUE_WIDTH, break_long_words=False)
    return [(name,), tuple(value), tuple(scope), (row.status,), (row.checked.isoformat(),), (row.source,)]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scope(row: RuleValue) -> str:
    parts = [", ".join(row.models), ", ".join(row.platforms)]
    parts.append(f"from {row.since}" if row.since else "")
    parts.append(f"until {row.until}" if row.until else "")
    return "; ".join(part for part in parts if part) or "all"


def _disputes(rows: Sequence[RuleValue]) -> Iterator[str]:
    disputed = [(row, text) for row in rows if (text := conflict_of(row))]
    if disputed:
        yield from ("", "* disputed:")
    for row, text in disputed:
        told = f"{row.id} {_value(row.value)} ({_scope(row)}): {text}"
        yield from wrap(told, _LINE_WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _plain(row: RuleValue) -> dict[str, Any]:
    return {
        "id": row.id,
        "value": str(row.value) if isinstance(row.value, Decimal) else row.value,
        "models": row.models,
        "platforms": row.platforms,
        "since": row.since and row.since.isoformat(),
        "until": row.until and row.until.isoformat(),
        "status": row.status,
        "checked": row.checked.isoformat(),
        "source": row.source,
        "note": row.note.partition(CONFLICT)[0].rstrip("; "),
        "conflict": conflict_of(row),
    }
