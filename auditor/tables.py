"""A table as data, and one writer for each form: text, JSON, CSV and Markdown.

Cells are `None` where unknown. Text and Markdown are for people (separators, percent, dollars), CSV and JSON for
programs (plain numbers; money as decimal strings, times in ISO form).
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from auditor.price_rows import plain
from auditor.visible import visible
from traces.schema import JsonObject

SCHEMA = "cachewright.table/1"

Kind: TypeAlias = Literal["text", "count", "ratio", "usd", "time", "span", "flag"]
Cell: TypeAlias = str | int | float | Decimal | datetime | bool | None


class Column(NamedTuple):
    """A name (with the unit where it needs one) and what the cells are: `span` is seconds, `usd` US dollars."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; `total` is a last row of sums, `notes` what has to be said of them."""

    name: str
    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    total: tuple[Cell, ...] | None = None
    notes: list[str] = field(default_factory=list)


def as_json(table: Table) -> JsonObject:
    """The table with a row an object."""
    rows = [_object(table, row) for row in table.rows]
    total = {} if table.total is None else {"total": _object(table, table.total)}
    return {"schema": SCHEMA, "table": table.name, "rows": rows, **total, "notes": table.notes}


def as_csv(table: Table) -> str:
    """A header and a line a row; no total, which a reader can sum up. An unknown cell is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow(["" if value is None else value for value in map(_value, row)])
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """A table for an issue or a page."""
    head = [column.name for column in table.columns]
    lines = [head, ["---" if column.kind == "text" else "--:" for column in table.columns], *_told(table)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return text + "".join(f"\n\n{note}" for note in table.notes) + "\n"


def as_text(table: Table) -> str:
    """Columns side by side, numbers to the right; columns without any cell are left out."""
    lines = [[column.name.removesuffix("_tokens").replace("_", " ") for column in table.columns], *_told(table)]
    kept = [place for place in range(len(table.columns)) if any(line[place] for line in lines[1:])]
    widths = {place: max(len(line[place]) for line in lines) for place in kept}
    made = []
    for line in lines:
        cells = [
            line[place].ljust(widths[place])
            if table.columns[place].kind == "text"
            else line[place].rjust(widths[place])
            for place in kept
        ]
        made.append("  ".join(cells).rstrip())
    return "\n".join([*made, *table.notes])


def _told(table: Table) -> Iterator[list[str]]:
    total = [] if table.total is None else [table.total]
    for row in (*table.rows, *total):
        yield [words(value, column.kind) for value, column in zip(row, table.columns, strict=True)]


def words(value: Cell, kind: Kind) -> str:
    """A cell as people read it; empty where unknown."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if kind == "flag":
        return "yes" if value else ""
    if kind == "ratio":
        return f"{float(str(value)) * 100:.2f} %"
    if kind == "usd":
        amount = Decimal(str(value))
        return f"${amount:,.2f}" if abs(amount) >= 1 else f"${amount:.4f}"
    if kind == "span":
        return span(int(str(value)))
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def span(seconds: int) -> str:
    """A length of time in its two largest units: 2 d 2 h, 4 min 10 s."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def _object(table: Table, row: tuple[Cell, ...]) -> JsonObject:
    return {column.name: _value(value) for column, value in zip(table.columns, row, strict=True)}


def _value(value: Cell) -> str | int | float | bool | None:
    if isinstance(value, Decimal):
        return plain(value)
    return value.isoformat() if isinstance(value, datetime) else value
