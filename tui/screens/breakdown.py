"""Where the money of the whole store went: by day, model, project, kind of call, and cause of loss."""

import asyncio
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from auditor.figures import dollars, number, percent
from auditor.summary import DIMENSIONS, NOT_JUDGED, Cost, Dimension, total
from tui import queries
from tui.drawing import Cell, Piece, bar, shown
from tui.screens.base import COMMON, Base
from tui.widgets.rows import Column, RowTable

COLUMNS = (
    Column("", 20, grow=True),
    Column("calls", 8, right=True, spare=2),
    Column("read", 8, right=True, spare=3),
    Column("equivalents", 0, right=True, wide_width=16),
    Column("paid again", 12, right=True),
    Column("cost", 10, right=True),
    Column("", 12, wide_width=30, spare=4),
)


class BreakdownScreen(Base):
    """Costs along one dimension; the keys 1 to 5 choose it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"{n}", f"by('{name}')", name.capitalize()) for n, name in enumerate(DIMENSIONS, 1)),
        *COMMON,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.dimension: Dimension = "day"
        self.costs: dict[Dimension, dict[str, Cost]] = {}

    def compose(self) -> ComposeResult:
        """Headline and table."""
        yield Static(id="top")
        yield Static(id="problem")
        yield RowTable(COLUMNS, id="breakdown")
        yield Static(id="detail")
        yield Footer()

    def on_mount(self) -> None:
        """Add up the store."""
        self.say([("Costs", "bold"), ("  adding up …", "dim")])
        self.query_one(RowTable).focus()
        self.refreshed()

    def refreshed(self) -> None:
        """Add up the store again."""
        self.start(self._read)

    async def _read(self) -> None:
        found = await self.asked(lambda: asyncio.to_thread(queries.breakdown, self.source))
        if found is not None:
            self.costs = found
            self.action_by(self.dimension)

    def action_by(self, dimension: Dimension) -> None:
        """Show the costs along a dimension."""
        self.dimension = dimension
        rows = list(self.costs.get(dimension, {}).items())
        whole = total(cost for _, cost in rows)
        peak = max((int(cost.equivalents) for _, cost in rows), default=0)
        self.query_one(RowTable).show(len(rows), lambda index, wide: _cells(*rows[index], peak, wide))
        head: list[Piece] = [("Costs", "bold"), (f" by {dimension}  {number(whole.calls)} calls, ", "")]
        partial = f" (partial: {number(whole.unpriced)} calls unpriced)" if whole.unpriced else ""
        self.say([*head, (f"{number(whole.equivalents)} equivalents, {dollars(whole.usd)} with output{partial}", "")])
        self._moved()

    @on(RowTable.Moved)
    def _moved(self) -> None:
        names, cursor = list(self.costs.get(self.dimension, {})), self.query_one(RowTable).cursor
        name = names[cursor] if cursor < len(names) else ""
        advice = "; to judge them: cachewright audit --db FILE" if name == NOT_JUDGED else ""
        self.detail([(shown(name), ""), (advice, "dim")] if names else [])


def _cells(name: str, cost: Cost, peak: int, wide: bool) -> list[Cell]:
    return [
        name or "(empty)",
        number(cost.calls),
        percent(cost.hit_ratio) if cost.hit_ratio is not None else "?",
        number(cost.equivalents),
        number(cost.lost_tokens) if cost.lost_tokens else "",
        dollars(cost.usd) if cost.unpriced < cost.calls else "unpriced",
        bar([("read", int(cost.equivalents))], peak, 30 if wide else 12),
    ]
