"""Compaction in two stages: make a summary, then swap it in. The old history stays until the new one is committed.

Stage one replays the last real request byte for byte and appends the instruction, so that the summary reads the
cached prefix instead of writing a second one (`prefix`). Where the cache is known to be cold nothing is gained by that,
and the history goes as text into a small request of its own (`fresh`). Stage two keeps the static head, puts the
summary first and a tail behind it that is cut only where no tool call is open; thinking of the tail is dropped, since
providers bind it to the history in front of it. Every guard is a failure that some other harness had (docs/run.md).
"""

import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, TypeAlias

from harness.attempt import Answer
from harness.errors import CompactionRefused, ProviderFailed
from harness.ledger import Row
from harness.session import Session
from harness.thinking import room
from harness.wire import Head, Turn
from localmodel.rules.types import Rates
from traces.canonical import dump
from traces.schema import Call, JsonObject

How: TypeAlias = Literal["prefix", "fresh"]

WINDOW = 200_000
"""Window to begin with; a provider that has a smaller one names it when it refuses a prompt, at no cost."""

SUMMARY_TOKENS = 8_192
TAIL_SHARE, TAIL_TOKENS = 0.16, 20_000
RESERVE_TOKENS = 16_384
MUST_SHRINK_TO = 0.8
MOST_FAILURES = 2
_CHARS_A_TOKEN = 4
_TOO_LONG = re.compile(
    r"prompt is too long: \d+ tokens > (\d+)|maximum context length is (\d+)|exceeds the context window"
)
"""How Anthropic, Chat Completions (OpenAI, DeepSeek) and Responses refuse a prompt for its length."""
_SURELY_A_TOKEN = 2

INSTRUCTION = """The conversation up to here will be replaced by your summary. Write it now, as plain text and without \
calling any tool, under these headings: Goal (in the user's words); Constraints; Done; In progress and blocked; \
Decisions and why; Errors and their fixes; Next step; Facts that must not be lost. Merge an earlier summary into it. \
Do not mention that you summarise."""
_AS_TEXT = "Your last tool calls and what they gave, as text; go on from here:"
STRICTER = "Answer with the summary text only. Tools are not available for this answer."


@dataclass(slots=True)
class Costs:
    """What one compaction cost and when it pays back, in tokens and dollars."""

    before_tokens: int
    summary: Row
    how: How
    first: Row | None = None
    later: list[Row] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Count a real request that followed."""
        if self.first is None:
            self.first = row
        else:
            self.later.append(row)

    def rows(self) -> list[tuple[str, list[Row]]]:
        """The three costs apart, by name."""
        return [
            ("summary", [self.summary]),
            ("first", [] if self.first is None else [self.first]),
            ("later", self.later),
        ]

    def payback(self, rates: Rates) -> int | None:
        """Requests after the first until the compaction has paid for itself; `None`: unknown yet, or never.

        In input-token equivalents: (summary + first request - one uncompacted request) over what each later one saves.
        """
        if self.first is None or self.first.call.usage.input_tokens is None:
            return None
        kept = self.before_tokens * rates.read
        spent = _equivalents(self.summary, rates) + _equivalents(self.first, rates) - kept
        gain = kept - self.first.call.usage.input_tokens * rates.read
        return None if gain <= 0 else max(0, math.ceil(spent / gain))


def _equivalents(row: Row, rates: Rates) -> Decimal:
    usage = row.call.usage
    read, write = usage.read_tokens or 0, usage.write_tokens or 0
    return (usage.uncached_tokens or 0) + write * rates.write_5m + read * rates.read


@dataclass(slots=True)
class Compactor:
    """Decides when, and keeps count of failures. `trigger` is input tokens; `None`: never by itself."""

    how: How | None = None
    """`None`: prefix while the cache is warm, else fresh."""

    window: int = WINDOW
    trigger: int | None = WINDOW - RESERVE_TOKENS
    failures: int = 0
    done: list[Costs] = field(default_factory=list)

    def before(self, session: Session) -> None:
        """Called before each request: also between a tool's result and the next request."""
        last = session.last
        if last is None or last.usage.input_tokens is None or self.trigger is None:
            return
        self.measure(session)
        grown = _tokens(session.turns[-1:]) + (last.usage.output_tokens or 0)
        if last.usage.input_tokens + grown < self.trigger or self.failures >= MOST_FAILURES:
            return
        try:
            self.compact(session)
        except (CompactionRefused, ProviderFailed) as error:
            self._failed(session, str(error))

    def measure(self, session: Session) -> None:
        """Attribute the last request to the compaction before it; one that did not shrink enough counts as failed."""
        last, latest = session.last, self.done[-1] if self.done else None
        if latest is None or last is None:
            return
        row = session.shared.ledger.find(last.id)
        known = {one.call.id for one in (latest.summary, latest.first, *latest.later) if one is not None}
        if row is None or last.id in known or row.call.seq < latest.summary.call.seq:
            return
        latest.take(row)
        trigger = self.trigger or 0
        if latest.first is row and (row.call.usage.input_tokens or 0) >= MUST_SHRINK_TO * trigger:
            self._failed(session, f"{row.call.usage.input_tokens} tokens are left of {trigger}")

    def _failed(self, session: Session, reason: str) -> None:
        self.failures += 1
        stop = "; no more by itself, start a new session or compact by hand" if self.failures >= MOST_FAILURES else ""
        session.shared.emit("compaction_failed", reason=reason + stop)

    def overflow(self, session: Session, refusal: str) -> bool:
        """Where the provider refused the prompt as too long, summarise what fits, the oldest turns left out; whether it
        did. The window is as the refusal names it, else what the last answered request took."""
        found, last = _TOO_LONG.search(refusal), session.last
        if found is None or last is None:
            return False
        named = next((int(one) for one in found.groups() if one), last.usage.input_tokens or self.window // 2)
        self.window, self.trigger = named, max(named // 2, named - RESERVE_TOKENS)
        self.compact(session, how="fresh")
        return True

    def compact(self, session: Session, focus: str = "", how: How | None = None) -> Costs:
        """Summarise and swap. Raises `CompactionRefused` and leaves the history as it was."""
        last = session.last
        if last is None or not session.turns:
            raise CompactionRefused("there is nothing to compact yet")
        how = how or self.how or ("prefix" if _warm(session, last) else "fresh")
        answer, summary = summarise(session, how, self.window, focus)
        old = list(session.turns)
        tail = cut(session, int(min(self.window * TAIL_SHARE, TAIL_TOKENS, _tokens(old) * TAIL_SHARE)))
        new = [_summary_turn(session, summary), *tail]
        _scan(session, new)
        if _tokens(new) >= MUST_SHRINK_TO * _tokens(old):
            raise CompactionRefused(f"about {_tokens(new)} tokens would be left of {_tokens(old)}; the history stays")
        session.replace_turns(new)
        costs = Costs(last.usage.input_tokens or 0, answer.row, how)
        self.done.append(costs)
        spent = None if answer.row.usd is None else str(answer.row.usd)
        session.shared.emit("compacted", how=how, before=len(old), after=len(new), call=answer.row.call.id, usd=spent)
        return costs


def _warm(session: Session, last: Call) -> bool:
    """Whether the conversation, not only its head, can be read now; where the rules are silent, nothing says no."""
    draft = session.sender.draft(session.body()[0], "summary")
    read = session.shared.forecast.predict(draft, session.shared.clock.now()).read_tokens
    return read is None or 2 * read >= (last.usage.input_tokens or 0)


def summarise(session: Session, how: How, window: int, focus: str = "") -> tuple[Answer, str]:
    """Stage one: the answer and its text. Raises `CompactionRefused` for an empty, cut or tool-calling summary."""
    extra = f" Attend above all to: {focus}" if focus else ""
    for line in ("", f" {STRICTER}"):
        words = INSTRUCTION + extra + line
        body = _prefix_body(session, words) if how == "prefix" else _fresh_body(session, words, window)
        answer = session.sender.send(body, "summary", session.journal)
        turn, stop = session.dialect.answer(answer.response), session.dialect.stop(answer.response)
        text = session.dialect.text(turn).strip()
        if session.dialect.calls(turn):
            continue
        if stop == "length":
            raise CompactionRefused(f"the summary was cut at {SUMMARY_TOKENS} tokens; the history stays")
        if not text:
            raise CompactionRefused("the summary is empty; the history stays")
        return answer, text
    raise CompactionRefused("the model called a tool instead of summarising, twice; the history stays")


def _prefix_body(session: Session, instruction: str) -> JsonObject:
    """The last request's bytes, what has come since, and the instruction; no marker on what is sent only once."""
    dialect, planned = session.dialect, session.body()[1]
    turns = [*session.turns, dialect.user(instruction)]
    limit = SUMMARY_TOKENS + room(session.head.fields)
    return dialect.body(session.head, turns, limit, stream=True, marks=planned.marks)


def _fresh_body(session: Session, instruction: str, window: int) -> JsonObject:
    """A request of its own: no tools, another system text, and of the history as text what surely fits."""
    dialect = session.dialect
    fields = dialect.head(
        session.head.fields["model"], "You summarise conversations.", [], f"{session.shared.name}-sum"
    )
    fields = {name: value for name, value in fields.items() if name != "tools"}
    said = [_said(session, turn) for turn in session.turns]
    most = max(0, window - 2 * SUMMARY_TOKENS) * _SURELY_A_TOKEN
    while len(said) > 1 and sum(map(len, said)) > most:
        said.pop(0)
    history = "\n\n".join(said)[-most:] if most else ""
    turns = [dialect.user(history or "(nothing)"), dialect.user(instruction)]
    return dialect.body(Head(fields), turns, SUMMARY_TOKENS, stream=True, marks={})


def cut(session: Session, budget: int) -> list[Turn]:
    """Longest tail within `budget` tokens that opens no call: from a user's turn if there is one, else an answer."""
    turns, starts = session.turns, []
    for start in range(len(turns) - 1, 0, -1):
        if _tokens(turns[start:]) > budget:
            break
        if turns[start].role != "results":
            starts.append(start)
    asked = [start for start in starts if turns[start].role == "user"]
    start = min(asked or starts, default=len(turns))
    if _thinks_in_between(session):
        kept = [session.dialect.without_thinking(turn) for turn in turns[start:-2]]
        return [*kept, session.dialect.user("\n\n".join((_AS_TEXT, *(_said(session, turn) for turn in turns[-2:]))))]
    if start == len(turns) and turns and turns[-1].role != "answer":
        start = _whole_pair(turns)  # what is still to be answered must stay, however long it is
    return [session.dialect.without_thinking(turn) for turn in turns[start:]]


def _thinks_in_between(session: Session) -> bool:
    """Whether the model waits for results of calls that it thought about. Such calls may not be sent without their
    thinking (source: platform documentation, "Extended thinking"), and their thinking not behind another history."""
    turns = session.turns
    if len(turns) < 2 or turns[-1].role != "results":
        return False
    return session.dialect.without_thinking(turns[-2]) != turns[-2]


def _said(session: Session, turn: Turn) -> str:
    """A turn as text."""
    return f"[{turn.role}]\n{dump(list(session.dialect.without_thinking(turn).items)).decode()}"


def _whole_pair(turns: list[Turn]) -> int:
    return len(turns) - (2 if turns[-1].role == "results" and len(turns) > 1 else 1)


def _summary_turn(session: Session, summary: str) -> Turn:
    """The summary, and where the originals are: added by code, so that they are right."""
    place = session.journal.path
    text = f"<summary>\n{summary}\n</summary>\nEverything said before is kept in {place}, a JSON line a turn."
    return session.dialect.user(text)


def _scan(session: Session, turns: list[Turn]) -> None:
    """Every result follows its call and every call but the last turn's has its result. Raises `CompactionRefused`."""
    for number, turn in enumerate(turns):
        calls = session.dialect.calls(turn) if turn.role == "answer" else []
        after = turns[number + 1] if number + 1 < len(turns) else None
        if calls and after is not None and after.role != "results":
            raise CompactionRefused(f"turn {number} would lose the results of its calls; the history stays")
        if turn.role == "results" and (number == 0 or not session.dialect.calls(turns[number - 1])):
            raise CompactionRefused(f"turn {number} would hold results without calls; the history stays")


def _tokens(turns: list[Turn]) -> int:
    """Rough tokens of turns."""
    return sum(len(dump(list(turn.items))) for turn in turns) // _CHARS_A_TOKEN
