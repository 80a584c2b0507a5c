"""A session: frozen head, append-only turns, one journal an agent, one ledger for all of them.

Only this module changes a conversation. Turns are rendered once; what was sent is stored and sent again as it was, on
resume and on fork too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from harness.attempt import Answer, Emit, Sender, sha, silent
from harness.breakpoints import Forecast, Planned
from harness.clock import Clock
from harness.errors import BadSetting, HeadChanged, JournalDamaged
from harness.journal import SCHEMA, Journal, State, read
from harness.ledger import Ledger
from harness.providers.base import Provider
from harness.wire import Dialect, Head, Result, ToolCall, Turn, chained, head_digest, sound
from traces.canonical import dump
from traces.schema import Call, JsonObject, Kind, Ttl, Usage

UNKNOWN_OUTCOME = (
    "Interrupted: this call did not finish; whether it had an effect is unknown. Check before you repeat it."
)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all agents of one session use together."""

    folder: Path
    name: str
    provider: Provider
    dialect: Dialect
    ledger: Ledger
    forecast: Forecast
    clock: Clock
    emit: Emit = silent
    max_tokens: int = 8192
    ttl: Ttl = "5m"
    breakpoints: bool = True

    def journal(self, agent: str) -> Path:
        """The journal of an agent."""
        return self.folder / f"{agent.replace('/', '.')}.jsonl"


@dataclass(slots=True)
class Session:
    """One agent's conversation. Made by `begin`, `resume` or `branch`."""

    shared: Shared
    agent: str
    head: Head
    journal: Journal
    sender: Sender
    turns: list[Turn] = field(default_factory=list)
    chain: str = ""
    last: Call | None = None
    """The last real request that was answered; keep-alive and summaries replay it."""

    finished: dict[str, Result] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the session."""
        return self.shared.dialect

    def append(self, turn: Turn) -> None:
        """Add a turn at the end: in the journal first."""
        turn = Turn(turn.role, tuple(sound(list(turn.items))))
        chain = chained([turn], self.chain)
        self.journal.turn(turn, chain)
        self.chain = chain
        self.turns.append(turn)
        if turn.role == "results":
            self.finished.clear()

    def finish(self, result: Result, seconds: float) -> None:
        """Note the result of one call at once, so that a crash does not lose what other calls of the turn gave."""
        call = result.call
        self.journal.write(
            "result", call=call.id, text=result.text, failed=result.failed, references=list(result.references),
            seconds=round(seconds, 3),
        )  # fmt: skip
        self.finished[call.id] = result

    def open_calls(self) -> list[ToolCall]:
        """Calls that the last answer made and nothing has answered."""
        last = self.turns[-1] if self.turns else None
        return self.dialect.calls(last) if last is not None and last.role == "answer" else []

    def close_calls(self) -> None:
        """Answer open calls with what is known of them: providers refuse a history with an open call."""
        if calls := self.open_calls():
            known = [self.finished.get(call.id) or Result(call, UNKNOWN_OUTCOME, failed=True) for call in calls]
            self.append(self.dialect.results(known))

    def body(self, *, marks: bool = True, common: Sequence[int] = ()) -> tuple[JsonObject, Planned]:
        """The next main request, and what its markers are for. Raises `HeadChanged`."""
        if head_digest(self.head.fields) != self.head.digest:
            raise HeadChanged("tools, system or parameters changed during the session; start a new session")
        shared = self.shared
        bare = self.dialect.body(self.head, self.turns, shared.max_tokens, stream=True, marks={})
        if not (marks and shared.breakpoints):
            return bare, Planned({}, None, None)
        draft = self.sender.draft(bare, "main")
        planned = shared.forecast.plan(draft, shared.clock.now(), common=common, ttl=shared.ttl)
        body = self.dialect.body(self.head, self.turns, shared.max_tokens, stream=True, marks=planned.marks)
        return body, planned

    def ask(self, text: Callable[[str], None] | None = None, *, common: Sequence[int] = ()) -> Answer:
        """Send the conversation and append the answer. Raises `ProviderFailed`, `BudgetSpent`, `HeadChanged`."""
        body, planned = self.body(common=common)
        for remark in planned.skipped:
            self.shared.emit("remark", text=remark)
        kind: Kind = "main" if self.agent == "main" else "subagent"
        answer = self.sender.send(body, kind, self.journal, marks=planned.marks, text=text)
        self.last = answer.row.call
        self.append(self.dialect.answer(answer.response))
        return answer

    def change_tools(self, fields: JsonObject, why: str) -> None:
        """Replace the head on purpose: only the arm that adds tools late does this, and it costs the whole prefix."""
        self.head = Head(fields)
        self.journal.write("tools", fields=fields, digest=self.head.digest, why=why)
        self.shared.emit("tools_changed", why=why)

    def replace_turns(self, turns: list[Turn]) -> None:
        """Commit a compacted history; the old one stays in the journal."""
        chain = chained(turns)
        rows = [{"role": turn.role, "items": list(turn.items)} for turn in turns]
        self.journal.write("compacted", turns=rows, chain=chain)
        self.turns, self.chain = list(turns), chain

    def branch(self, agent: str, parent: str | None) -> "Session":
        """A sub-agent that begins with this conversation byte for byte, in a journal of its own."""
        other = _new(self.shared, agent, self.head.fields, parent)
        for turn in self.turns:
            other.append(turn)
        return other


def begin(shared: Shared, fields: JsonObject, agent: str = "main", **settings: object) -> Session:
    """A new session with this head. Raises `BadSetting` where it exists already."""
    if shared.journal(agent).exists():
        raise BadSetting(f"session {shared.name} exists; resume it or name another")
    return _new(shared, agent, fields, None, **settings)


def _new(shared: Shared, agent: str, fields: JsonObject, parent: str | None, **settings: object) -> Session:
    head = Head(fields)
    journal = Journal(shared.journal(agent))
    journal.write("head", schema=SCHEMA, id=shared.name, agent=agent, digest=head.digest, fields=fields, **settings)
    return Session(shared, agent, head, journal, _sender(shared, agent, parent))


def resume(shared: Shared, agent: str = "main") -> Session:
    """Continue a stored session: lost ledger rows are written, a paid answer is taken up, open calls are closed."""
    path = shared.journal(agent)
    state = read(path)
    session = Session(
        shared, agent, Head(state.fields), Journal(path), _sender(shared, agent, None), state.turns, state.chain
    )
    session.finished = {one.call.id: one for one in _results(path, session)}
    for row in shared.ledger.rows:
        shared.forecast.settle(row.call)
    _add_lost_rows(shared, state)
    for other in sorted(shared.folder.glob(f"{path.stem}.*.jsonl")):  # sub-agents that died with it
        try:
            _add_lost_rows(shared, read(other))
        except JournalDamaged as error:
            shared.emit("remark", text=f"{error} (a sub-agent; the session goes on without it)")
    _take_paid_answer(session, state)
    session.close_calls()
    rows = [row.call for row in shared.ledger.rows if row.call.kind in ("main", "subagent") and row.call.agent == agent]
    answered = [call for call in rows if call.status == 200 and call.usage.input_tokens is not None]
    session.last = answered[-1] if answered else None
    return session


def fork(source: Path, shared: Shared) -> Session:
    """A new session whose conversation is that of the journal at `source`, byte for byte."""
    state = read(source)
    session = _new(shared, "main", state.fields, None, **_settings(state.head), forked_from=state.head["id"])
    for turn in state.turns:
        session.append(turn)
    session.close_calls()
    return session


def _settings(head: JsonObject) -> JsonObject:
    own = ("type", "schema", "id", "agent", "digest", "fields", "forked_from")
    return {name: value for name, value in head.items() if name not in own}


def _sender(shared: Shared, agent: str, parent: str | None) -> Sender:
    return Sender(
        shared.provider, shared.dialect, shared.ledger, shared.forecast, shared.clock, shared.name,
        agent=agent, parent=parent, emit=shared.emit,
    )  # fmt: skip


def _results(path: Path, session: Session) -> list[Result]:
    """Results noted for the calls that are still open."""
    import orjson

    calls = {call.id: call for call in session.open_calls()}
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()] if calls else []
    return [
        Result(calls[row["call"]], row["text"], row["failed"], tuple(row["references"]))
        for row in rows
        if row["type"] == "result" and row["call"] in calls
    ]


def _add_lost_rows(shared: Shared, state: State) -> None:
    """Attempts that were begun and have no row: the process died in between. Their usage is unknown, not zero."""
    for attempt in state.attempts:
        if shared.ledger.find(attempt["id"]) is not None:
            continue
        call = Call(
            id=attempt["id"],
            trace=shared.name,
            provider=shared.provider.name,
            started_at=datetime.fromisoformat(attempt["at"]),
            agent=attempt["agent"],
            kind=attempt["kind"],
            attempt=attempt["attempt"],
            api=shared.dialect.api,
            host=shared.provider.host,
            key_fp=shared.provider.key_fp,
            model=state.fields.get("model"),
            request=_rebuilt(shared, state, attempt),
            usage=Usage(),
        )
        shared.ledger.add(call)
        shared.emit("lost_call", id=call.id)


def _rebuilt(shared: Shared, state: State, attempt: JsonObject) -> JsonObject | None:
    """The body that was sent, where the journal still gives its very bytes."""
    marks = attempt.get("marks") or {}
    body = shared.dialect.body(Head(state.fields), state.turns, shared.max_tokens, stream=True, marks=marks)
    return body if sha(dump(body)) == attempt["sha256"] else None


def _take_paid_answer(session: Session, state: State) -> None:
    """The answer of the last attempt, where it is on the ledger but not yet in the conversation."""
    pending = state.pending
    row = session.shared.ledger.find(pending["id"]) if pending is not None else None
    if row is None or row.call.response is None or row.call.status != 200:
        return
    if row.call.agent != session.agent:
        return
    if session.dialect.flaw(row.call.response) is None:
        session.append(session.dialect.answer(row.call.response))
