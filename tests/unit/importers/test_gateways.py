"""Logs of gateways and observability: whose input figure is the whole, which rows are calls at all, and engines'
traces and responses."""

import json
from pathlib import Path
from typing import Any

import pytest

from traces import io
from traces.canonical import Interner, canonical
from traces.importers import langfuse, otel
from traces.lines import Rejected
from traces.schema import Call, JsonObject, Usage


def calls_of(path: Path, value: Any, *, indent: int | None = None, lines: bool = False) -> tuple[list[Call], list[str]]:
    text = "".join(f"{json.dumps(row)}\n" for row in value) if lines else json.dumps(value, indent=indent)
    path.write_text(text)
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    for call in calls:
        assert call.place is not None
        if call.request is not None:
            assert io.read_request(call.place) == call.request
    return calls, [f"{row}".rpartition(f"{path.name}:")[2] for row in rejected]


# LiteLLM


def litellm(**more: Any) -> JsonObject:
    usage: JsonObject = {"prompt_tokens": 50, "completion_tokens": 5, "cache_read_input_tokens": 40}
    usage |= {"cache_creation_input_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
    row = {"id": "x1", "trace_id": "t", "call_type": "acompletion", "status": "success", "stream": True}
    row |= {"custom_llm_provider": "anthropic", "model": "claude-sonnet-4-5", "prompt_tokens": 50}
    row |= {"completion_tokens": 5, "startTime": 1767225600.25, "endTime": 1767225603.0}
    row |= {"completionStartTime": 1767225601.0, "metadata": {"usage_object": usage}, "cache_hit": None}
    row |= {"messages": [{"role": "user", "content": "x"}], "model_parameters": {"temperature": 0}}
    return row | {"response": {"id": "chatcmpl-1", "usage": usage}} | more


@pytest.mark.parametrize("shape", ["lines", "list", "document", "compact"])
def test_litellm_prompt_is_the_whole_in_every_shape_of_file(tmp_path: Path, shape: str) -> None:
    value: Any = litellm() if shape in ("document", "compact") else [litellm()]
    path = tmp_path / "a.json"
    (call,), rejected = calls_of(path, value, lines=shape == "lines", indent=2 if shape == "document" else None)
    assert rejected == []
    assert call.usage == Usage(50, 40, 7, output_tokens=5)
    assert (call.provider, call.api, call.id, call.trace, call.status) == ("anthropic", "chat", "chatcmpl-1", "t", 200)
    assert call.request == {
        "model": "claude-sonnet-4-5",
        "temperature": 0,
        "messages": [{"role": "user", "content": "x"}],
    }
    assert call.started_at and call.first_token_at and call.ended_at and call.started_at.microsecond == 250_000


def test_litellm_own_cache_asked_nobody_and_other_types_are_no_calls(tmp_path: Path) -> None:
    rows = [
        litellm(cache_hit=True),
        litellm(cache_hit="True"),
        litellm(call_type="aembedding"),
        litellm(cache_hit=False),
    ]
    calls, rejected = calls_of(tmp_path / "a.jsonl", rows, lines=True)
    assert len(calls) == 1 and rejected == []


def test_litellm_rows_without_cache_numbers_are_unknown_there_and_failures_everywhere(tmp_path: Path) -> None:
    bare = litellm(metadata={}, response=None)
    failed = litellm(status="failure", error_information={"error_code": "429"}, response={})
    calls, _ = calls_of(tmp_path / "a.jsonl", [bare, failed], lines=True)
    assert [call.usage for call in calls] == [Usage(50, output_tokens=5), Usage()]
    assert [call.status for call in calls] == [200, 429]


@pytest.mark.parametrize(
    "messages", ["redacted-by-litellm", [{"role": "user", "content": "redacted-by-litellm"}], [], 5]
)
def test_litellm_redacted_messages_are_no_body(tmp_path: Path, messages: Any) -> None:
    (call,), _ = calls_of(tmp_path / "a.jsonl", [litellm(messages=messages)], lines=True)
    assert call.request is None and call.usage.read_tokens == 40


def test_litellm_spend_logs_hold_json_in_texts(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 5, "cache_read_input_tokens": 40}
    row = {"request_id": "r", "call_type": "anthropic_messages", "startTime": "2026-01-01T00:00:00Z", "spend": 0.1}
    row |= {"endTime": "2026-01-01T00:00:02Z", "model": "claude-x", "custom_llm_provider": "anthropic"}
    row |= {"prompt_tokens": 50, "completion_tokens": 5, "metadata": json.dumps({"additional_usage_values": usage})}
    row |= {"messages": json.dumps([{"role": "user", "content": "x"}]), "response": "{}", "session_id": "s"}
    (call,), rejected = calls_of(tmp_path / "a.json", [row], indent=1)
    assert rejected == []
    assert (call.usage.read_tokens, call.api, call.trace, call.id) == (40, "messages", "s", "r")
    assert call.request and call.request["messages"] == [{"role": "user", "content": "x"}]


# Langfuse


def observation(own: str, parent: str | None, details: JsonObject, **more: Any) -> JsonObject:
    row: JsonObject = {"id": own, "traceId": "t", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z"}
    row |= {"endTime": "2026-01-01T00:00:02Z", "model": "gpt-5", "usageDetails": details, "name": "chat"}
    return row | {"parentObservationId": parent, "completionStartTime": "2026-01-01T00:00:01Z"} | more


def test_langfuse_counts_innermost_generations_once(tmp_path: Path) -> None:
    details = {"input": 20, "output": 2, "total": 22}
    rows = [observation("outer", None, details), observation("span", "outer", {}, type="SPAN")]
    rows += [observation("leaf", "span", details | {"input_cached_tokens": 8})]
    rows += [observation("sdk", None, details, name="ai.generateText"), observation("empty", None, {}, model=None)]
    trace = {"id": "t", "projectId": "p", "sessionId": "s", "observations": rows}
    for document in ({"trace": trace, "observations": rows}, {"trace": trace}, trace | {"x": 1}):
        (call,), rejected = calls_of(tmp_path / "a.json", document, indent=2)
        assert (call.id, call.trace, call.usage) == ("leaf", "s", Usage(20, 8, output_tokens=2))
        assert rejected == []
    for lines in (True, False):
        (call,), _ = calls_of(tmp_path / "a.json", rows, lines=lines)
        assert (call.id, call.trace) == ("leaf", "t")


def test_langfuse_parents_in_a_circle_hide_no_call(tmp_path: Path) -> None:
    details = {"input": 20, "output": 2, "total": 22}
    rows = [observation("own", "own", details), observation("a", "b", details), observation("b", "a", details)]
    calls, rejected = calls_of(tmp_path / "a.json", {"trace": {"id": "t", "projectId": "p"}, "observations": rows})
    assert ([call.id for call in calls], rejected) == (["own", "a", "b"], [])


@pytest.mark.parametrize(
    ("details", "usage"),
    [
        ({"input": 20, "input_cached_tokens": 8, "output": 2, "total": 22}, Usage(20, 8, output_tokens=2)),
        ({"input": 12, "input_cached_tokens": 8, "output": 2, "total": 22}, Usage(20, 8, output_tokens=2)),
        (
            {"input": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output": 1, "total": 51},
            Usage(50, 40, 7, output_tokens=1),
        ),
        (  # LiteLLM's callback takes the reads out of the input and leaves the writes in it
            {"input": 10, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output": 1, "total": 51},
            Usage(50, 40, 7, output_tokens=1),
        ),
        ({"input": 3, "cache_read_input_tokens": 40}, Usage(43, 40)),
        (
            {"input": 90, "input_cached_tokens": 10, "output": 3, "output_reasoning_tokens": 5, "total": 108},
            Usage(100, 10, output_tokens=8),
        ),
        (
            {"input": 100, "input_cached_tokens": 10, "output": 8, "output_reasoning_tokens": 5, "total": 108},
            Usage(100, 10, output_tokens=8),
        ),
        ({"input": 100, "cache_read_input_tokens": 40}, Usage(None, 40)),
        ({"input": 100, "input_cached_tokens": 0, "total": 7}, Usage(100, 0)),
        ({"input": 100, "output": 5}, Usage(100, output_tokens=5)),
        ({"input": 3, "input_cache_read": 0, "cache_creation_ephemeral_5m_input_tokens": 9}, Usage(12, 0, 9)),
        (
            {"input": 3, "cache_creation_ephemeral_5m_input_tokens": 9, "cache_creation_ephemeral_1h_input_tokens": 1},
            Usage(13, None, 10, 9, 1),
        ),
        ({}, Usage()),
    ],
)
def test_langfuse_input_is_whole_or_a_rest_by_what_adds_up(details: JsonObject, usage: Usage) -> None:
    assert langfuse.usage_of(details) == usage


def test_langfuse_input_messages_are_the_body(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    inputs = [messages, {"messages": messages, "tools": []}, json.dumps(messages), "just text", [1], None]
    rows = [observation(f"o{i}", None, {"input": 1}, input=value) for i, value in enumerate(inputs)]
    calls, _ = calls_of(tmp_path / "a.jsonl", rows, lines=True)
    bodies = [call.request for call in calls]
    assert bodies[0] == bodies[2] == {"model": "gpt-5", "messages": messages}
    assert bodies[1] == {"model": "gpt-5", "messages": messages, "tools": []}
    assert bodies[3:] == [None, None, None]


# OpenTelemetry


def span(attributes: JsonObject, **more: Any) -> JsonObject:
    def value(found: Any) -> JsonObject:
        return {"intValue": f"{found}"} if isinstance(found, int) else {"stringValue": found}

    row: JsonObject = {"traceId": "t", "spanId": "s", "startTimeUnixNano": "1767225600500000000"}
    row |= {"endTimeUnixNano": "1767225602000000000", "status": {}}
    return row | {"attributes": [{"key": key, "value": value(found)} for key, found in attributes.items()]} | more


def export(*spans: Any) -> JsonObject:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "aws.bedrock", "gen_ai.request.model": "claude-x"}
COUNTS = {"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 40}


@pytest.mark.parametrize(("lines", "indent"), [(True, None), (False, None), (False, 2)])
def test_otel_counts_spans_that_ask_a_model_alone(tmp_path: Path, lines: bool, indent: int | None) -> None:
    agent = span({"gen_ai.operation.name": "invoke_agent"} | COUNTS)
    one = export(agent, span(CHAT | COUNTS | {"gen_ai.response.id": "r", "gen_ai.conversation.id": "c"}), span({}))
    value: Any = [one, one] if lines else one
    calls, rejected = calls_of(tmp_path / "a.json", value, lines=lines, indent=indent)
    assert rejected == [] and len(calls) == (2 if lines else 1)
    call = calls[0]
    assert (call.id, call.trace, call.provider, call.model) == ("r", "c", "bedrock", "claude-x")
    assert call.usage == Usage(50, 40, None, output_tokens=5)
    assert call.started_at and call.ended_at
    assert (call.started_at.microsecond, (call.ended_at - call.started_at).total_seconds()) == (500_000, 1.5)


@pytest.mark.parametrize(
    ("found", "usage"),
    [
        ({"gen_ai.usage.input_tokens": 50, "gen_ai.usage.cache_read_input_tokens": 40}, Usage(50, 40)),
        (
            {
                "gen_ai.usage.input_tokens": 3,
                "gen_ai.usage.cache_read.input_tokens": 40,
                "gen_ai.usage.cache_creation.input_tokens": 7,
            },
            Usage(50, 40, 7),
        ),
        ({"gen_ai.usage.prompt_tokens": 50, "llm.usage.cache_read_input_tokens": 0}, Usage(50, 0)),
        ({"gen_ai.usage.input_tokens": 50, "gen_ai.usage.input_tokens.cached": 8}, Usage(50, 8)),
        ({"gen_ai.usage.input_tokens": 50, "gen_ai.usage.cache_write_input_tokens": 8}, Usage(50, None, 8)),
        ({"llm.token_count.prompt": 50, "llm.token_count.prompt_details.cache_read": 8}, Usage(50, 8)),
        ({"gen_ai.usage.input_tokens": 50}, Usage(50)),
    ],
)
def test_otel_names_of_many_emitters(found: JsonObject, usage: Usage) -> None:
    assert otel.usage_of(found) == usage


def test_a_bad_span_costs_itself_alone(tmp_path: Path) -> None:
    bad = span(CHAT | COUNTS, startTimeUnixNano="soon")
    calls, rejected = calls_of(tmp_path / "a.json", export(span(CHAT | COUNTS), bad, 7, span(CHAT | COUNTS)))
    assert len(calls) == 2
    assert rejected == [
        "1: span 2: startTimeUnixNano: want an ISO 8601 time, got 'soon'",
        "1: span 3: want an object, got 7",
    ]


# Engines


def test_mooncake_ids_are_pages_with_exact_tokens_and_shared_prefixes(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 2500, "input_length": 1300, "output_length": 6, "hash_ids": [1, 2, 9]},
        {"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 3000, "input_length": 1, "output_length": 1, "hash_ids": ["a"]},
    ]
    calls, rejected = calls_of(tmp_path / "a.jsonl", rows, lines=True)
    interner = Interner(len)
    first, second = (canonical(call, interner) for call in calls)
    assert first and second
    assert list(first.ends) == [512, 1024, 1100] and list(second.ends) == [512, 1024, 1300]
    assert first.chain[:2] == second.chain[:2] and first.chain[2] != second.chain[2]
    assert [call.usage for call in calls] == [Usage(1100, output_tokens=5), Usage(1300, output_tokens=6)]
    assert [call.clock for call in calls] == ["relative", "relative"]
    assert calls[0].started_at and calls[1].started_at
    assert (calls[1].started_at - calls[0].started_at).total_seconds() == 2.5
    assert rejected == [
        "3: timestamp: want milliseconds since the start, got 'x'",
        "4: hash_ids: want a list of whole numbers",
    ]


@pytest.mark.parametrize(
    ("row", "provider", "usage"),
    [
        (
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1767225600,
                "model": "m",
                "choices": [],
                "usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}},
                "prompt_logprobs": None,
            },
            "vllm",
            Usage(9, 8, output_tokens=1),
        ),
        (
            {"text": "x", "meta_info": {"id": "c", "prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 1}},
            "sglang",
            Usage(9, 4, output_tokens=1),
        ),
        (
            {"content": "x", "timings": {"prompt_n": 3, "cache_n": 6, "predicted_n": 1}},
            "llama.cpp",
            Usage(9, 6, None, None, None, 1),
        ),
        ({"id": "c", "model": "m", "choices": [], "usage": {"prompt_tokens": 9}}, "unknown", Usage(9)),
        ({"id": "c", "model": "m", "choices": [], "usage": None}, "unknown", Usage()),
        (
            {
                "id": "c",
                "type": "message",
                "model": "claude-x",
                "usage": {"input_tokens": 1, "cache_read_input_tokens": 8},
            },
            "anthropic",
            Usage(9, 8),
        ),
    ],
)
def test_bare_responses(tmp_path: Path, row: JsonObject, provider: str, usage: Usage) -> None:
    for lines, indent in ((True, None), (False, 2)):
        (call,), rejected = calls_of(tmp_path / "a.json", [row] if lines else row, lines=lines, indent=indent)
        assert (call.provider, call.usage, rejected) == (provider, usage, [])


@pytest.mark.parametrize("case", ["B07_B08", "B16", "B22_B23"])
def test_rows_of_id_model_and_usage_are_read(shared: Path, case: str) -> None:
    rejected: list[Rejected] = []
    path = shared / "cases" / case / "usage.jsonl"
    calls = list(io.read(path, on_reject=rejected.append))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rejected == []
    assert [call.id for call in calls] == [row["id"] for row in rows]
    assert [call.model for call in calls] == [row["model"] or row["request_model"] for row in rows]
