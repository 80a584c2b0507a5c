"""The agent loop: send, run the tools that were asked for, send again, until an answer asks for none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.clock import Clock
from harness.compaction import Compactor
from harness.errors import HarnessError, ProviderFailed, ToolFailed
from harness.fanout import Gate, fan_out
from harness.keepalive import Warmer
from harness.session import Session
from harness.tools.base import Tool, schema
from harness.tools.toolbox import Toolbox
from harness.wire import Result, ToolCall, ToolSpec, sound

MOST_ROUNDS = 200
MOST_AGENTS = 16
DELEGATE = "delegate"
INTERRUPTED = "Interrupted by the user before it ran."


@dataclass(slots=True)
class Agent:
    """A session with its tools. `compactor` and `warmer` are optional: sub-agents have neither."""

    session: Session
    tools: Toolbox
    compactor: Compactor | None = None
    warmer: Warmer | None = None
    stagger: bool = True
    text: Callable[[str], None] | None = None

    @property
    def clock(self) -> Clock:
        """The session's clock."""
        return self.session.shared.clock

    def say(self, text: str) -> str:
        """Add what the user says and work until there is an answer; returns its text.

        Ctrl-C leaves a history that can be continued: calls that did not run get a result that says so.
        """
        self.session.close_calls()
        self.session.append(self.session.dialect.user(self._told() + sound(text)))
        return self.work()

    def add_tools(self, tools: list[Tool]) -> None:
        """Tools that come during the session. Only in the mode `eager` the head changes, and that costs the prefix."""
        names, session = self.tools.add(tools), self.session
        if names and self.tools.mode == "eager":
            fields = session.dialect.head(session.head.fields["model"], "", self.tools.specs(), session.shared.name)
            session.change_tools({**session.head.fields, "tools": fields["tools"]}, f"new tools: {', '.join(names)}")

    def _defer_new(self) -> None:
        """Mode `native`: deferred tools that are not in the request yet; they stand outside the prefix and are only
        added, since the conversation may refer to those that a server took back."""
        if self.tools.mode != "native":
            return
        session, listed = self.session, self.session.head.fields["tools"]
        known = {tool["name"] for tool in listed}
        new = [spec for spec in self.tools.deferred() if spec.name not in known]
        if new:
            added = session.dialect.head("", "", new, "")["tools"]
            why = f"deferred: {', '.join(spec.name for spec in new)}"
            session.change_tools({**session.head.fields, "tools": [*listed, *added]}, why)

    def _told(self) -> str:
        """What is new, in front of what the user says."""
        names, self.tools.news = self.tools.news, []
        return f"(Further tools can be searched for now: {', '.join(names)}.)\n\n" if names else ""

    def work(self, common: tuple[int, ...] = ()) -> str:
        """Go on with the conversation as it is. Raises `HarnessError`."""
        for _ in range(MOST_ROUNDS):
            if self.compactor is not None:
                self.compactor.before(self.session)
            if self.warmer is not None:
                self.warmer.pause()
            self._defer_new()
            self._ask(common)
            common = ()
            if self.warmer is not None:
                self.warmer.follow(self.session)
            calls = self.session.open_calls()
            if not calls:
                return self.session.dialect.text(self.session.turns[-1])
            self._run_all(calls)
        raise HarnessError(f"{MOST_ROUNDS} rounds without an answer; say what to do next")

    def _ask(self, common: tuple[int, ...]) -> None:
        """Send; where the provider says that the prompt is too long, compact once and send again."""
        try:
            self.session.ask(self.text, common=common)
        except ProviderFailed as error:
            if self.compactor is None or not self.compactor.overflow(self.session, str(error)):
                raise
            self.session.ask(self.text)

    def _run_all(self, calls: list[ToolCall]) -> None:
        results: dict[str, Result] = {}
        later = [call for call in calls if call.name == DELEGATE]
        try:
            for call in [*(call for call in calls if call.name != DELEGATE), *later]:
                if call.id not in results:
                    results[call.id] = self._run(call, results)
        except KeyboardInterrupt:
            left = [call for call in calls if call.id not in results]
            for call in left:
                results[call.id] = Result(call, INTERRUPTED, failed=True)
            raise
        finally:
            done = [results.get(call.id) or Result(call, INTERRUPTED, failed=True) for call in calls]
            self.session.append(self.session.dialect.results(done))

    def _run(self, call: ToolCall, results: dict[str, Result]) -> Result:
        start = self.clock.now()
        self.session.shared.emit("tool", id=call.id, name=call.name, agent=self.session.agent, arguments=call.arguments)
        if call.name == DELEGATE:
            result = self._delegate(call, results)
        else:
            result = self.tools.call(call)
        result = replace(result, text=sound(result.text))
        seconds = (self.clock.now() - start).total_seconds()
        self.session.shared.ledger.tool_s += seconds
        self.session.finish(result, seconds)
        self._tell(result, seconds)
        return result

    def _tell(self, result: Result, seconds: float) -> None:
        preview = result.text[:500]
        self.session.shared.emit("tool_result", id=result.call.id, failed=result.failed, seconds=seconds, text=preview)

    def _delegate(self, call: ToolCall, results: dict[str, Result]) -> Result:
        """Sub-agents begin with this conversation, the open call included, and each gets its task behind it."""
        tasks = (call.arguments or {}).get("tasks")
        if self.session.agent != "main":
            return Result(call, "a sub-agent cannot delegate; do the task yourself", failed=True)
        if not isinstance(tasks, list) or not all(isinstance(one, str) for one in tasks) or not tasks:
            return Result(call, 'wanted: {"tasks": ["…", …]}, a list of texts', failed=True)
        if len(tasks) > MOST_AGENTS:
            return Result(call, f"{len(tasks)} tasks, at most {MOST_AGENTS} at once", failed=True)
        answers = delegate(self, tasks, call, results)
        pairs = enumerate(zip(tasks, answers, strict=True), 1)
        text = "\n\n".join(f"## {number}: {task}\n{answer}" for number, (task, answer) in pairs)
        return Result(call, self.tools.spill.fit(text, "answers of sub-agents"))


def delegate(parent: Agent, tasks: list[str], call: ToolCall, results: dict[str, Result]) -> list[str]:
    """Run one sub-agent a task and return their answers, in order."""
    session, dialect = parent.session, parent.session.dialect
    shared = [_for_all(one, call, results) for one in session.open_calls()]
    answered = dialect.results(shared)
    body = dialect.body(session.head, [*session.turns, answered], 1, stream=True, marks={})
    draft = session.sender.draft(body, "main")
    # Where the parent goes on after this, and where the sub-agents part from each other.
    common = (_blocks(session.body(marks=False)[0]) - 1, _blocks(body) - 1)
    ready = session.shared.forecast.readable(draft, session.shared.clock.now())
    gate = Gate(len(tasks), open=ready or not parent.stagger)
    numbers = _free_numbers(session, len(tasks))

    def run(number: int) -> str:
        child = session.branch(f"{session.agent}/{numbers[number]}", session.last.id if session.last else None)
        child.append(answered)
        child.append(dialect.user(tasks[number]))
        child.sender.started, child.sender.stopped = gate.began, gate.stopped
        agent = Agent(child, parent.tools, stagger=parent.stagger)
        gate.enter(number)
        try:
            return agent.work(common)
        finally:
            child.journal.close()

    found = fan_out(gate, run)
    for one in found:
        if isinstance(one, KeyboardInterrupt):
            raise one
    return [one if isinstance(one, str) else f"(failed: {one})" for one in found]


def _for_all(one: ToolCall, call: ToolCall, results: dict[str, Result]) -> Result:
    """The same words for all sub-agents, so that they belong to the shared prefix; the tasks differ behind them."""
    if one.id == call.id:
        return Result(one, "You are a sub-agent now. Do the one task that follows and answer with its result only.")
    return results.get(one.id) or Result(one, "Another agent does this.")


def _free_numbers(session: Session, count: int) -> list[int]:
    """Numbers of sub-agents that have no journal yet."""
    number = 1
    found: list[int] = []
    while len(found) < count:
        if not session.shared.journal(f"{session.agent}/{number}").exists():
            found.append(number)
        number += 1
    return found


def _blocks(body: dict[str, Any]) -> int:
    """Content blocks of a Messages body in front of which nothing is deferred; 0 for other APIs."""
    tools = [tool for tool in body.get("tools", []) if not tool.get("defer_loading")]
    contents = [message.get("content") for message in body.get("messages") or []]
    return len(tools) + len(body.get("system") or []) + sum(len(one) for one in contents if isinstance(one, list))


def delegate_tool() -> Tool:
    """The built-in tool that starts sub-agents; the loop runs it, since it needs the conversation."""

    def run(arguments: object) -> str:
        raise ToolFailed(f"{DELEGATE} can only be called directly")

    spec = ToolSpec(
        DELEGATE,
        "Give tasks to sub-agents that know this conversation and work at the same time; their answers come back.",
        schema("tasks", tasks=("array", "One text for each sub-agent.")),
    )
    return Tool(spec, "read", run)
