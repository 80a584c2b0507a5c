"""One call: its prompt as a strip of blocks, why it paid for tokens again, the first change, and the money."""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Footer, Static

from auditor.excerpt import Excerpt, excerpt
from auditor.figures import dollars, number
from auditor.records import Audited, Diagnosis, Finding
from auditor.visible import visible
from tui import queries
from tui.drawing import VERDICTS, Cell, Piece, strip
from tui.queries import Judged
from tui.screens.base import COMMON, Base
from tui.screens.timeline import next_miss
from tui.widgets.colours import content
from tui.widgets.rows import Column, RowTable

COLUMNS = (
    Column("", 2),
    Column("block", 16, grow=True),
    Column("kind", 11, spare=1),
    Column("tokens", 8, right=True),
    Column("", 4),
)
LONGEST = 500
END: Piece = ("\n", "")


class CallScreen(Base):
    """One call of a judged session; n and p go to the next and the previous."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "step(1)", "Next call"),
        Binding("p,left", "step(-1)", "Previous"),
        Binding("m", "miss", "Next miss"),
        Binding("tab", "app.focus_next", "Blocks", show=False),
        *COMMON,
    ]

    def __init__(self, judged: Judged, index: int) -> None:
        super().__init__()
        self.judged, self.index = judged, index
        self.around = Excerpt()

    @property
    def audited(self) -> Audited:
        """The call."""
        return self.judged.audit.calls[self.index]

    def compose(self) -> ComposeResult:
        """Headline, strip, reasons, blocks."""
        yield Static(id="top")
        yield Static(id="problem")
        yield Static(id="strip")
        with Container(id="halves"):
            with VerticalScroll(id="body"):
                yield Static(id="why")
            yield RowTable(COLUMNS, id="blocks")
        yield Footer()

    def on_mount(self) -> None:
        """Show the call."""
        self.query_one("#body").focus()
        self.draw()

    def on_resize(self) -> None:
        """The strip is as wide as the terminal."""
        self._strip()

    def draw(self) -> None:
        """Show the call that `index` says."""
        self.around = Excerpt()
        self.say(headline(self.audited))
        self._strip()
        self._why()
        prompt = self.audited.prompt
        rows = list(blocks(self.audited))
        table = self.query_one(RowTable)
        table.display = bool(rows)
        table.show(len(rows), lambda index, wide: rows[index], self._hit())
        first = self.audited.diagnosis.first if self.audited.diagnosis else None
        if prompt is not None and first is not None and first.char_offset is not None:
            self.start(self._surround)

    async def _surround(self) -> None:
        """Read the request again for the text around the change."""
        audited = self.audited
        body = await self.asked(lambda: asyncio.to_thread(queries.request, self.source, audited))
        if audited is self.audited and audited.diagnosis is not None and audited.diagnosis.first is not None:
            self.around = excerpt(audited.diagnosis.first, body)
            self._why()

    def _strip(self) -> None:
        prompt, outcome = self.audited.prompt, self.audited.outcome
        line = self.query_one("#strip", Static)
        if prompt is None or outcome is None:
            line.update(content([("This call was recorded without its prompt: judged by usage alone.", "dim")]))
            return
        drawn = strip(prompt, outcome, self.audited.call.usage.read_tokens, max(20, self.app.size.width - 2))
        line.update(content([(drawn.marks, "bold"), END, *drawn.bar, END, (drawn.below, "dim")]))

    def _why(self) -> None:
        self.query_one("#why", Static).update(content([*reasons(self.judged, self.audited, self.around)]))

    def _hit(self) -> int:
        """The first block that was not read."""
        outcome = self.audited.outcome
        return 0 if outcome is None else outcome.read_index + 1

    def action_step(self, by: int) -> None:
        """Go to the next or the previous call."""
        if 0 <= self.index + by < len(self.judged.audit.calls):
            self.index += by
            self.draw()

    def action_miss(self) -> None:
        """Go to the next call that paid for tokens again."""
        found = next_miss(self.judged.audit.calls, self.index, 1)
        if found is not None:
            self.index = found
            self.draw()


def headline(audited: Audited) -> list[Piece]:
    """What was billed."""
    call, usage = audited.call, audited.call.usage
    mark, style = VERDICTS[audited.verdict]
    tokens = f"{number(usage.read_tokens)} read, {number(usage.write_tokens)} written, "
    model = visible(call.model or "unknown model", 40)
    shown: list[Piece] = [(f"Call {call.seq}", "bold"), (f"  {mark}", style), (f"  {visible(call.id, 30)}", "dim")]
    shown += [END, (f"{number(usage.input_tokens)} tokens in: {tokens}{number(usage.uncached_tokens)} uncached", "")]
    return [*shown, (f"  {model}, {visible(call.agent, 20)}", "dim")]


def reasons(judged: Judged, audited: Audited, around: Excerpt) -> Iterator[Piece]:
    """Cause, first change with its surroundings, evidence, other causes, rule and money."""
    diagnosis = audited.diagnosis
    if audited.agrees is False and audited.outcome is not None:
        predicted = f"{number(audited.outcome.read_tokens)} read, {number(audited.outcome.write_tokens)} written"
        yield from ((f"The rules predict {predicted}: billed otherwise.", "miss"), END)
    if diagnosis is None:
        yield (audited.note or "Everything that was cached and could be read was read.", "")
        return
    yield from _cause(diagnosis)
    yield from _change(diagnosis, around)
    for sentence in diagnosis.primary.evidence:
        yield from (("• ", "dim"), (sentence, ""), END)
    for finding in diagnosis.also:
        yield from _other("also" if finding.status in ("established", "likely") else "possible", finding)
    for finding in diagnosis.ruled_out:
        yield from _other("not", finding)
    rule = diagnosis.primary.rule
    if rule is not None:
        value = ", ".join(map(str, rule.value)) if isinstance(rule.value, tuple) else rule.value
        basis = f"{rule.status}, checked {rule.checked}, {rule.source}"
        yield from ((f"rule {rule.id} = {value} ({basis})", "dim"), END)
    yield from _fix(judged, audited, diagnosis)


def _cause(diagnosis: Diagnosis) -> Iterator[Piece]:
    primary = diagnosis.primary
    detail = diagnosis.first.change if diagnosis.first is not None else primary.parameter
    yield (f"{primary.cause}{f': {detail}' if detail else ''}", "miss" if diagnosis.lost_tokens else "bold")
    yield (f"  {primary.status}, {number(diagnosis.lost_tokens)} tokens paid for again", "")
    yield END


def _change(diagnosis: Diagnosis, around: Excerpt) -> Iterator[Piece]:
    first = diagnosis.first
    if first is None:
        if diagnosis.primary.path:
            yield from ((f"at {visible(diagnosis.primary.path, 200)}", "dim"), END)
        return
    place = f"first change at {visible(first.path, 200)}, {number(first.token_offset)} tokens into the prompt"
    yield from ((place, "dim"), END)
    lead, tail = visible(around.lead), visible(around.tail)
    if first.before or not first.after:
        yield from (("- ", "miss"), (lead, "dim"), (visible(first.before, LONGEST), "removed"), (tail, "dim"), END)
    if first.after or not first.before:
        yield from (("+ ", "good"), (lead, "dim"), (visible(first.after, LONGEST), "added"), (tail, "dim"), END)


def _other(word: str, finding: Finding) -> Iterator[Piece]:
    yield (f"{word} {finding.cause}", "" if word == "also" else "dim")
    yield (f": {finding.evidence[0]}" if finding.evidence else "", "dim")
    yield END


def _fix(judged: Judged, audited: Audited, diagnosis: Diagnosis) -> Iterator[Piece]:
    bill = judged.money.recorded(audited)
    worth = "" if bill.usd is None else f", {dollars(bill.usd)}"
    yield (f"input cost {number(bill.equivalents)} equivalents{worth if judged.money.row(audited) else ''}", "")
    if diagnosis.policy is not None and diagnosis.avoidable_equivalents:
        usd = diagnosis.avoidable_usd
        saved = f"{number(diagnosis.avoidable_equivalents)}{'' if usd is None else f', {dollars(usd)}'}"
        yield (f"; {diagnosis.policy} saves {saved}", "good")
    yield END


def blocks(audited: Audited) -> Iterator[list[Cell]]:
    """The blocks of a prompt: read, written or uncached, its place, kind, tokens, and its breakpoint."""
    prompt, outcome = audited.prompt, audited.outcome
    if prompt is None or outcome is None:
        return
    marks = {point.index: point.ttl for point in outcome.breakpoints}
    read = outcome.read_tokens if audited.call.usage.read_tokens is None else audited.call.usage.read_tokens
    for index, block in enumerate(prompt.blocks):
        end = prompt.ends[index] if prompt.ends else 0
        sign: Piece = (
            ("█", "read") if end <= read else ("▒", "written") if index <= outcome.last_index else ("░", "uncached")
        )
        tokens = f"{'~' if prompt.error_at(index) else ''}{number(prompt.tokens_of(index)) if prompt.ends else '?'}"
        mark = f"▼{marks[index]}" if index in marks else ""
        yield [[sign], prompt.paths[index], block.kind, tokens, mark]
