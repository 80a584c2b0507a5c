"""Compaction: the summary reads the old prefix, the swap keeps head and whole pairs, bad summaries change nothing."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import agents
import pytest

from harness.compaction import INSTRUCTION, STRICTER, Compactor, Costs, cut
from harness.dialects.messages import Messages
from harness.errors import CompactionRefused, ProviderFailed
from harness.ledger import Row
from harness.opening import Opened
from harness.report import cost_json, cost_text
from harness.scripted import Reply, Scripted
from harness.wire import Turn
from localmodel.rules.load import load
from localmodel.rules.types import Rates
from traces.canonical import dump
from traces.schema import JsonObject

RATES = Rates(Decimal("1.25"), Decimal(2), Decimal("0.1"))


def talk(body: JsonObject) -> list[JsonObject]:
    """Thinks, calls a tool after each thing the user says, and summarises in one line when asked to."""
    last = body["messages"][-1]["content"][-1]
    if last["type"] == "tool_result":
        return [{"type": "text", "text": "done " * 20}]
    if INSTRUCTION in last["text"]:
        return [{"type": "text", "text": "We looked for nothing."}]
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    number = len(body["messages"])
    return [thinking, {"type": "tool_use", "id": f"t{number}", "name": "search", "input": {"pattern": "x"}}]


def instead(summary: list[JsonObject]) -> Reply:
    def reply(body: JsonObject) -> list[JsonObject]:
        last = body["messages"][-1]["content"][-1]
        return summary if INSTRUCTION in last.get("text", "") else talk(body)

    return reply


def held(tmp_path: Path, reply: Reply, use: Callable[[Opened, Scripted, agents.ManualClock], None]) -> None:
    clock = agents.ManualClock()
    provider = Scripted(load("anthropic"), clock, reply)
    heard = agents.Heard()
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    with agents.opened(made, heard, provider=provider, dialect=Messages(), clock=clock) as run:
        for number in range(12):
            run.agent.say(f"turn {number} " + "and more words " * 200)
        use(run, provider, clock)


def test_the_summary_reads_the_prefix_and_the_three_costs_are_apart(tmp_path: Path) -> None:
    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        compactor, session = Compactor(), run.agent.session
        run.agent.compactor = compactor
        before = session.last
        costs = compactor.compact(session)
        assert costs.how == "prefix"
        usage = costs.summary.call.usage
        assert before is not None and before.usage.input_tokens is not None
        assert (usage.read_tokens or 0) >= 0.95 * before.usage.input_tokens
        assert bare(provider.bodies[-1]).startswith(bare(provider.bodies[-2]))
        for number in range(2):
            run.agent.say(f"later {number}")
        compactor.before(session)
        assert costs.first is not None and len(costs.later) >= 2
        first = costs.first.call.usage
        head = run.ledger.rows[0].call.usage
        assert first.read_tokens and first.read_tokens < (head.input_tokens or 0)  # the static head, nothing else
        assert first.uncached_tokens == 0
        assert costs.payback(RATES) == pays_back(costs)
        (shown,) = cost_json(run.agent)["compactions"]
        assert [shown[name]["attempts"] for name in ("summary", "first", "later")] == [1, 1, len(costs.later)]
        assert shown["summary"]["read_tokens"] == usage.read_tokens
        assert shown["pays_back_after"] == costs.payback(RATES)
        line = cost_text(run.agent).splitlines()[-1]
        assert line.startswith(f"compaction (prefix) of {costs.before_tokens:,} tokens: summary ")
        assert line.endswith(f"pays back after {costs.payback(RATES)} requests, {len(costs.later)} so far")

    held(tmp_path, talk, use)


def pays_back(costs: Costs) -> int:
    """The first number of later requests at which everything costs no more than without the compaction."""

    def worth(row: Row) -> Decimal:
        usage = row.call.usage
        return (usage.write_tokens or 0) * RATES.write_5m + (usage.read_tokens or 0) * RATES.read

    assert costs.first is not None
    kept = costs.before_tokens * RATES.read
    later = (costs.first.call.usage.input_tokens or 0) * RATES.read
    spent = worth(costs.summary) + worth(costs.first)
    return next(n for n in range(1000) if spent + n * later <= (n + 1) * kept)


def bare(body: bytes) -> bytes:
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"").split(b',"max_tokens"')[0].removesuffix(b"]")


def test_a_cold_cache_makes_a_request_of_its_own(tmp_path: Path) -> None:
    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        clock.sleep(400)
        costs = Compactor().compact(run.agent.session)
        assert costs.how == "fresh"
        assert b'"tools"' not in provider.bodies[-1].split(b'"messages"')[0]

    held(tmp_path, talk, use)


def test_the_tail_opens_no_call_and_has_no_thinking(tmp_path: Path) -> None:
    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        session = run.agent.session
        for budget in range(0, 20_000, 500):
            tail = cut(session, budget)
            assert not tail or tail[0].role != "results"
            kinds = {block["type"] for turn in tail for item in turn.items for block in item["content"]}
            assert "thinking" not in kinds
        assert len(cut(session, 20_000)) > 8
        session.append(session.dialect.user("one more"))
        assert [turn.role for turn in cut(session, 0)] == ["user"]  # what is still to be answered stays

    held(tmp_path, talk, use)


BAD: dict[str, tuple[list[JsonObject], str]] = {
    "empty": ([{"type": "text", "text": "  "}], "empty"),
    "calls": ([{"type": "tool_use", "id": "x", "name": "search", "input": {}}], "called a tool"),
    "longer": ([{"type": "text", "text": "words " * 20_000}], "would be left"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_summary_leaves_the_history_as_it_was(tmp_path: Path, name: str) -> None:
    summary, words = BAD[name]

    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        session = run.agent.session
        chain, sent = session.chain, len(provider.bodies)
        with pytest.raises(CompactionRefused, match=words):
            Compactor().compact(session)
        assert session.chain == chain
        assert len(provider.bodies) - sent == (2 if name == "calls" else 1)
        assert (STRICTER.encode() in provider.bodies[-1]) == (name == "calls")

    held(tmp_path, instead(summary), use)


def test_a_cut_summary_is_refused(tmp_path: Path) -> None:
    class Short(Scripted):
        def whole(self, body: bytes) -> JsonObject:
            message = Scripted.whole(self, body)
            return {**message, "stop_reason": "max_tokens"} if INSTRUCTION[:40].encode() in body else message

    clock = agents.ManualClock()
    provider = Short(load("anthropic"), clock, talk)
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    with agents.opened(made, provider=provider, dialect=Messages(), clock=clock) as run:
        run.agent.say("hello " * 500)
        with pytest.raises(CompactionRefused, match="cut at 8192 tokens"):
            Compactor().compact(run.agent.session)


def test_by_itself_at_the_trigger_and_never_without_end(tmp_path: Path) -> None:
    """Where what is left is still too large, it stops after two tries and says so."""

    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        compactor = run.agent.compactor = Compactor(trigger=1_000)
        heard = agents.Heard()
        run.agent.session.shared = agents.with_emit(run.agent.session.shared, heard)
        for number in range(12):
            run.agent.say(f"again {number} " + "and more words " * 200)
        assert compactor.failures == 2
        assert "no more by itself" in heard.named("compaction_failed")[-1]["reason"]
        kinds = [row.call.kind for row in run.ledger.rows]
        assert kinds.count("summary") <= 6

    held(tmp_path, talk, use)


def test_orphans_are_refused(tmp_path: Path) -> None:
    from harness.compaction import _scan

    def use(run: Opened, provider: Scripted, clock: agents.ManualClock) -> None:
        session = run.agent.session
        user, answer, results, end = session.turns[:4]
        _scan(session, [user, answer, results, end])
        with pytest.raises(CompactionRefused, match="results without calls"):
            _scan(session, [user, results])
        with pytest.raises(CompactionRefused, match="lose the results"):
            _scan(session, [user, answer, user])
        assert isinstance(results, Turn) and dump(list(results.items))

    held(tmp_path, talk, use)


@pytest.mark.parametrize(
    ("refusal", "window"),
    [
        ("prompt is too long: 12345 tokens > 12000 maximum", 12_000),
        ("This model's maximum context length is 12000 tokens. However, you requested 12345 tokens", 12_000),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", None),
    ],
    ids=["messages", "chat", "responses"],
)
def test_a_prompt_that_is_too_long_is_compacted_and_sent_again(
    tmp_path: Path, refusal: str, window: int | None
) -> None:
    class Small(Scripted):
        def whole(self, body: bytes) -> JsonObject:
            if len(body) // 4 > 12_000:
                raise ProviderFailed(f"the provider answered 400: {refusal}", status=400)
            return Scripted.whole(self, body)

    clock = agents.ManualClock()
    provider = Small(load("anthropic"), clock, talk)
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    with agents.opened(made, provider=provider, dialect=Messages(), clock=clock) as run:
        for number in range(40):
            run.agent.say(f"turn {number} " + "and more words " * 200)
        kinds = [(row.call.kind, row.call.status) for row in run.ledger.rows]
    assert ("main", 400) in kinds and ("summary", 200) in kinds
    assert kinds[-1] == ("main", 200)
    assert run.agent.compactor is not None
    learnt = run.agent.compactor.window
    assert learnt == window if window else 8_000 < learnt < 12_000
