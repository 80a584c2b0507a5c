"""Session files of agents: trees, steps, stores, redaction, and counts that leave parts out."""

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from traces import io
from traces.errors import UnreadableInput
from traces.importers import opencode_db
from traces.lines import Rejected
from traces.schema import Call, JsonObject, Usage


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def document(path: Path, value: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(value, indent=indent))
    return path


def calls_of(path: Path) -> tuple[list[Call], list[Rejected]]:
    rejected: list[Rejected] = []
    return list(io.read(path, on_reject=rejected.append)), rejected


# Pi

PI_HEAD = {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/p"}


def pi_entry(name: str, parent: str | None, second: int, **more: Any) -> JsonObject:
    return {"type": "message", "id": name, "parentId": parent, "timestamp": f"2026-01-01T00:00:{second:02}Z"} | more


def pi_answer(name: str, parent: str, second: int, **more: Any) -> JsonObject:
    usage = {"input": 3, "output": 5, "cacheRead": 40, "cacheWrite": 10, "totalTokens": 58}
    message: JsonObject = {
        "role": "assistant",
        "api": "anthropic-messages",
        "provider": "anthropic",
        "model": "claude-opus-4-5",
    }
    message |= {"usage": usage, "stopReason": "stop", "timestamp": 1767225600000 + second * 1000 - 500} | more
    return pi_entry(name, parent, second, message=message)


def pi_user(name: str, parent: str | None, second: int) -> JsonObject:
    return pi_entry(name, parent, second, message={"role": "user", "content": "x"})


def test_pi_input_leaves_out_what_was_read_and_written_and_the_long_part_is_a_part(tmp_path: Path) -> None:
    usage = {"input": 3, "output": 5, "cacheRead": 40, "cacheWrite": 10, "cacheWrite1h": 4}
    path = lines(tmp_path / "s.jsonl", [PI_HEAD, pi_user("a", None, 1), pi_answer("b", "a", 3, usage=usage)])
    ((call,), rejected) = calls_of(path)
    assert rejected == []
    assert call.usage == Usage(53, 40, 10, 6, 4, 5)
    assert call.started_at and call.ended_at
    assert (call.started_at.microsecond, call.ended_at.second) == (500_000, 3)
    assert (call.trace, call.agent, call.provider, call.api) == ("s1", "main", "anthropic", "messages")


def test_pi_branches_follow_the_tree_and_not_the_file(tmp_path: Path) -> None:
    rows = [PI_HEAD, pi_user("a", None, 1), pi_answer("b", "a", 2, responseId="r1")]
    rows += [pi_user("c", "b", 3), pi_answer("d", "c", 4, responseId="r2")]
    rows += [pi_user("e", "b", 5), pi_answer("f", "e", 6, responseId="r3")]  # goes back to b
    rows += [pi_user("g", "d", 7), pi_answer("h", "g", 8, responseId="r4")]  # and returns to the trunk
    calls, _ = calls_of(lines(tmp_path / "s.jsonl", rows))
    assert [(call.id, call.agent, (call.facts or {})["previous"]) for call in calls] == [
        ("r1", "main", None),
        ("r2", "main", "r1"),
        ("r3", "branch e", "r1"),
        ("r4", "main", "r2"),
    ]
    assert calls[2].parent == "r1"


def test_pi_aborted_answers_are_unknown_and_nobody_goes_on_from_them(tmp_path: Path) -> None:
    zero = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    rows = [PI_HEAD, pi_user("a", None, 1), pi_answer("b", "a", 2, responseId="r1")]
    rows += [pi_answer("c", "b", 3, usage=zero, stopReason="aborted", responseId="r2")]
    rows += [pi_answer("d", "c", 4, responseId="r3")]
    calls, _ = calls_of(lines(tmp_path / "s.jsonl", rows))
    assert [call.usage == Usage() for call in calls] == [False, True, False]
    assert (calls[2].facts or {})["previous"] == "r1"


def test_pi_warming_and_summaries_are_billed_calls(tmp_path: Path) -> None:
    usage = {"input": 1, "output": 1, "cacheRead": 40, "cacheWrite": 0}
    rows = [PI_HEAD, pi_user("a", None, 1), pi_answer("b", "a", 2, responseId="r1")]
    rows += [pi_entry("w", "b", 3, usage=usage, kind="cache_warm") | {"type": "usage"}]
    rows += [pi_entry("k", "w", 4, usage=usage, tokensBefore=9) | {"type": "compaction"}]
    rows += [pi_answer("d", "k", 5, responseId="r2")]
    calls, _ = calls_of(lines(tmp_path / "s.jsonl", rows))
    assert [call.kind for call in calls] == ["main", "keepalive", "summary", "main"]
    assert [call.usage.read_tokens for call in calls] == [40, 40, 40, 40]
    assert calls[3].facts == {"client": "pi", "project": "/p", "previous": "r1", "since": ["compact"]}


def test_pi_writes_of_providers_without_such_a_class_are_unknown(tmp_path: Path) -> None:
    usage = {"input": 3, "output": 5, "cacheRead": 40, "cacheWrite": 0}
    who = {"api": "openai-responses", "provider": "openai", "model": "gpt-5.1", "usage": usage}
    ((call,), _) = calls_of(lines(tmp_path / "s.jsonl", [PI_HEAD, pi_answer("b", "a", 2, **who)]))
    assert call.usage == Usage(43, 40, None, output_tokens=5)
    assert (call.provider, call.api) == ("openai", "responses")


def test_pi_bad_rows_cost_themselves(tmp_path: Path) -> None:
    bad: list[Any] = [[1], pi_answer("x", "a", 3, usage={"input": "3"}), pi_answer("y", "a", 4, usage=7)]
    path = lines(tmp_path / "s.jsonl", [PI_HEAD, pi_answer("b", "a", 2), *bad, pi_answer("c", "b", 5)])
    with path.open("a") as file:
        file.write('{"type": "mess')
    calls, rejected = calls_of(path)
    assert len(calls) == 2
    assert [f"{row}".rpartition("s.jsonl:")[2] for row in rejected] == [
        "3: not an object but a list",
        "4: usage.input: want a whole number of tokens, got '3'",
        "5: usage: want an object, got 7",
        "7: not JSON (column 10: unterminated string starting at)",
    ]
    assert [row.pending for row in rejected] == [False, False, False, True]


# OpenCode


def oc_message(name: str, second: int, steps: list[JsonObject] | None, **info: Any) -> JsonObject:
    tokens = steps[-1] if steps else oc_tokens(0, 0, 0, 0)
    whole: JsonObject = {"id": name, "role": "assistant", "sessionID": "ses", "modelID": "claude-sonnet-4-5"}
    whole |= {"providerID": "anthropic", "mode": "build", "tokens": tokens}
    whole |= {"time": {"created": 1767225600000 + second * 1000, "completed": 1767225601000 + second * 1000}} | info
    parts = [{"type": "step-finish", "tokens": step} for step in steps or []]
    return {"info": whole, "parts": [{"type": "step-start"}, *parts] if steps is not None else [{"type": "tool"}]}


def oc_tokens(fresh: int, read: int, write: int, output: int, **more: Any) -> JsonObject:
    return {"input": fresh, "output": output, "reasoning": 0, "cache": {"read": read, "write": write}} | more


OC_INFO = {"id": "ses", "slug": "x", "projectID": "p", "directory": "/w", "version": "1.2.20"}


@pytest.mark.parametrize("indent", [None, 2])
def test_opencode_counts_each_step_and_no_wrapper(tmp_path: Path, indent: int | None) -> None:
    user = {"info": {"id": "u", "role": "user"}, "parts": []}
    messages = [user, oc_message("m1", 1, [oc_tokens(3, 0, 50, 5), oc_tokens(2, 50, 6, 7)])]
    messages += [oc_message("m2", 9, None), oc_message("m3", 20, [], error={"name": "x"})]
    path = document(tmp_path / "e.json", {"info": OC_INFO, "messages": messages}, indent)
    calls, rejected = calls_of(path)
    assert rejected == []
    assert [(call.id, call.usage) for call in calls] == [
        ("m1", Usage(53, 0, 50, output_tokens=5)),
        ("m1#1", Usage(58, 50, 6, output_tokens=7)),
        ("m3", Usage()),
    ]
    assert [call.ended_at is not None for call in calls] == [False, True, True]
    assert calls[1].facts == {"client": "opencode 1.2.20", "project": "/w", "previous": "m1"}


def test_opencode_reasoning_is_part_of_the_output_unless_the_total_says_otherwise(tmp_path: Path) -> None:
    inside = oc_tokens(10, 0, 0, 5, total=15) | {"reasoning": 3}
    beside = oc_tokens(10, 0, 0, 5, total=18) | {"reasoning": 3}
    messages = [oc_message("a", 1, [inside]), oc_message("b", 2, [beside])]
    calls, _ = calls_of(document(tmp_path / "e.json", {"info": OC_INFO, "messages": messages}))
    assert [call.usage.output_tokens for call in calls] == [5, 8]


def test_opencode_writes_of_models_without_such_a_class_are_unknown(tmp_path: Path) -> None:
    who = {"modelID": "gpt-5.3-codex", "providerID": "opencode"}
    (call,), _ = calls_of(
        document(
            tmp_path / "e.json", {"info": OC_INFO, "messages": [oc_message("a", 1, [oc_tokens(3, 8, 0, 1)], **who)]}
        )
    )
    assert (call.provider, call.usage) == ("openai", Usage(11, 8, None, output_tokens=1))


def test_opencode_sub_agents_and_summaries(tmp_path: Path) -> None:
    step = [oc_tokens(3, 8, 0, 1)]
    messages = [oc_message("a", 1, step), oc_message("b", 2, step, summary=True), oc_message("c", 3, step, mode="plan")]
    path = document(tmp_path / "e.json", {"info": OC_INFO | {"parentID": "top"}, "messages": messages})
    calls, _ = calls_of(path)
    assert [(call.trace, call.agent, call.kind) for call in calls] == [
        ("top", "ses", "subagent"),
        ("top", "ses", "summary"),
        ("top", "ses", "subagent"),
    ]
    assert (calls[2].facts or {})["since"] == ["compact", "agent build → plan"]


def store(path: Path) -> Path:
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE project (id TEXT PRIMARY KEY, worktree TEXT);
        CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, title TEXT);
        CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT);
        CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, data TEXT);
        INSERT INTO session VALUES ('ses', 'p', NULL, 't'), ('sub', 'p', 'ses', 't');
        """
    )
    for session, number in (("ses", 1), ("sub", 2), ("ses", 3)):
        message = oc_message(f"m{number}", number, [oc_tokens(number, 10, 5, 1)])
        info = {key: value for key, value in message["info"].items() if key not in ("id", "sessionID")}
        db.execute("INSERT INTO message VALUES (?, ?, ?, ?)", (f"m{number}", session, number, json.dumps(info)))
        for index, part in enumerate(message["parts"]):
            row = (f"p{number}{index}", f"m{number}", session, json.dumps(part))
            db.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    db.execute("INSERT INTO message VALUES ('bad', 'ses', 9, '{\"role\":\"assistant\",\"tokens\":5}')")
    db.commit()
    db.close()
    return path


def test_the_opencode_store_gives_the_same_calls(tmp_path: Path) -> None:
    calls, rejected = calls_of(store(tmp_path / "opencode.db"))
    assert [(call.id, call.trace, call.agent, call.usage.input_tokens) for call in calls] == [
        ("m1", "ses", "main", 16),
        ("m3", "ses", "main", 18),
        ("m2", "ses", "sub", 17),
    ]
    assert [f"{row}".rpartition("opencode.db:")[2] for row in rejected] == [
        "4: message 'bad': tokens: want an object, got 5"
    ]
    assert (calls[1].facts or {})["previous"] == "m1"


def test_a_damaged_store_is_one_clear_error(tmp_path: Path) -> None:
    path = store(tmp_path / "opencode.db")
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + b"\xff" * (len(raw) - 4096))
    assert opencode_db.sniff(raw[: 2**16])
    with pytest.raises(UnreadableInput, match="cannot be read as OpenCode's store"):
        list(io.read(path))


# Gemini CLI, Copilot CLI, mini-swe-agent


def gemini_message(name: str, second: int, **more: Any) -> JsonObject:
    tokens = {"input": 100, "output": 7, "cached": 60, "thoughts": 3, "tool": 0, "total": 110}
    row = {"id": name, "timestamp": f"2026-01-01T00:00:{second:02}Z", "type": "gemini", "tokens": tokens}
    return row | {"model": "gemini-3"} | more


GEMINI = {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z", "lastUpdated": "x", "kind": "main"}


@pytest.mark.parametrize("as_lines", [True, False])
def test_gemini_input_is_the_whole_and_the_start_is_what_came_before(tmp_path: Path, as_lines: bool) -> None:
    tool = {"id": "t", "timestamp": "2026-01-01T00:00:08Z"}
    messages = [{"id": "u", "type": "user", "timestamp": "2026-01-01T00:00:01Z"}]
    messages += [gemini_message("a", 5, toolCalls=[tool]), gemini_message("b", 9, tokens={"input": 5})]
    messages += [{"id": "i", "type": "info", "timestamp": "2026-01-01T00:00:20Z"}]
    path = tmp_path / "session.json"
    lines(path, [GEMINI, *messages]) if as_lines else document(path, GEMINI | {"messages": messages})
    (first, second), rejected = calls_of(path)
    assert rejected == []
    assert first.usage == Usage(100, 60, None, output_tokens=10)
    assert second.usage == Usage(5)
    assert [call.started_at.second for call in (first, second) if call.started_at] == [1, 8]
    assert [call.ended_at.second for call in (first, second) if call.ended_at] == [5, 9]
    assert first.trace == "s"


def test_gemini_messages_written_anew_are_one_call(tmp_path: Path) -> None:
    tool = {"id": "t", "timestamp": "2026-01-01T00:00:08Z"}
    first = gemini_message("a", 5, tokens=None)
    rows = [
        GEMINI,
        first,
        {"$set": {"lastUpdated": "x"}},
        gemini_message("a", 5),
        gemini_message("a", 5, toolCalls=[tool]),
    ]
    path = lines(tmp_path / "session.jsonl", [*rows, gemini_message("b", 9)])
    calls, rejected = calls_of(path)
    assert [(call.id, call.usage.input_tokens) for call in calls] == [("a", 100), ("b", 100)]
    assert calls[1].started_at is not None and calls[1].started_at.second == 8
    assert rejected == []


def test_copilot_totals_are_not_calls_and_its_input_is_unknown(tmp_path: Path) -> None:
    def event(kind: str, second: int, **data: Any) -> JsonObject:
        return {"type": kind, "timestamp": f"2026-01-01T00:00:{second:02}Z", "id": "x", "data": data}

    rows = [event("session.start", 0, sessionId="s", copilotVersion="1.0.64")]
    rows += [event("assistant.turn_start", 1), event("assistant.message", 4, outputTokens=9, model="m", apiCallId="c")]
    rows += [event("session.shutdown", 9, modelMetrics={"m": {"usage": {"inputTokens": 999, "outputTokens": 9}}})]
    (call,), rejected = calls_of(lines(tmp_path / "events.jsonl", rows))
    assert (call.usage, call.id, call.trace) == (Usage(output_tokens=9), "c", "s")
    assert rejected == []


def test_mini_swe_agent_sends_what_stands_in_front_of_an_answer(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}

    def answer(number: int, **extra: Any) -> JsonObject:
        response = {"id": f"gen-{number}", "created": 1767225600 + number, "model": "google/g", "usage": usage}
        return {"role": "assistant", "content": f"a{number}", "extra": {"response": response} | extra}

    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u\n{"}, answer(1)]
    messages += [{"role": "user", "content": "o"}, answer(5, timestamp=1767225609.5)]
    info = {"model_stats": {"api_calls": 2}, "mini_version": "2.4", "config": {}}
    path = document(tmp_path / "x.traj.json", {"info": info, "messages": messages}, 2)
    (first, second), rejected = calls_of(path)
    assert rejected == []
    assert first.request == {"messages": messages[:2]}
    assert second.request == {"messages": [*messages[:2], {"role": "assistant", "content": "a1"}, messages[3]]}
    assert first.place and second.place
    assert io.read_request(first.place) == first.request and io.read_request(second.place) == second.request
    assert second.usage == Usage(20, 8, output_tokens=2) and second.provider == "openrouter"
    assert second.started_at and second.ended_at and (second.started_at.second, second.ended_at.second) == (5, 9)
