"""What if: policies to switch on and off, and the bill that a replay under them gives."""

import asyncio
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from auditor.figures import dollars, number, percent
from auditor.policies import POLICIES
from auditor.savings import WhatIf
from auditor.visible import visible
from tui import queries
from tui.drawing import Cell, Piece, bar
from tui.queries import Judged
from tui.screens.base import COMMON, Base
from tui.widgets.colours import content
from tui.widgets.rows import Column, RowTable

COLUMNS = (
    Column("", 3),
    Column("policy", 24),
    Column("hit ratio", 9, right=True, spare=2),
    Column("equivalents", 12, right=True, spare=3),
    Column("saves", 11, right=True),
    Column("", 9, right=True, spare=1),
    Column("what it may cost", 0, wide_width=20, grow=True),
)
NAMED = ("cheapest", "all")


class WhatIfScreen(Base):
    """The policies of a session; Space toggles one, the totals follow."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Toggle", priority=True),
        Binding("a", "choose('all')", "All fixes"),
        Binding("c", "choose('cheapest')", "Cheapest"),
        Binding("x", "choose('')", "None"),
        *COMMON,
    ]

    def __init__(self, judged: Judged, trace: str) -> None:
        super().__init__()
        self.judged, self.trace = judged, trace
        self.listed = [row for row in judged.rows if row.policy not in NAMED]
        self.chosen: set[str] = set()

    def compose(self) -> ComposeResult:
        """Headline, totals, policies."""
        yield Static(id="top")
        yield Static(id="problem")
        yield Static(id="totals")
        yield RowTable(COLUMNS, id="policies")
        yield Static(id="detail")
        yield Footer()

    def on_mount(self) -> None:
        """Show the bill as recorded."""
        self.say([("What if", "bold"), (f"  {visible(self.trace, 60)}", "")])
        table = self.query_one(RowTable)
        table.show(len(self.listed), self._cells)
        table.focus()
        self.action_choose("")
        self._moved()

    @on(RowTable.Moved)
    def _moved(self) -> None:
        if self.listed:
            row = self.listed[self.query_one(RowTable).cursor]
            self.detail([(f"{row.policy}: ", "dim"), (row.quality_risk or "no known risk to the answers", "")])

    def _cells(self, index: int, wide: bool) -> list[Cell]:
        row = self.listed[index]
        on = row.policy in self.chosen
        return [
            [("[x]" if on else "[ ]", "good" if on else "dim")],
            row.policy,
            percent(row.bill.hit_ratio),
            number(row.bill.equivalents),
            [(number(row.saving_equivalents), "good" if row.saving_equivalents > 0 else "miss")],
            dollars(row.saving_usd),
            [(row.quality_risk or "", "dim")],
        ]

    def action_switch(self) -> None:
        """Switch the policy under the cursor."""
        if self.listed:
            self.chosen ^= {self.listed[self.query_one(RowTable).cursor].policy}
            self._replay()

    @on(RowTable.Opened)
    def _opened(self) -> None:
        self.action_switch()

    def action_choose(self, name: str) -> None:
        """Switch on the policies of a named row and no other; none for no name."""
        row = next((row for row in self.judged.rows if row.policy == name), None)
        self.chosen = set(row.policies) if row is not None else set()
        self._replay()

    def _replay(self) -> None:
        """Show the totals: at once where the table has them, else as soon as they are replayed."""
        self.query_one(RowTable).refresh()
        known = next((row for row in self.judged.rows if set(row.policies) == self.chosen), None)
        if known is not None or not self.chosen:
            self.workers.cancel_group(self, "replay")
            self._totals(known)
        else:
            self.start(self._run, "replay")

    async def _run(self) -> None:
        policies = [policy for policy in POLICIES if policy.name in self.chosen]
        self._totals(await asyncio.to_thread(queries.chosen, self.judged, policies))

    def _totals(self, row: WhatIf | None) -> None:
        whole = self.judged.money.total
        bill = whole if row is None else row.bill
        peak, pieces = max(whole.input_tokens, bill.input_tokens), []
        for name, each in (("as billed", whole), ("under these", bill)):
            parts = bar(
                [("read", each.read_tokens), ("written", each.write_tokens), ("uncached", each.uncached_tokens)],
                peak,
                24,
            )
            pieces += [(f"{name:<12}", "dim"), *parts, (f" {percent(each.hit_ratio):>8} read", "")]
            pieces += [(f"  {number(each.equivalents):>11} equivalents", "bold"), ("\n", "")]
        pieces += _verdict(row, bool(self.judged.trial.requests))
        self.query_one("#totals", Static).update(content(pieces))


def _verdict(row: WhatIf | None, replayable: bool) -> list[Piece]:
    """What is saved, and at which risk."""
    if not replayable:
        return [("No request with a body and a known bill was recorded, so no fix can be replayed.", "dim")]
    if row is None:
        return [("No policy chosen: Space toggles one, a takes all fixes, c the cheapest combination.", "dim")]
    usd = "" if row.saving_usd is None else f", {dollars(row.saving_usd)}"
    saved: list[Piece] = [("saves ", ""), (f"{number(row.saving_equivalents)}{usd}", "good")]
    saved += [(f" in {number(row.bill.calls)} calls", "")]
    return [*saved, (f"; {row.quality_risk}", "dim")] if row.quality_risk else saved
