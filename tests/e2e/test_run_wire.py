"""On the wire: other dialects, tools found late, sub-agents in order, Ctrl-C, retries, budget."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")
pytest.importorskip("anthropic", reason="the SDK is not installed")

import agents
import serving

from harness.dialects.messages import Messages
from harness.errors import BudgetSpent, HeadChanged, ProviderFailed
from harness.loop import delegate
from harness.providers.base import Feed
from harness.wire import ToolCall, Turn
from localmodel.rules.load import load
from traces.schema import JsonObject

SERVER = Path(__file__).parents[1] / "oracle" / "mcp_server.py"


@pytest.fixture(scope="module")
def server() -> Iterator[serving.Running]:
    with serving.running() as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_openai_dialects_hold_a_session_with_a_tool(server: serving.Running, tmp_path: Path, path: str) -> None:
    pytest.importorskip("openai", reason="the SDK is not installed")
    made = agents.options(tmp_path, server.url + path, model="gpt-6", salt=path)
    with agents.opened(made) as run:
        text = run.agent.say('call write with {"path": "a.txt", "content": "written"}')
        assert text == "The tool has answered, and that is all."
        for number in range(25):
            run.agent.say(f"talk {number} " + "and some words " * (number % 7 * 20))
        rows = [row.call for row in run.ledger.rows]
        name = run.shared.name
    assert (made.root / "a.txt").read_text() == "written"
    assert [row.api for row in rows] == [path.rsplit("/", 1)[-1].replace("completions", "chat")] * 27
    for before, after in pairwise(rows):
        assert after.usage.read_tokens == before.usage.input_tokens
        assert after.usage.uncached_tokens == 0
    with agents.opened(agents.with_resume(made, name)) as run:
        run.agent.say("still there?")
        assert run.ledger.rows[-1].call.usage.read_tokens == rows[-1].usage.input_tokens


def test_mcp_tools_are_found_and_called_through_the_fixed_entry(server: serving.Running, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    made = agents.options(tmp_path, server.url, salt="mcp")
    (made.root / "cachewright.toml").write_text(f'{agents.ALL}[mcp]\nsums = "{sys.executable} {SERVER}"\n')
    with agents.opened(made) as run:
        names = [tool["name"] for tool in run.agent.session.head.fields["tools"]]
        run.agent.say('call search_tools with {"query": "add numbers"}')
        found = run.agent.session.turns[2]
        run.agent.say('call call_tool with {"name": "mcp__sums__add", "arguments": {"a": 2, "b": 40}}')
        answer = run.agent.session.turns[6]
        run.agent.say('call call_tool with {"name": "mcp__sums__fail", "arguments": {}}')
        failed = run.agent.session.turns[10]
        result = agents.audited(run, load("anthropic"))
    assert names == sorted(names) and not any(name.startswith("mcp") for name in names)
    assert '"a"' in said(found) and "mcp__sums__add" in said(found)
    assert said(answer) == "42"
    assert failed.items[0]["content"][0]["is_error"] and "Error executing tool fail" in said(failed)
    assert {one.diagnosis for one in result.calls} == {None}


def said(turn: Turn) -> str:
    return "".join(part.get("text", "") for block in turn.items[0]["content"] for part in block["content"])


def test_native_tools_are_loaded_by_reference_and_late_ones_cost_nothing(
    server: serving.Running, tmp_path: Path
) -> None:
    made = agents.options(tmp_path, server.url, tools="native", salt="native")
    heard = agents.Heard()
    with agents.opened(made, heard) as run:
        session, box = run.agent.session, run.agent.tools
        digest = session.head.digest
        run.agent.say("hello " * 50)
        box.add([agents.tool("weather", "Tells the weather of a place.", "sunny", place=("string", "Where."))])
        fields = session.dialect.head(made.model, "", box.specs(), "")
        session.change_tools({**session.head.fields, "tools": fields["tools"]}, "a server came late")
        assert session.head.digest == digest
        run.agent.say('call search_tools with {"query": "weather"}')
        assert session.turns[4].items[0]["content"][0]["content"] == [
            {"type": "tool_reference", "tool_name": "weather"}
        ]
        run.agent.say('call weather with {"place": "here"}')
        calls = heard.named("call")
        result = agents.audited(run, load("anthropic"))
    assert said(session.turns[8]) == "sunny"
    assert [one["predicted_read_tokens"] for one in calls] == [one["read_tokens"] for one in calls]
    assert {one.diagnosis for one in result.calls} == {None}


@pytest.mark.parametrize("stagger", [True, False])
def test_sub_agents_read_their_parents_prefix_when_staggered(tmp_path: Path, stagger: bool) -> None:
    script = serving.script(
        tmp_path,
        {"match": "fan out", "tools": [{"name": "delegate", "input": {"tasks": ["one", "two", "three"]}}]},
        {"delay_ms": 300, "text": "done"},
    )
    made = agents.options(tmp_path, "http://none", salt="fan")
    with serving.running(script=str(script)) as server, agents.opened(replace(made, target=server.url)) as run:
        agent = run.agent
        agent.stagger = stagger
        agent.say("a long talk " * 400)
        session = agent.session
        session.append(session.dialect.user("fan out, please"))
        session.ask()
        call = session.open_calls()[0]
        answers = delegate(agent, ["one", "two", "three"], call, {})
        rows = [row.call for row in run.ledger.rows if row.call.kind == "subagent"]
        served = server.client("local").calls()[-3:]
    assert len(answers) == 3
    rows.sort(key=lambda one: one.started_at or one.id)
    first, rest = rows[0], rows[1:]
    assert {one.agent for one in rows} == {"main/1", "main/2", "main/3"}
    assert all(one.parent == rows[0].parent and one.parent for one in rows)
    common = (first.usage.read_tokens or 0) + (first.usage.write_tokens or 0)
    if stagger:
        begun = served[0]["first_token_at"]
        assert all(one["started_at"] > begun for one in served[1:])
        assert all(common * 0.9 < (one.usage.read_tokens or 0) for one in rest)
    else:
        assert all(one["started_at"] < served[0]["first_token_at"] for one in served[1:])


def test_a_failed_first_sub_agent_is_replaced(tmp_path: Path) -> None:
    from harness.fanout import Gate, fan_out

    order: list[int] = []
    gate = Gate(3)

    def run(number: int) -> int:
        gate.enter(number)
        order.append(number)
        if number == 0:
            raise ProviderFailed("broken")
        gate.began()
        return number

    found = fan_out(gate, run)
    assert isinstance(found[0], ProviderFailed)
    assert found[1:] == [1, 2]
    assert order[0] == 0 and order[1] == 1


def test_a_first_sub_agent_that_says_nothing_holds_nobody_up_for_long() -> None:
    from harness.fanout import Gate, fan_out

    others, entered = threading.Event(), list[int]()
    gate = Gate(3, release_s=0.2)

    def run(number: int) -> int:
        gate.enter(number)
        entered.append(number)
        if number == 0:  # its response never begins while the others wait
            assert others.wait(20)
        elif len(entered) == 3:
            others.set()
        return number

    assert fan_out(gate, run) == [0, 1, 2]
    assert entered[0] == 0 and gate.open


class Stubborn:
    """A provider that fails, breaks off, or is interrupted, as told."""

    name, host, key_fp = "anthropic", "stub", "k"

    def __init__(self, *plan: BaseException | None) -> None:
        self.plan, self.sent = list(plan), list[bytes]()

    def stream(self, body: bytes, feed: Feed) -> None:
        self.sent.append(body)
        trouble = self.plan.pop(0) if self.plan else None
        if isinstance(trouble, ProviderFailed) and trouble.status is not None:
            raise trouble
        usage = {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 1000}
        feed({"type": "message_start", "message": {"id": "m", "role": "assistant", "usage": usage}})
        feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        feed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "fine"}})
        if trouble is not None:
            raise trouble
        feed({"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": "end_turn"}
        feed({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2}})

    def whole(self, body: bytes) -> JsonObject:
        raise AssertionError


def stubbed(tmp_path: Path, provider: Any, **rest: Any) -> Any:
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    return agents.opened(made, provider=provider, dialect=Messages(), clock=agents.ManualClock(), **rest)


def test_retries_have_rows_of_their_own(tmp_path: Path) -> None:
    provider = Stubborn(ProviderFailed("busy", status=529), ProviderFailed("cut"), None)
    with stubbed(tmp_path, provider) as run:
        assert run.agent.say("hello") == "fine"
        rows = [row.call for row in run.ledger.rows]
    assert [(row.attempt, row.status, row.usage.write_tokens) for row in rows] == [
        (1, 529, None), (2, 200, 1000), (3, 200, 1000),
    ]  # fmt: skip
    assert len(set(provider.sent)) == 1
    assert rows[1].usage.output_tokens is None


def test_what_cannot_help_is_not_repeated(tmp_path: Path) -> None:
    provider = Stubborn(ProviderFailed("prompt is too long", status=400))
    with stubbed(tmp_path, provider) as run, pytest.raises(ProviderFailed, match="too long"):
        run.agent.say("hello")
    assert len(provider.sent) == 1


def test_ctrl_c_leaves_a_history_that_goes_on(tmp_path: Path) -> None:
    provider = Stubborn(KeyboardInterrupt(), None)
    with stubbed(tmp_path, provider) as run:
        with pytest.raises(KeyboardInterrupt):
            run.agent.say("hello")
        assert [turn.role for turn in run.agent.session.turns] == ["user"]
        assert run.ledger.rows[0].call.usage.write_tokens == 1000  # billed though nobody saw it
        assert run.agent.say("again") == "fine"


def test_ctrl_c_in_a_tool_answers_every_open_call(server: serving.Running, tmp_path: Path) -> None:
    script = [
        ToolCall("a", "search", {"pattern": ""}),
        ToolCall("b", "stop", {}),
        ToolCall("c", "search", {"pattern": ""}),
    ]

    def stop(arguments: JsonObject) -> str:
        raise KeyboardInterrupt

    with stubbed(tmp_path, Stubborn()) as run:
        agent = run.agent
        agent.tools.builtin["stop"] = replace(agents.tool("stop"), run=stop)
        blocks = [{"type": "tool_use", "id": one.id, "name": one.name, "input": one.arguments} for one in script]
        agent.session.append(agent.session.dialect.user("go"))
        agent.session.append(Turn("answer", ({"role": "assistant", "content": blocks},)))
        with pytest.raises(KeyboardInterrupt):
            agent._run_all(agent.session.open_calls())
        results = agent.session.turns[-1].items[0]["content"]
    assert [one["tool_use_id"] for one in results] == ["a", "b", "c"]
    assert [one.get("is_error", False) for one in results] == [False, True, True]


def test_budget_and_head_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    provider = Stubborn()
    made = replace(agents.options(tmp_path, "http://127.0.0.1:1"), budget=Decimal("0.5"))
    with agents.opened(
        made, provider=provider, dialect=Messages(), clock=agents.ManualClock(), price=lambda call: Decimal("0.6")
    ) as run:
        run.agent.say("hello")
        with pytest.raises(BudgetSpent, match=r"spent 0\.6000 USD of 0\.5 USD"):
            run.agent.say("again")
        run.agent.session.head.fields["system"][0]["text"] += " Today is Monday."
        with pytest.raises(HeadChanged):
            run.agent.session.ask()
    assert len(provider.sent) == 1
    assert threading.active_count() < 20
