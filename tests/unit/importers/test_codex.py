"""Codex rollouts: repeated and missing events, both kinds of usage, forks, and real files against a naive count."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traces import io
from traces.importers import codex
from traces.lines import Rejected
from traces.schema import Call

Json = dict[str, Any]
Write = Callable[..., Path]


def row(kind: str, second: int, **payload: Any) -> Json:
    return {"timestamp": f"2026-06-01T09:00:{second:02}.000Z", "type": kind, "payload": payload}


def tokens(whole: int, cached: int, output: int, **rest: int) -> Json:
    return {"input_tokens": whole, "cached_input_tokens": cached, "output_tokens": output} | rest


def counted(second: int, total: Json, last: Json | None) -> Json:
    return row("event_msg", second, type="token_count", info={"total_token_usage": total, "last_token_usage": last})


META = row("session_meta", 0, id="A", cli_version="0.121.0", cwd="/p", model_provider="openai", source="cli")
TURN = row("turn_context", 0, model="gpt-5.4", effort="medium")
ONE = counted(9, tokens(100, 0, 5), tokens(100, 0, 5))
TWO = counted(19, tokens(260, 90, 12), tokens(160, 90, 7))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(*rows: Json, name: str = "rollout-x.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        return path

    return made


def calls_of(path: Path) -> list[Call]:
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    assert rejected == []
    return calls


def test_input_is_whole_and_repeated_events_are_one_call(write: Write) -> None:
    limits = row("event_msg", 1, type="token_count", info=None)
    one, two = calls_of(write(META, TURN, limits, ONE, ONE, TWO, TWO))
    assert (one.usage.input_tokens, one.usage.read_tokens, one.usage.uncached_tokens) == (100, 0, 100)
    assert (two.usage.input_tokens, two.usage.read_tokens, two.usage.output_tokens) == (160, 90, 7)
    assert (one.usage.write_tokens, one.model, one.trace, one.provider) == (None, "gpt-5.4", "A", "openai")
    assert (two.facts or {})["previous"] == one.id


def test_a_call_begins_when_its_input_was_there(write: Write) -> None:
    made = row("response_item", 7, type="function_call")
    result = row("response_item", 8, type="function_call_output")
    sent = row("response_item", 2, type="message", role="user")
    one, two = calls_of(write(META, TURN, sent, made, result, ONE, row("response_item", 15, type="reasoning"), TWO))
    assert (one.started_at, one.ended_at) == (_at(2), _at(7))
    assert (two.started_at, two.ended_at) == (_at(8), _at(15))


def _at(second: int) -> Any:
    from datetime import UTC, datetime

    return datetime(2026, 6, 1, 9, 0, second, tzinfo=UTC)


def test_the_record_is_preferred_and_its_event_dropped(write: Write) -> None:
    bill = tokens(18020, 0, 5, cache_write_input_tokens=18000)
    record = row("token_usage_record", 5, response_id="resp_1", usage=bill, thread_token_usage=bill)
    (call,) = calls_of(write(META, TURN, record, counted(6, bill, bill)))
    assert (call.id, call.usage.write_tokens, call.usage.uncached_tokens) == ("resp_1", 18000, 20)
    without = row("token_usage_record", 5, response_id="resp_1", usage=bill)
    assert len(calls_of(write(META, TURN, without, counted(6, bill, bill)))) == 1


def test_requests_that_only_the_totals_know_are_named(write: Write) -> None:
    rejected: list[Rejected] = []
    later = counted(29, tokens(900, 300, 20), tokens(200, 100, 4))
    calls = list(io.read(write(META, TURN, ONE, TWO, later), on_reject=rejected.append))
    assert len(calls) == 3
    (remark,) = rejected
    assert remark.kept
    assert "440 input tokens" in remark.reason


def test_totals_alone_give_the_difference(write: Write) -> None:
    _, two = calls_of(write(META, TURN, ONE, counted(19, tokens(260, 90, 12), None)))
    assert (two.usage.input_tokens, two.usage.read_tokens, two.usage.output_tokens) == (160, 90, 7)


def test_totals_go_on_after_a_resume(write: Write) -> None:
    calls = calls_of(write(META, TURN, ONE, META, TURN, ONE, TWO))
    assert [call.usage.input_tokens for call in calls] == [100, 160]


def test_a_fork_repeats_its_parents_calls_under_the_same_ids(write: Write, tmp_path: Path) -> None:
    fork = row("session_meta", 30, id="B", forked_from_id="A", model_provider="openai")
    write(META, TURN, ONE, TWO, name="rollout-a.jsonl")
    write(fork, META, TURN, ONE, counted(40, tokens(230, 95, 9), tokens(130, 95, 4)), name="rollout-b.jsonl")
    calls = list(io.distinct(call for path in io.find([tmp_path]) for call in io.read(path)))
    assert [(call.trace, call.usage.input_tokens) for call in calls] == [("A", 100), ("A", 160), ("B", 130)]
    assert (calls[2].facts or {})["previous"] == calls[0].id


def test_compaction_effort_and_model_are_told(write: Write) -> None:
    changed = row("turn_context", 12, model="gpt-5.5", effort="high")
    _, two = calls_of(write(META, TURN, ONE, row("compacted", 11, message=""), changed, TWO))
    assert two.model == "gpt-5.5"
    assert (two.facts or {})["since"] == ["compact", "effort medium → high"]


def test_a_sub_agents_rollout_belongs_to_its_parent(write: Write) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "A", "depth": 1}}}
    (call,) = calls_of(write(row("session_meta", 0, id="S", source=source), TURN, ONE))
    assert (call.trace, call.agent, call.kind) == ("A", "S", "subagent")


def test_a_torn_tail_is_pending(write: Write) -> None:
    path = write(META, TURN, ONE)
    path.write_bytes(path.read_bytes() + b'{"timestamp":"2026')
    rejected: list[Rejected] = []
    assert len(list(io.read(path, on_reject=rejected.append))) == 1
    assert [each.pending for each in rejected] == [True]


def naive(path: Path) -> tuple[int, int, int, int]:
    """Distinct states of the totals, and the sums of what each of them says of its last request."""
    found: dict[str, Json] = {}
    for line in path.read_text().splitlines():
        each = json.loads(line)["payload"]
        if each.get("type") == "token_count" and each.get("info"):
            found.setdefault(json.dumps(each["info"]["total_token_usage"]), each["info"]["last_token_usage"])
    names = ("input_tokens", "cached_input_tokens", "output_tokens")
    whole, read, output = (sum(bill[name] for bill in found.values()) for name in names)
    return len(found), whole, read, output


def test_totals_of_real_files_are_those_of_a_naive_count(shared: Path) -> None:
    files = sorted((shared / "traces" / "codex").glob("*.jsonl"))
    assert len(files) == 3
    for path in files:
        calls = calls_of(path)
        sums = [
            sum(getattr(call.usage, name) or 0 for call in calls)
            for name in ("input_tokens", "read_tokens", "output_tokens")
        ]
        assert (len(calls), *sums) == naive(path), path.name
        totals = [json.loads(line)["payload"] for line in path.read_text().splitlines() if "total_token_usage" in line]
        assert sums[0] == totals[-1]["info"]["total_token_usage"]["input_tokens"]


def test_only_rollouts_are_taken() -> None:
    assert codex.sniff(json.dumps(META).encode())
    assert codex.sniff(b'{"timestamp":"2026","type":"session_meta","payload":{"base_instructions":"' + b"x" * 70_000)
    assert not codex.sniff(b'{"type":"session_meta"}')
    assert not codex.sniff(b"")


def rejects_of(path: Path) -> tuple[list[Call], list[str]]:
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    return calls, [each.reason for each in rejected]


def test_more_read_than_sent_is_no_usage(write: Write) -> None:
    wrong = counted(5, tokens(100, 900, 5), tokens(100, 900, 5))
    calls, reasons = rejects_of(write(META, TURN, wrong, counted(19, tokens(260, 990, 12), tokens(160, 90, 7))))
    assert [call.usage.input_tokens for call in calls] == [160]
    assert reasons == ["usage: read 900 is more than the whole input, 100"]


def test_totals_that_shrink_give_no_usage_of_zero(write: Write) -> None:
    calls, reasons = rejects_of(write(META, TURN, ONE, counted(12, tokens(40, 10, 2), None), TWO))
    assert [call.usage.input_tokens for call in calls] == [100, 160]
    assert reasons[0] == "totals shrank, and the event does not tell its own request's tokens"


def test_a_row_nested_too_deep_costs_itself_alone(write: Write) -> None:
    path = write(META, TURN, ONE)
    deep = '{"timestamp":"2026-06-01T09:00:10Z","type":"response_item","payload":{"x":' + "[" * 9999 + "]" * 9999 + "}}"
    with path.open("a") as file:
        file.write(deep + "\n" + json.dumps(TWO) + "\n")
    calls, reasons = rejects_of(path)
    assert [call.usage.input_tokens for call in calls] == [100, 160]
    assert reasons == ["nested deeper than 1024 levels"]


def test_redacted_names_are_no_names(write: Write) -> None:
    meta = row("session_meta", 0, id="REDACTED", cwd="/p", model_provider="openai")
    records = [row("token_usage_record", n, response_id="REDACTED", usage=tokens(100, 90, 5)) for n in (1, 2)]
    one, two = io.distinct(calls_of(write(meta, TURN, *records)))
    assert (one.trace, one.id, two.id) == ("rollout-x", "rollout-x:3", "rollout-x:4")
