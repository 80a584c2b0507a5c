"""The live table of a probe's requests, on stderr where that is a terminal; elsewhere nothing is drawn."""

import sys
from typing import Any, Self

from probes.api.exchange import Exchange
from traces.schema import JsonObject

ROWS = 14
_COLUMNS = ("case", "input", "read", "written", "first text", "total", "cost", "")


class Live:
    """Context in which `started`, `ended` and `note` show; the table stays on the screen at the end."""

    def __init__(self) -> None:
        self._live: Any = None
        self._rows: list[tuple[str, ...]] = []
        self._open: list[str] = []
        self._note = ""

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as Drawn

            self._live = Drawn(self._table(), console=Console(stderr=True), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._live is not None:
            self._open, self._note = [], ""
            self._draw()
            self._live.stop()

    def started(self, exchange: Exchange) -> None:
        """A request was sent."""
        self._open.append(exchange.case)
        self._draw()

    def ended(self, row: JsonObject) -> None:
        """A request has ended."""
        if row["case"] in self._open:
            self._open.remove(row["case"])
        self._rows.append(cells(row))
        self._draw()

    def note(self, text: str) -> None:
        """What is being done."""
        self._note = text
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from auditor.visible import visible

        done = len(self._rows)
        earlier = f", the last {ROWS}" if done > ROWS else ""
        table = Table(title=f"{done} requests{earlier}", caption=Text(visible(self._note)), box=None, pad_edge=False)
        for number, name in enumerate(_COLUMNS):
            table.add_column(name, justify="left" if number in (0, 7) else "right")
        for cell in self._rows[-ROWS:]:
            table.add_row(*(Text(visible(text, 60)) for text in cell))
        for case in self._open:
            table.add_row(Text(case), *[Text("")] * 6, Text("…"))
        return table


def cells(row: JsonObject) -> tuple[str, ...]:
    """A request's row as texts; "?" is unknown."""
    state = "" if row["complete"] else str(row["error"] or "incomplete")
    cost = "?" if row["cost_usd"] is None else f"${row['cost_usd'][:8]}"
    tokens = [_count(row[name]) for name in ("total_input_tokens", "read_tokens", "write_tokens")]
    return (row["case"], *tokens, _seconds(row["first_text_s"]), _seconds(row["request_s"]), cost, state)


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows under their heads, as lines."""
    table = [_COLUMNS, *rows]
    widths = [max(len(row[n]) for row in table) for n in range(len(_COLUMNS))]
    left = (0, len(_COLUMNS) - 1)

    def cell(number: int, text: str) -> str:
        return text.ljust(widths[number]) if number in left else text.rjust(widths[number])

    return ["  ".join(cell(number, text) for number, text in enumerate(row)).rstrip() for row in table]


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f} s"
