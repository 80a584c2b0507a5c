"""The first screen: all sessions of the store, what they cost, and what of it was avoidable."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input, Static

from auditor.errors import AuditError
from auditor.figures import dollars, number
from auditor.summary import Session, total
from auditor.visible import visible
from tui import queries
from tui.drawing import Cell, Piece, shown, spark
from tui.screens.base import COMMON, Base
from tui.widgets.rows import Column, RowTable

PAID_AGAIN = "paid again"
COLUMNS = (
    Column("session", 14, grow=True),
    Column("start", 11, wide_width=16, spare=3),
    Column("calls", 5, right=True, spare=2),
    Column("model", 0, wide_width=20),
    Column("input", 0, right=True, wide_width=13),
    Column("hit", 4, right=True, wide_width=7),
    Column("ceiling", 7, right=True, spare=1),
    Column("cost", 8, right=True, wide_width=10),
    Column("avoidable", 10, right=True),
    Column(PAID_AGAIN, 0, right=True, wide_width=12),
    Column("hits", 10, wide_width=20, spare=4),
)
ORDERS: dict[str, Callable[[Session], Any]] = {
    "start": lambda session: session.started or "",
    "cost": lambda session: (session.cost.usd, session.cost.equivalents),
    "hit": lambda session: -1 if session.hit_ratio is None else session.hit_ratio,
    "input": lambda session: session.cost.input_tokens,
    "calls": lambda session: session.calls,
    "model": lambda session: session.model,
    "session": lambda session: session.trace.casefold(),
}
MOST_REPLAYED = 400
"""Longer sessions are replayed when they are opened, not while somebody scrolls over them."""

QUIET_S = 0.1
"""Rows are filled in once the list has stood still for so long."""


class SessionsScreen(Base):
    """All sessions; Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("slash", "filter", "Search", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("b", "app.breakdown", "Costs"),
        Binding("l", "app.live", "Live"),
        Binding("escape", "unfilter", "All", show=False),
        *COMMON[1:],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Session] = []
        self.listed: list[Session] = []
        self.order, self.descending, self.wanted = "start", True, ""
        self.counted: dict[str, int] = {}
        self.sparks: dict[str, list[float | None]] = {}
        self.savings: dict[str, queries.Saving | None] = {}
        self.lost: dict[str, int] | None = None

    def compose(self) -> ComposeResult:
        """Top line, filter, table, footer."""
        yield Static(id="top")
        yield Static(id="problem")
        yield Input(id="filter", placeholder="words of a session's name, its model or its day", compact=True)
        yield Static(id="empty", markup=False)
        yield RowTable(COLUMNS, id="sessions")
        yield Static(id="detail")
        yield Footer()

    @property
    def table(self) -> RowTable:
        """The list."""
        return self.query_one(RowTable)

    def on_mount(self) -> None:
        """Read the store; the list has the keys."""
        self.table.focus()
        self.refreshed()

    def refreshed(self) -> None:
        """Read all sums again."""
        self.start(self._read, "read")

    async def _read(self) -> None:
        """Show the latest sessions at once; read all others too unless they are known."""
        found = await self.asked(lambda: asyncio.to_thread(queries.latest, self.source, self.app.size.height))
        if found is None:
            return
        self._take(found.sessions)
        unknown = sum(session.calls for session in self.all) != found.version
        if unknown:
            found = await self.asked(lambda: asyncio.to_thread(queries.overview, self.source)) or found
            self.all = []
            self._take(found.sessions)
        self.house.seen(found.version)
        self.lost = await self.asked(lambda: asyncio.to_thread(queries.lost, self.source)) or {}
        self.list_again()

    def _take(self, sessions: list[Session]) -> None:
        """Put sessions that were read in the place of what was known of them."""
        known = {session.trace: session for session in self.all}
        for session in sessions:
            if self.counted.get(session.trace) != session.calls:
                self.sparks.pop(session.trace, None)
                self.savings.pop(session.trace, None)
            self.counted[session.trace] = session.calls
            known[session.trace] = session
        self.all = list(known.values())
        self.list_again()

    def list_again(self) -> None:
        """Filter and sort; the cursor stays on its session."""
        table, words = self.table, self.wanted.casefold().split()
        kept = self.listed[table.cursor].trace if table.cursor < len(self.listed) else None
        chosen = [one for one in self.all if not words or all(word in _names(one) for word in words)]
        self.listed = sorted(chosen, key=self._key, reverse=self.descending)
        cursor = next((at for at, one in enumerate(self.listed) if one.trace == kept), 0)
        table.show(len(self.listed), self._cells, cursor)
        self._headline()
        empty = self.query_one("#empty", Static)
        empty.set_class(not self.listed, "shown")
        if not self.listed:
            empty.update(self._nothing())
        self.fill()
        self._tell()

    def _key(self, session: Session) -> Any:
        return (self.lost or {}).get(session.trace, 0) if self.order == PAID_AGAIN else ORDERS[self.order](session)

    def _headline(self) -> None:
        whole = total(session.cost for session in self.listed)
        calls = sum(session.calls for session in self.listed)
        priced = f"{dollars(whole.usd)}{' (partial)' if whole.unpriced else ''}, "
        worth = f"{priced if whole.unpriced < whole.calls else ''}{number(whole.equivalents)} eq"
        head: list[Piece] = [
            ("Sessions", "bold"),
            (f"  {number(len(self.listed))}, {number(calls)} calls, {worth}", ""),
        ]
        head += [(f"  by {self.order} {'↓' if self.descending else '↑'}", "dim"), ("  ", "")]
        self.say([*head, ("● live" if self.house.live else "○ not live", "good" if self.house.live else "dim")])

    def _cells(self, index: int, wide: bool) -> list[Cell]:
        session = self.listed[index]
        saving, cost = self.savings.get(session.trace), session.cost
        start = (session.started or "").replace("T", " ")
        hits = self.sparks.get(session.trace)
        lost = (self.lost or {}).get(session.trace)
        waiting = "…" if session.trace not in self.savings and session.calls <= MOST_REPLAYED else "?"
        return [
            session.trace or "(empty)",
            start[:16] if wide else start[5:16],
            number(session.calls),
            session.model or "several",
            number(cost.input_tokens),
            _share(session.hit_ratio, wide),
            [(_share(saving.ceiling, True) if saving else waiting, "dim")],
            dollars(cost.usd) if cost.unpriced < cost.calls else "unpriced",
            [(_worth(saving) if saving else waiting, "good")],
            number(lost) if lost else "",
            [(spark(hits, 20 if wide else 10) if hits else "", "read")],
        ]

    def fill(self) -> None:
        """Fill in the rows in sight, once they stand still."""
        self.start(self._fill, "fill")

    async def _fill(self) -> None:
        await asyncio.sleep(QUIET_S)
        sight = [(index, self.listed[index]) for index in self.table.in_sight if index < len(self.listed)]
        missing = [session.trace for _, session in sight if session.trace not in self.sparks]
        if missing:
            self.sparks |= await self.asked(lambda: asyncio.to_thread(queries.sparks, self.source, missing)) or {}
            self.table.refresh()
        for index, session in sight:
            if session.trace not in self.savings and session.calls <= MOST_REPLAYED:
                try:
                    self.savings[session.trace] = await asyncio.to_thread(self.house.saving, session.trace)
                except AuditError as error:  # not known is another thing than not to be replayed
                    self.problem(str(error))
                    return
                self.table.refresh_row(index)
        self._tell()

    def _tell(self) -> None:
        """Say in full what the row under the cursor has no room for."""
        if self.table.cursor >= len(self.listed):
            self.detail([])
            return
        session = self.listed[self.table.cursor]
        model = visible(session.model, 40) or "several models"
        self.detail([(shown(session.trace, 120), ""), (f"  {model}{self._unreplayed(session)}", "dim")])

    def _unreplayed(self, session: Session) -> str:
        """Why a row has no avoidable money."""
        if session.calls > MOST_REPLAYED:
            return "; open it for what was avoidable"
        known = session.trace in self.savings and self.savings[session.trace] is None
        return "; no call can be replayed" if known else ""

    def _nothing(self) -> str:
        if self.all:
            return "No session matches. Escape shows all."
        return (
            f"No call is stored yet in {visible(str(self.source.db))}\n\n"
            "Record an agent:  cachewright record -- COMMAND\nOr read a trace:  cachewright tui run.jsonl\n\n"
            "This screen follows the store: calls appear as they are recorded."
        )

    @on(RowTable.Moved)
    def _moved(self) -> None:
        self.fill()
        self._tell()

    @on(RowTable.Opened)
    def _opened(self, message: RowTable.Opened) -> None:
        if message.index < len(self.listed):
            self.house.open_session(self.listed[message.index].trace)

    @on(RowTable.HeadClicked)
    def _head_clicked(self, message: RowTable.HeadClicked) -> None:
        title = COLUMNS[message.column].title
        if title in (*ORDERS, PAID_AGAIN):
            self.descending = not self.descending if title == self.order else True
            self.order = title
            self.list_again()

    def action_open(self) -> None:
        """Open the session under the cursor."""
        self.table.action_open()

    def action_sort(self) -> None:
        """Sort by the next column."""
        names = [*ORDERS, PAID_AGAIN]
        self.order = names[(names.index(self.order) + 1) % len(names)]
        self.list_again()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.descending = not self.descending
        self.list_again()

    def action_filter(self) -> None:
        """Type what to look for."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        self.wanted = message.value
        self.list_again()

    @on(Input.Submitted)
    def _chosen(self) -> None:
        self.table.focus()

    def action_unfilter(self) -> None:
        """Show all sessions again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("shown")
        self.table.focus()

    def action_back(self) -> None:
        """There is nothing before the first screen."""
        self.action_unfilter()


def _names(session: Session) -> str:
    """What a search looks in."""
    return f"{session.trace} {session.model} {(session.started or '').replace('T', ' ')}".casefold()


def _share(ratio: float | None, exact: bool) -> str:
    if ratio is None:
        return "?"
    return f"{ratio * 100:.2f}%" if exact else f"{ratio * 100:.0f}%"


def _worth(saving: queries.Saving) -> str:
    row = saving.row
    if row.saving_equivalents <= 0:
        return "0"
    return f"{round(row.saving_equivalents):,}eq" if row.saving_usd is None else dollars(row.saving_usd)
