"""Where markers go: head, newest end, the end before it beyond the lookback, shared ends; never too many."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

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
    assert (planned.read_tokens, planned.error_tokens) == (0, 0)


def test_the_end_before_is_marked_only_where_the_lookback_would_lose_it() -> None:
    forecast = Forecast(load("anthropic"))
    sent(forecast, [many(1)], 2000, 0)
    near = forecast.plan(call([many(1), many(19)]), START + timedelta(seconds=5))
    assert set(near.marks) == {"/system/0", "/messages/1/content/18"}
    assert (near.read_tokens, near.error_tokens) == (2000, 0)
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


@pytest.mark.parametrize(
    ("kept", "settled"),
    [
        (lambda end: end, True),
        (lambda end: end + 4, True),
        (lambda end: end - 1, True),
        (lambda end: end - end % 64, False),
    ],
    ids=["as billed", "framed", "last token not kept", "in units of 64"],
)
def test_a_unit_that_ends_with_an_answer_is_never_further_off_than_said(
    kept: Callable[[int], int], settled: bool
) -> None:
    """Whatever a provider puts around an answer: exact as soon as two reads agree, and unsure before and otherwise."""
    draw, forecast, talk = random.Random(7), Forecast(load("deepseek")), [{"role": "user", "content": "Hello."}]
    total, unit, told = 900, 0, []
    for number in range(20):
        at = START + timedelta(seconds=10 * number)
        body = {"model": "deepseek-v4-pro", "messages": list(talk)}
        asked = Call(
            str(number), "t", "deepseek", at, api="chat", host="api.deepseek.com", model="deepseek-v4-pro",
            request=body, first_token_at=at, status=200,
        )  # fmt: skip
        planned = forecast.predict(asked, at)
        assert planned.read_tokens is not None and planned.error_tokens is not None
        assert abs(planned.read_tokens - unit) <= planned.error_tokens
        told.append((planned.read_tokens == unit, planned.error_tokens))
        output = draw.randint(2, 400)
        forecast.settle(replace(asked, usage=Usage(total, unit, None, output_tokens=output)))
        talk += [{"role": "assistant", "content": f"Answer {number}."}, {"role": "user", "content": f"More {number}."}]
        unit = kept(total + output)
        total += output + draw.randint(20, 300)
    assert told[0] == (True, 0) and all(error for _, error in told[1:3])
    assert (set(told[3:]) == {(True, 0)}) == settled


def test_other_apis_are_left_alone() -> None:
    body = {"model": "gpt-6", "messages": [{"role": "user", "content": "x"}]}
    plain = Call("c", "t", "openai", START, api="chat", model="gpt-6", request=body)
    planned = Forecast(load("anthropic")).plan(plain, START)
    assert (planned.marks, planned.read_tokens) == ({}, None)
