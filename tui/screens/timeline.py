"""The calls of one session in time order: what was billed, pauses against the entry's lifetime, agents, and misses."""

import asyncio
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from auditor.figures import dollars, number, percent
from auditor.records import Audited
from auditor.visible import visible
from tui.drawing import VERDICTS, Cell, Piece, duration, lane, usage_bar
from tui.queries import Judged
from tui.screens.base import COMMON, Base
from tui.widgets.rows import Column, RowTable

BAR, WIDE_BAR = 13, 40
COLUMNS = (
    Column("call", 4, right=True),
    Column("start", 8, spare=2),
    Column("", 5, spare=3),
    Column("agent", 0, wide_width=14),
    Column("gap", 7, right=True, spare=4),
    Column("█read ▒write", BAR, wide_width=WIDE_BAR, spare=1),
    Column("input", 8, right=True, wide_width=10, spare=5),
    Column("read", 0, right=True, wide_width=10),
    Column("verdict", 7),
    Column("cause", 12, grow=True),
)


class TimelineScreen(Base):
    """One session; Enter opens a call."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("n", "miss(1)", "Next miss"),
        Binding("p", "miss(-1)", "Previous"),
        Binding("w", "what_if", "What if"),
        Binding("b", "app.breakdown", "Costs"),
        *COMMON,
    ]

    def __init__(self, trace: str) -> None:
        super().__init__()
        self.trace = trace
        self.judged: Judged | None = None
        self.gaps: list[tuple[str, bool]] = []
        self.agents: list[str] = []

    def compose(self) -> ComposeResult:
        """Top line, table, footer."""
        yield Static(id="top")
        yield Static(id="problem")
        yield RowTable(COLUMNS, id="calls")
        yield Static(id="detail")
        yield Footer()

    @property
    def table(self) -> RowTable:
        """The calls."""
        return self.query_one(RowTable)

    def on_mount(self) -> None:
        """Audit the session."""
        self.say([(visible(self.trace, 60) or "(empty)", "bold"), ("  judging …", "dim")])
        self.table.focus()
        self.refreshed()

    def refreshed(self) -> None:
        """Audit it again."""
        self.start(self._judge)

    async def _judge(self) -> None:
        judged = await self.asked(lambda: asyncio.to_thread(self.house.judged, self.trace))
        if judged is None:
            return
        calls = judged.audit.calls
        self.judged, self.gaps = judged, gaps(calls)
        self.agents = list(dict.fromkeys(one.call.agent for one in calls))
        peak = max((one.call.usage.input_tokens or 0 for one in calls), default=0)
        self.table.show(len(calls), lambda index, wide: self._cells(calls[index], peak, wide))
        self._headline(judged)
        self._moved()

    def _headline(self, judged: Judged) -> None:
        whole, best = judged.totals.whole, judged.rows[-1] if judged.rows else None
        shown: list[Piece] = [(visible(self.trace, 60) or "(empty)", "bold"), (f"  {number(whole.calls)} calls, ", "")]
        shown += [(f"{percent(whole.hit_ratio)} read, {number(whole.equivalents)} equivalents", "")]
        if whole.priced_calls:
            shown += [(f", {dollars(whole.usd)}{' (partial)' if judged.totals.partial else ''}", "")]
        if best is not None and best.saving_equivalents > 0:
            worth = "" if best.saving_usd is None else f", {dollars(best.saving_usd)}"
            shown += [("; avoidable ", ""), (f"{number(best.saving_equivalents)}{worth}", "good")]
        self.say(shown)

    def _cells(self, audited: Audited, peak: int, wide: bool) -> list[Cell]:
        call, usage = audited.call, audited.call.usage
        gap, expired = self.gaps[audited.index]
        clock = "%M:%S" if call.clock == "relative" else "%H:%M:%S"
        return [
            number(call.seq),
            audited.at.strftime(clock) if call.started_at is not None else "-",
            [(lane(self.agents.index(call.agent), len(self.agents)) if len(self.agents) > 1 else "", "dim")],
            call.agent,
            [(f"{gap}{'!' if expired else ' '}", "miss" if expired else "dim")],
            usage_bar(audited, peak, WIDE_BAR if wide else BAR),
            number(usage.input_tokens),
            number(usage.read_tokens),
            [VERDICTS[audited.verdict] if not call.failed else ("failed", "dim")],
            cause(audited),
        ]

    @on(RowTable.Moved)
    def _moved(self) -> None:
        if self.judged is not None and self.table.cursor < len(self.judged.audit.calls):
            self.detail(words(self.judged.audit.calls[self.table.cursor]))

    @on(RowTable.Opened)
    def _opened(self, message: RowTable.Opened) -> None:
        from tui.screens.call import CallScreen

        assert self.judged is not None
        self.app.push_screen(CallScreen(self.judged, message.index))

    def action_open(self) -> None:
        """Open the call under the cursor."""
        self.table.action_open()

    def action_miss(self, by: int) -> None:
        """Move to the next or the previous call that paid for tokens again."""
        found = next_miss(self.judged.audit.calls if self.judged else [], self.table.cursor, by)
        if found is not None:
            self.table.cursor = found

    def action_what_if(self) -> None:
        """Show what would have saved it."""
        from tui.screens.whatif import WhatIfScreen

        if self.judged is not None:
            self.app.push_screen(WhatIfScreen(self.judged, self.trace))


def words(audited: Audited) -> list[Piece]:
    """A call in words: agent, cause with its place, and what was paid again."""
    diagnosis, said = audited.diagnosis, cause(audited)
    if diagnosis is None:
        said = said if any(text for text, _ in said) else [(audited.verdict.replace("_", " "), "dim")]
    elif diagnosis.primary.path:
        said += [(f" at {visible(diagnosis.primary.path, 60)}", "")]
    if diagnosis is not None and diagnosis.lost_tokens:
        said += [(f", {number(diagnosis.lost_tokens)} paid again", "miss")]
    return [(f"{visible(audited.call.agent, 20)}: ", "dim"), *said]


def cause(audited: Audited) -> list[Piece]:
    """Why a call paid for tokens again, or what else is to say of it."""
    diagnosis = audited.diagnosis
    if diagnosis is None:
        note = f"{audited.call.kind} " if audited.call.kind in ("keepalive", "summary", "count", "prewarm") else ""
        return [(note, "written"), (audited.note or "", "dim")]
    primary = diagnosis.primary
    detail = diagnosis.first.change if diagnosis.first is not None else primary.parameter
    return [(f"{primary.cause}{f': {detail}' if detail else ''}", "" if diagnosis.lost_tokens else "dim")]


def next_miss(calls: list[Audited], start: int, by: int) -> int | None:
    """Index of the nearest call after (before, for -1) `start` that lost tokens."""
    indexes = range(start + 1, len(calls)) if by > 0 else range(start - 1, -1, -1)
    for index in indexes:
        diagnosis = calls[index].diagnosis
        if diagnosis is not None and diagnosis.lost_tokens:
            return index
    return None


def gaps(calls: list[Audited]) -> list[tuple[str, bool]]:
    """For each call the time since its agent's call before, start to start, and whether an entry's lifetime ended."""
    last: dict[str, Audited] = {}
    found: list[tuple[str, bool]] = []
    for audited in calls:
        before = last.get(audited.call.agent)
        if before is None or audited.call.started_at is None or before.call.started_at is None:
            found.append(("", False))
        else:
            seconds = (audited.at - before.at).total_seconds()
            found.append((duration(seconds), seconds >= _lifetime(before)))
        if not audited.call.failed:
            last[audited.call.agent] = audited
    return found


def _lifetime(audited: Audited) -> float:
    """Seconds that the entries of a call live: the longest that it asked for."""
    outcome = audited.outcome
    if outcome is None or not outcome.breakpoints:
        return float("inf")
    return max(outcome.rules.ttl_s[point.ttl] for point in outcome.breakpoints)
