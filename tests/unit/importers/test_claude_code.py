"""Claude Code transcripts: each trap of the format in a few rows, and totals of real files against a naive count."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from traces import io
from traces.importers import claude_code
from traces.lines import Rejected
from traces.schema import Call, Label

Json = dict[str, Any]
Write = Callable[..., Path]


def usage(read: int, write: int, output: int = 10, **rest: Any) -> Json:
    split = {"ephemeral_5m_input_tokens": write, "ephemeral_1h_input_tokens": 0}
    made = {"input_tokens": 3, "cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    return made | {"cache_creation": split, "output_tokens": output} | rest


def row(kind: str, uuid: str, parent: str | None, second: int, **rest: Any) -> Json:
    time = f"2026-03-01T10:{second // 60:02}:{second % 60:02}.000Z"
    made = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "isSidechain": False}
    return made | {"timestamp": time, "version": "2.1.100", "cwd": "/home/dev/p"} | rest


def prompt(uuid: str, parent: str | None, second: int, **rest: Any) -> Json:
    return row("user", uuid, parent, second, message={"role": "user", "content": "words"}) | rest


def answer(uuid: str, parent: str | None, second: int, name: str, bill: Json | None, **rest: Any) -> Json:
    message: Json = {"id": name, "model": "claude-opus-4-8", "stop_reason": "end_turn", "content": [], "usage": bill}
    message |= rest.pop("message", {})
    return row("assistant", uuid, parent, second, requestId=f"req_{name}", message=message) | rest


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(*rows: Json, name: str = "s.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        return path

    return made


def calls_of(path: Path) -> list[Call]:
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    assert rejected == []
    return calls


def test_rows_of_one_response_are_one_call_with_the_most_complete_usage(write: Write) -> None:
    partial = {"message": {"stop_reason": None}}
    path = write(
        prompt("u", None, 0),
        answer("a", "u", 4, "m1", usage(0, 900, output=9), **partial),
        answer("b", "a", 5, "m1", usage(0, 900, output=9), **partial),
        answer("c", "b", 6, "m1", usage(0, 900, output=159)),
    )
    (call,) = calls_of(path)
    assert (call.usage.input_tokens, call.usage.write_5m_tokens, call.usage.output_tokens) == (903, 900, 159)
    assert call.started_at == datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
    assert call.ended_at == datetime(2026, 3, 1, 10, 0, 6, tzinfo=UTC)
    assert call.facts is not None
    assert "output" not in call.facts
    assert call.facts["previous"] is None


def test_a_response_after_a_response_began_when_it_was_seen(write: Write) -> None:
    _, second = calls_of(write(answer("a", None, 4, "m1", usage(0, 9)), answer("b", "a", 70, "m2", usage(9, 9))))
    assert second.started_at == second.ended_at == datetime(2026, 3, 1, 10, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-12:00", "2026-02-30T00:00:00Z"])
def test_a_time_outside_of_the_calendar_is_unknown(write: Write, time: str) -> None:
    (call,) = calls_of(write(answer("a", None, 4, "m1", usage(0, 900), timestamp=time)))
    assert (call.started_at, call.ended_at, call.usage.read_tokens) == (None, None, 0)


def test_a_row_nested_too_deep_costs_itself_alone(write: Write) -> None:
    path = write(answer("a", None, 4, "m1", usage(0, 900)))
    with path.open("a") as file:
        file.write('{"type":"user","uuid":"u","message":{"content":' + "[" * 9999 + "]" * 9999 + "}}\n")
        file.write(json.dumps(answer("b", "u", 9, "m2", usage(900, 9))) + "\n")
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    assert [(call.id, (call.facts or {})["previous"]) for call in calls] == [("m1", None), ("m2", "m1")]
    assert [each.reason for each in rejected] == ["nested deeper than 1024 levels"]


def test_output_without_a_stop_reason_is_a_lower_bound(write: Write) -> None:
    (call,) = calls_of(write(answer("a", None, 4, "m1", usage(0, 900, output=9), message={"stop_reason": None})))
    assert call.facts is not None
    assert call.facts["output"] == "lower_bound"


def test_ids_without_request_id_merge_and_other_ids_do_not(write: Write) -> None:
    rows = [answer(f"a{n}", None, n, name, usage(100, 5)) for n, name in enumerate(("m1", "m1", "m2"))]
    for each in rows:
        del each["requestId"], each["parentUuid"]
    assert [call.id for call in calls_of(write(*rows))] == ["m1", "m2"]


@pytest.mark.parametrize("own", [True, False])
def test_redacted_names_make_no_two_responses_one(write: Write, own: bool) -> None:
    def redacted(uuid: str, parent: str, second: int, bill: Json) -> Json:
        names: Json = {} if own else {"uuid": "REDACTED", "parentUuid": "REDACTED"}
        message = {"message": {"id": "REDACTED"}}
        return answer(uuid, parent, second, "m", bill, **message) | {"requestId": "REDACTED"} | names

    path = write(
        prompt("u", None, 0),
        redacted("a", "u", 4, usage(0, 900, output=9)),
        redacted("b", "a", 5, usage(0, 900, output=159)),
        prompt("v", "b" if own else "REDACTED", 9),
        redacted("c", "v", 14, usage(900, 50)),
    )
    first, second = calls_of(path)
    assert (first.usage.input_tokens, first.usage.output_tokens, second.usage.input_tokens) == (903, 159, 953)
    assert (second.facts or {})["previous"] == first.id
    assert "REDACTED" not in {first.id, second.id}


def test_one_id_with_two_request_ids_is_two_calls(write: Write) -> None:
    one, two = answer("a", None, 1, "m1", usage(0, 5)), answer("b", "a", 2, "m1", usage(5, 5), requestId="other")
    assert [call.id for call in calls_of(write(one, two))] == ["m1", "m1/other"]


def test_client_made_messages_are_no_calls(write: Write) -> None:
    nothing = usage(0, 0, output=0, input_tokens=0)
    synthetic = answer("s", "a", 9, "x", nothing, message={"model": "<synthetic>"})
    redacted = answer("r", "a", 9, "5a32c9b5", nothing, message={"model": "[m:11:204e3ad4]"}) | {"requestId": None}
    path = write(
        answer("a", None, 4, "m1", usage(0, 900)), synthetic, redacted, answer("b", "s", 12, "m2", usage(9, 9))
    )
    first, second = calls_of(path)
    assert (first.id, second.id) == ("m1", "m2")
    assert second.facts is not None
    assert second.facts["since"] == ["synthetic message"]
    assert second.facts["previous"] == "m1"


def test_a_call_continues_what_its_parents_passed_last(write: Write) -> None:
    path = write(
        prompt("u1", None, 0),
        answer("a1", "u1", 4, "m1", usage(0, 900)),
        prompt("u2", "a1", 10),
        answer("a2", "u2", 14, "m2", usage(900, 50)),
        prompt("u3", "a1", 30),  # back to the first answer: the second is given up
        answer("a3", "u3", 33, "m3", usage(900, 60)),
        row("system", "c", None, 40, subtype="compact_boundary", logicalParentUuid="a3")
        | {"compactMetadata": {"trigger": "manual", "preTokens": 970}},
        prompt("u4", "c", 40, isCompactSummary=True),
        answer("a4", "u4", 44, "m4", usage(500, 60)),
        prompt("u5", None, 50),  # /clear
        answer("a5", "u5", 54, "m5", usage(500, 60)),
    )
    facts = {call.id: call.facts or {} for call in calls_of(path)}
    assert [facts[name]["previous"] for name in ("m1", "m2", "m3", "m4", "m5")] == [None, "m1", "m1", "m3", None]
    assert facts["m4"]["since"] == ["compact manual"]


def test_sub_agents_are_chains_wherever_their_rows_are(write: Write) -> None:
    side = {"isSidechain": True}
    inner: Json = {"type": "assistant", "timestamp": "2026-03-01T10:00:08.000Z", "requestId": "r9"}
    inner |= {"message": {"id": "m9", "model": "claude-haiku-4-5", "usage": usage(0, 70), "content": []}}
    path = write(
        answer("a1", None, 1, "m1", usage(0, 900)),
        prompt("w1", None, 2, **side),
        answer("w2", "w1", 3, "m2", usage(0, 40), **side),
        prompt("x1", None, 3, **side),
        answer("x2", "x1", 4, "m3", usage(0, 41), **side),
        answer("w3", "w2", 5, "m4", usage(40, 2), **side),
        row("progress", "p", "a1", 8, data={"type": "agent_progress", "agentId": "f00", "message": inner}),
        answer("a2", "p", 9, "m5", usage(900, 5)),
    )
    calls = calls_of(path)
    assert [(call.id, call.agent, call.kind) for call in calls] == [
        ("m1", "main", "main"),
        ("m2", "side-w1", "subagent"),
        ("m3", "side-x1", "subagent"),
        ("m4", "side-w1", "subagent"),
        ("m9", "f00", "subagent"),
        ("m5", "main", "main"),
    ]
    previous = {call.id: (call.facts or {})["previous"] for call in calls}
    assert previous == {"m1": None, "m2": None, "m3": None, "m4": "m2", "m9": None, "m5": "m1"}


def test_a_file_of_a_sub_agent_belongs_to_its_parents_session(write: Write) -> None:
    path = write(answer("a", None, 1, "m", usage(0, 9), isSidechain=True), name="x/subagents/agent-f00.jsonl")
    (call,) = calls_of(path)
    assert (call.trace, call.agent, call.kind) == ("s", "f00", "subagent")


def test_copies_in_a_fork_are_counted_once_and_lead_back(write: Write, tmp_path: Path) -> None:
    history = [prompt("u1", None, 0), answer("a1", "u1", 4, "m1", usage(0, 900))]
    write(*history, name="one.jsonl")
    forked = [each | {"sessionId": "t"} for each in history]
    new = [prompt("u2", "a1", 9), answer("a2", "u2", 12, "m2", usage(900, 5))]
    write(*forked, *(each | {"sessionId": "t"} for each in new), name="two.jsonl")
    both = io.distinct(call for path in io.find([tmp_path]) for call in io.read(path))
    assert [(call.id, call.trace, (call.facts or {})["previous"]) for call in both] == [
        ("m1", "s", None),
        ("m2", "t", "m1"),
    ]


def test_a_sub_agent_in_both_places_is_counted_once(write: Write, tmp_path: Path) -> None:
    """Rows in the main file, the same in a file of its own, and a total in the tool's result."""
    side = answer("w", None, 3, "m2", usage(0, 40), isSidechain=True, agentId="f00")
    result = prompt("r", "a1", 5) | {"toolUseResult": {"agentId": "f00", "totalTokens": 8702, "usage": usage(0, 40)}}
    write(answer("a1", None, 1, "m1", usage(0, 900)), side, result)
    write(side, name="s/subagents/agent-f00.jsonl")
    calls = list(io.distinct(call for path in io.find([tmp_path]) for call in io.read(path)))
    assert sorted((call.id, call.agent) for call in calls) == [("m1", "main"), ("m2", "f00")]


def test_copies_without_ids_are_not_counted_and_named(write: Write) -> None:
    row = {"type": "assistant", "sessionId": "s", "message": {"model": "m", "usage": usage(0, 40)}}
    rejected: list[Rejected] = []
    path = write(answer("a", None, 1, "m1", usage(0, 40)), row)
    assert [call.id for call in io.read(path, on_reject=rejected.append)] == ["m1"]
    assert ["not counted" in each.reason for each in rejected] == [True]


def test_what_a_tool_gave_back_is_no_word_of_the_client(write: Write) -> None:
    quoted = "Base directory for this skill, [Request interrupted by user], <command-name>/x</command-name>"
    results = [{"type": "tool_result", "content": quoted}, {"type": "tool_result", "content": '{"tool_reference": 1}'}]
    texts = [{"type": "tool_result", "content": [{"type": "text", "text": quoted}]}]
    said = [*results, {"type": "text", "text": "[Request interrupted by user for tool use]"}]
    path = write(
        prompt("u1", None, 0),
        answer("a1", "u1", 4, "m1", usage(0, 900)),
        prompt("u2", "a1", 10, message={"content": results}, toolUseResult={"stdout": quoted}),
        prompt("u3", "u2", 10, message={"content": texts}),
        answer("a2", "u3", 14, "m2", usage(900, 50)),
        prompt("u4", "a2", 20, message={"content": said}),
        answer("a3", "u4", 24, "m3", usage(950, 50)),
    )
    _, first, second = calls_of(path)
    assert "since" not in (first.facts or {})
    assert (second.facts or {})["since"] == ["interrupt"]


def test_what_happened_between_two_calls(write: Write) -> None:
    path = write(
        prompt("u1", None, 0, permissionMode="plan"),
        answer("a1", "u1", 4, "m1", usage(0, 900)),
        prompt("u2", "a1", 10, permissionMode="default")
        | {"message": {"content": [{"type": "tool_result", "content": [{"type": "tool_reference"}]}]}},
        prompt("u3", "u2", 10) | {"message": {"content": "<command-name>/model</command-name>"}},
        prompt("u4", "u3", 10, isMeta=True) | {"message": {"content": "Base directory for this skill: x"}},
        row("system", "e", "u4", 11, subtype="api_error"),
        row("system", "m", "e", 11, subtype="microcompact_boundary"),
        answer("a2", "m", 14, "m2", usage(900, 50), version="2.1.101"),
    )
    facts = calls_of(path)[1].facts or {}
    assert facts["since"] == [
        "permission_mode plan → default",
        "tool_search",
        "command /model",
        "skill",
        "api_error",
        "microcompact",
        "client 2.1.100 → 2.1.101",
    ]


def test_labels_null_and_absent_are_three_things(write: Write) -> None:
    reason = {"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 57}}
    path = write(
        answer("a", None, 1, "m1", usage(0, 5), message={"diagnostics": reason}),
        answer("b", "a", 2, "m2", usage(5, 5), message={"diagnostics": None}),
        answer("c", "b", 3, "m3", usage(10, 5)),
    )
    one, two, three = (call.label for call in calls_of(path))
    assert one == Label("tools_changed", "change", "tools", 57)
    assert two == Label("null", "none")
    assert three is None


def test_passes_of_another_kind_are_billed_beside_the_response(write: Write) -> None:
    parts: list[Json] = [{"type": "compaction"} | usage(0, 40, output=7), {"type": "message"} | usage(100, 5)]
    first, second = calls_of(write(answer("a", None, 1, "m1", usage(100, 5, iterations=parts))))
    assert (first.usage.input_tokens, second.usage.input_tokens, second.usage.output_tokens) == (108, 43, 7)
    assert (second.id, second.kind) == ("m1/0", "summary")


def test_fast_mode_and_other_clouds(write: Write) -> None:
    first, second = calls_of(
        write(answer("a", None, 1, "msg_bdrk_1", usage(0, 5, speed="fast")), answer("b", "a", 2, "m2", usage(0, 5)))
    )
    assert (first.provider, (first.facts or {})["speed"]) == ("bedrock", "fast")
    assert (second.provider, "speed" in (second.facts or {})) == ("anthropic", False)


def test_writes_without_a_whole_split_have_none(write: Write) -> None:
    odd = usage(0, 9) | {"cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 0}}
    (call,) = calls_of(write(answer("a", None, 1, "m", odd)))
    assert (call.usage.write_tokens, call.usage.write_5m_tokens, call.usage.write_1h_tokens) == (9, None, None)


def test_packed_transcripts_keep_the_users_name(write: Write, tmp_path: Path) -> None:
    packed = tmp_path / "s.jsonl.gz"
    packed.write_bytes(gzip.compress(write(answer("a", None, 1, "m", usage(0, 5))).read_bytes()))
    (call,) = calls_of(packed)
    assert call.place is not None
    assert (call.place.file, call.place.line) == (f"{packed}", 1)


def test_a_session_without_responses_is_no_error(write: Write) -> None:
    assert calls_of(write(prompt("u", None, 0))) == []


def test_damage_costs_its_own_row(shared: Path) -> None:
    rejected: list[Rejected] = []
    calls = list(io.read(shared / "cases" / "C02_C05" / "s1.jsonl", on_reject=rejected.append))
    expected = json.loads((shared / "cases" / "C02_C05" / "expected.json").read_text())
    known = [call.usage for call in calls if call.usage.input_tokens is not None]
    assert len(known) == expected["calls_with_usage"]
    assert len(calls) - len(known) == expected["usage_unknown"]
    assert sum(u.uncached_tokens or 0 for u in known) == expected["input"]
    assert sum(u.read_tokens or 0 for u in known) == expected["read"]
    assert sum(u.write_tokens or 0 for u in known) == expected["write"]
    assert sum(u.output_tokens or 0 for u in known) == expected["output"]
    lost = [each.place.line for each in rejected if not each.pending]
    assert lost == [each["line"] for each in expected["rejects"]]
    (pending,) = (each for each in rejected if each.pending)
    assert pending.place.length == expected["pending_tail_bytes"]


def naive(path: Path) -> tuple[int, int, int, int]:
    """Distinct responses of a file, and their input, read and output tokens, by the simplest count there is."""
    found: dict[str, Json] = {}

    def take(message: Json) -> None:
        if message.get("usage") and message["model"] != "<synthetic>" and sum(_counts(message["usage"])):
            kept = found.setdefault(message["id"], dict(message["usage"]))
            kept["output_tokens"] = max(kept["output_tokens"], message["usage"]["output_tokens"])

    for line in path.read_bytes().splitlines():
        try:
            each = json.loads(line)
        except ValueError:
            continue
        if each.get("type") == "assistant":
            take(each["message"])
        inner = (each.get("data") or {}).get("message") or {}
        if each.get("type") == "progress" and inner.get("type") == "assistant":
            take(inner["message"])
    bills = found.values()
    read = sum(bill["cache_read_input_tokens"] for bill in bills)
    return len(bills), sum(sum(_counts(bill)[:3]) for bill in bills), read, sum(bill["output_tokens"] for bill in bills)


def _counts(bill: Json) -> list[int]:
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    return [bill[name] for name in names]


def test_totals_of_real_files_are_those_of_a_naive_count(shared: Path) -> None:
    files = sorted((shared / "traces" / "claude_code").rglob("*.jsonl"))
    assert len(files) == 15
    for path in files:
        rejected: list[Rejected] = []
        calls = list(io.read(path, on_reject=rejected.append))
        sums = [
            sum(getattr(call.usage, name) or 0 for call in calls)
            for name in ("input_tokens", "read_tokens", "output_tokens")
        ]
        assert (len(calls), *sums) == naive(path), path.name
        damaged = {"cc-ec-7d-modelswitch.jsonl": 1}  # a row that redaction broke
        assert len(rejected) == damaged.get(path.name, 0)


def test_requests_are_those_of_the_index(shared: Path) -> None:
    rows = (shared / "traces" / "INDEX.tsv").read_text().splitlines()[1:]
    index = {name: int(count) for name, *_, count, _, _ in (line.split("\t")[:9] for line in rows)}
    for name, count in index.items():
        if name.startswith("claude_code/"):
            calls = io.read(shared / "traces" / name)
            assert sum(call.agent == "main" for call in calls) == count, name


def test_native_rows_and_other_formats_are_not_taken() -> None:
    assert not claude_code.sniff(b'{"schema":"cachewright.trace/1","provider":"anthropic","seq":1}\n')
    assert not claude_code.sniff(b'{"type":"session","version":3,"id":"x","timestamp":"2026"}\n')
    assert not claude_code.sniff(b'{"type":"user","message":{},"session_id":"x"}\n')
    assert not claude_code.sniff(b"")
