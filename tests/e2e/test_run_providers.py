"""Whatever a provider answers: each attempt has a row, what may help is repeated, all else is one line of words."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("anthropic", reason="the SDK is not installed")

import agents
from rude_http import END, GOOD, OPEN, SSE, START, STOP, TEXT, Step, events, refusal, serving

from harness.errors import ProviderFailed
from traces.schema import Call


def rows(tmp_path: Path, *plan: Step, fails: str | None = None, path: str = "") -> tuple[list[Call], list[float]]:
    """Rows of a session whose first request meets `plan`, and the pauses it made."""
    heard = agents.Heard()
    clock = agents.ManualClock()
    with serving(*plan) as (url, received):
        made = agents.options(tmp_path, url + path)
        with agents.opened(made, heard, clock=clock) as run:
            if fails is None:
                assert run.agent.say("hello") == "fine"
            else:
                with pytest.raises(ProviderFailed, match=fails):
                    run.agent.say("hello")
                if not path:
                    assert run.agent.say("and on") == "fine"  # the session is none the worse
            found = [row.call for row in run.ledger.rows]
    assert len(set(received)) <= 2
    return found, [one["seconds"] for one in heard.named("retry")]


def test_busy_providers_are_asked_again_when_they_say(tmp_path: Path) -> None:
    busy = refusal(429, "rate_limit_error", "slow down", **{"retry-after": "7"})
    found, pauses = rows(tmp_path, busy, refusal(529, "overloaded_error", "overloaded"))
    assert [(one.attempt, one.status) for one in found] == [(1, 429), (2, 529), (3, 200)]
    assert pauses == [7.0, 4.0]
    assert [one.usage.input_tokens for one in found] == [None, None, 1005]  # unknown is not zero


@pytest.mark.parametrize("value", ["86400", "nan", "-3", "Wed, 21 Oct 2026 07:28:00 GMT", "inf"])
def test_a_pause_that_nobody_can_wait_for(tmp_path: Path, value: str) -> None:
    _, pauses = rows(tmp_path, refusal(429, "rate_limit_error", "slow down", **{"retry-after": value}))
    assert pauses == [60.0 if value in ("86400", "inf") else 1.0]


def test_a_request_that_is_wrong_is_sent_once(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, refusal(400, "invalid_request_error", "no\nsuch"), fails="answered 400: no such")
    assert [one.status for one in found] == [400, 200]


def test_it_gives_up_after_three_attempts(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, *[refusal(503, "api_error", "down")] * 3, fails="answered 503: down")
    assert [one.status for one in found] == [503, 503, 503, 200]


CUT: dict[str, tuple[Step, Callable[[Call], bool]]] = {
    "in the middle of an event": (
        (200, SSE, events(START, OPEN) + b"event: content_block_delta\ndata: {\"type\"", True), lambda one: True
    ),
    "between events": ((200, SSE, events(START, OPEN, TEXT), True), lambda one: True),
    "and says nothing of it": ((200, SSE, events(START, OPEN, TEXT), False), lambda one: True),
    "before it begins": ((200, SSE, b"", False), lambda one: False),
    "by an error event": (
        (200, SSE, events(START, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}), False),
        lambda one: True,
    ),
    "with an event of no kind": ((200, SSE, events(START, {"type": "content_block_delta", "index": 5}), False),
                                 lambda one: True),
    "with what is no JSON": ((200, SSE, events(START) + b"event: content_block_start\ndata: {nonsense\n\n", False),
                             lambda one: True),
    "with half a message": ((200, SSE, events({"type": "message_start"}), False), lambda one: False),
    "by a page of HTML": ((200, {"content-type": "text/html"}, b"<html>hello</html>", False), lambda one: False),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_a_stream_that_breaks_off_is_on_the_ledger_and_repeated(tmp_path: Path, name: str) -> None:
    step, began = CUT[name]
    found, pauses = rows(tmp_path, step)
    assert [one.attempt for one in found] == [1, 2]
    assert pauses == [1.0]
    assert (found[0].usage.write_tokens == 1000) == began(found[0])
    assert found[0].usage.output_tokens in (None, 1)
    assert found[1].usage.output_tokens == 2


def test_an_answer_without_content_is_an_answer(tmp_path: Path) -> None:
    empty: Step = (200, SSE, events(START, END, STOP), False)
    with serving(empty) as (url, _), agents.opened(agents.options(tmp_path, url)) as run:
        assert run.agent.say("hello") == "(no answer)"
        assert run.agent.say("again") == "fine"


def test_failures_of_the_openai_apis(tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the SDK is not installed")
    failed = {"type": "response.failed", "response": {"id": "r", "status": "failed", "output": [],
              "error": {"code": "server_error", "message": "it broke"}}}  # fmt: skip
    found, _ = rows(tmp_path, *[(200, SSE, events(failed), False)] * 3, fails="it broke", path="/responses")
    assert len(found) == 3
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}
    cut: Step = (200, SSE, f"data: {json.dumps(chunk)}\n\n".encode(), False)
    found, _ = rows(tmp_path, cut, cut, cut, fails="ended before the answer", path="/chat/completions")
    assert len(found) == 3


def test_nobody_there(tmp_path: Path) -> None:
    made = agents.options(tmp_path, "http://127.0.0.1:9")
    with agents.opened(made, clock=agents.ManualClock()) as run, pytest.raises(ProviderFailed, match="no answer"):
        run.agent.say("hello")
    assert [row.call.status for row in run.ledger.rows] == [None] * 3
    assert GOOD[0] == 200
