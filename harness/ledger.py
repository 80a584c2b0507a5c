"""The ledger: one row an attempt, in the native trace format, so that what is spent here is what `audit` reads.

A row is on the disk before its answer is used. `sink` (the store, passed in by the command line) gets every row too; it
may be behind after a crash and is filled again from the file when the session is opened.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from msgspec.structs import replace

from harness.errors import BudgetSpent
from harness.journal import append_line, private
from traces import io
from traces.errors import UnreadableInput
from traces.schema import Call

Price: TypeAlias = Callable[[Call], Decimal | None]
"""What a call cost in US dollars; `None` where that is not known, never 0 for it."""

MOST_UNKNOWN = 3
"""Answers whose price is unknown before a budget counts as one that cannot be kept: unknown is not zero."""

Sink: TypeAlias = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt and its price."""

    call: Call
    usd: Decimal | None

    @property
    def wait_s(self) -> float | None:
        """Seconds from sending to the first token."""
        return _seconds(self.call.started_at, self.call.first_token_at)

    @property
    def generation_s(self) -> float | None:
        """Seconds from the first token to the end."""
        return _seconds(self.call.first_token_at, self.call.ended_at)


class Ledger:
    """All attempts of one session, its sub-agents' included. Safe for several threads."""

    def __init__(self, path: Path, price: Price, sink: Sink | None = None, *, budget: Decimal | None = None) -> None:
        self._price, self._sink, self._budget = price, sink, budget
        self._lock = Lock()
        self.rows: list[Row] = []
        self.tool_s = 0.0
        self._file = private(path)
        if path.stat().st_size:
            with suppress(UnreadableInput):  # rows that cannot be read are lost; a resumed session says so
                for call in io.read(path):
                    self._keep(call)

    def add(self, call: Call) -> Row:
        """Write one attempt under the next number, on the disk when this returns."""
        with self._lock:
            call = replace(call, seq=len(self.rows) + 1)
            line = BytesIO()
            io.write([call], line)
            append_line(self._file, line.getvalue())
            return self._keep(call)

    def _keep(self, call: Call) -> Row:
        row = Row(call, self._price(call))
        self.rows.append(row)
        if self._sink is not None:
            self._sink(call)
        return row

    @property
    def spent(self) -> Decimal:
        """Dollars spent, as far as prices are known."""
        return sum((row.usd for row in self.rows if row.usd is not None), Decimal(0))

    def check_budget(self) -> None:
        """Raises `BudgetSpent` where nothing more may be sent."""
        if self._budget is None:
            return
        if self.spent >= self._budget:
            raise BudgetSpent(f"spent {self.spent:.4f} USD of {self._budget} USD; raise --budget to go on")
        unknown = sum(row.usd is None and row.call.response is not None for row in self.rows)
        if unknown >= MOST_UNKNOWN:
            raise BudgetSpent(f"{unknown} answers came without usage, so --budget {self._budget} cannot be kept")

    def find(self, name: str) -> Row | None:
        """The row of the attempt with this id."""
        return next((row for row in reversed(self.rows) if row.call.id == name), None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class Sum:
    """Totals of some rows. `unknown`: attempts whose usage or price is not known; they are in no other figure."""

    attempts: int
    input_tokens: int
    read_tokens: int
    write_tokens: int
    output_tokens: int
    usd: Decimal
    unknown: int

    @property
    def hit_ratio(self) -> float | None:
        """Read ÷ input; `None` without input."""
        return self.read_tokens / self.input_tokens if self.input_tokens else None


def total(rows: Iterable[Row]) -> Sum:
    """Sum of rows."""
    rows = list(rows)
    known = [row.call.usage for row in rows if row.call.usage.input_tokens is not None]
    return Sum(
        attempts=len(rows),
        input_tokens=sum(usage.input_tokens or 0 for usage in known),
        read_tokens=sum(usage.read_tokens or 0 for usage in known),
        write_tokens=sum(usage.write_tokens or 0 for usage in known),
        output_tokens=sum(usage.output_tokens or 0 for usage in known),
        usd=sum((row.usd for row in rows if row.usd is not None), Decimal(0)),
        unknown=sum(row.usd is None for row in rows),
    )


def by_kind(rows: Iterable[Row]) -> dict[str, Sum]:
    """Sums by purpose, in the order in which purposes first occur."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.call.kind, []).append(row)
    return {kind: total(group) for kind, group in groups.items()}


def _seconds(start: object, end: object) -> float | None:
    from datetime import datetime

    return (end - start).total_seconds() if isinstance(start, datetime) and isinstance(end, datetime) else None
