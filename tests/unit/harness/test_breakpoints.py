"""Where markers go: head, newest end, the end before it beyond the lookback, shared ends; never too many."""

from datetime import UTC, datetime, timedelta
from typing import Any

from harness.breakpoints import Forecast
from harness.dialects.messages import Messages
from harness.wire import Head, ToolSpec, Turn
from localmodel.rules.load import load
from traces.schema import Call, Ttl, Usage

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
DIALECT = Messages()
TOOLS = [ToolSpec(name, "Does something useful. " * 40, {"type": "object"}) for name in ("a", "b", "c")]


def call(
    turns: list[Turn], marks: Any = None, usage: Usage | None = None, at: datetime = START, words: int = 600
) -> Call:
    head = Head(DIALECT.head("claude-opus-5", "Be good. " * words, TOOLS if words else [], "s"))
    body = DIALECT.body(head, turns, 10, stream=True, marks=marks or {})
    return Call(
        "c", "t", "anthropic", at, api="messages", host="api.anthropic.com", model="claude-opus-5", request=body,
        first_token_at=at, status=200, usage=usage or Usage(),
    )  # fmt: skip


def many(count: int) -> Turn:
    blocks = [{"type": "text", "text": f"part {n}"} for n in range(count)]
    return Turn("user", ({"role": "user", "content": blocks},))


def sent(forecast: Forecast, turns: list[Turn], total: int, read: int, at: datetime = START) -> None:
    planned = forecast.plan(call(turns), at)
    usage = Usage(total, read, total - read, total - read, 0, 5)
    forecast.settle(call(turns, planned.marks, usage, at))


def test_head_and_newest_end() -> None:
    planned = Forecast(load("anthropic")).plan(call([many(1), many(2)]), START)
    assert planned.marks == {"/system/0": "5m", "/messages/1/content/1": "5m"}
    assert (planned.read_tokens, planned.exact) == (0, True)


def test_the_end_before_is_marked_only_where_the_lookback_would_lose_it() -> None:
    forecast = Forecast(load("anthropic"))
    sent(forecast, [many(1)], 2000, 0)
    near = forecast.plan(call([many(1), many(19)]), START + timedelta(seconds=5))
    assert set(near.marks) == {"/system/0", "/messages/1/content/18"}
    assert (near.read_tokens, near.exact) == (2000, True)
    far = forecast.plan(call([many(1), many(20)]), START + timedelta(seconds=5))
    assert set(far.marks) == {"/system/0", "/messages/0/content/0", "/messages/1/content/19"}
    assert far.read_tokens == 2000
    late = forecast.plan(call([many(1), many(20)]), START + timedelta(seconds=300))
    assert set(late.marks) == {"/system/0", "/messages/1/content/19"}  # expired: nothing to find there
    assert late.read_tokens == 0


def test_shared_ends_come_before_the_head_and_four_is_the_most() -> None:
    forecast = Forecast(load("anthropic"))
    sent(forecast, [many(1)], 2000, 0)
    turns = [many(1), many(2), many(2), many(30)]
    planned = forecast.plan(call(turns), START + timedelta(seconds=5), common=(6, 8))
    assert len(planned.marks) == 4
    assert "/system/0" not in planned.marks
    assert "/messages/3/content/29" in planned.marks and "/messages/0/content/0" in planned.marks


def test_below_the_minimum_no_marker_and_a_word_why() -> None:
    planned = Forecast(load("anthropic")).plan(call([many(1)], words=0), START)
    assert planned.marks == {}
    assert "below minimum" in planned.skipped[0] and "the minimum is 512" in planned.skipped[0]


def test_thinking_is_not_marked_and_lifetimes_are_asked_for() -> None:
    thought = Turn("answer", ({"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},))
    ttl: Ttl = "1h"
    planned = Forecast(load("anthropic")).plan(call([many(2), thought]), START, ttl=ttl)
    assert planned.marks == {"/system/0": "1h", "/messages/0/content/1": "1h"}


def test_an_expiry_is_told_in_seconds() -> None:
    forecast = Forecast(load("anthropic"))
    sent(forecast, [many(1)], 2000, 0)
    last = call([many(1)], forecast.plan(call([many(1)]), START).marks)
    assert forecast.expires(last, START + timedelta(seconds=100)) == 200
    assert forecast.expires(last, START + timedelta(seconds=300)) is None


def test_other_apis_are_left_alone() -> None:
    body = {"model": "gpt-6", "messages": [{"role": "user", "content": "x"}]}
    plain = Call("c", "t", "openai", START, api="chat", model="gpt-6", request=body)
    planned = Forecast(load("anthropic")).plan(plain, START)
    assert (planned.marks, planned.read_tokens) == ({}, None)
