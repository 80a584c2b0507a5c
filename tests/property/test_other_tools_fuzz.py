"""Whatever another tool's file holds, importing it raises only `UnreadableInput`, speaks in single lines, and loses no
good row."""

import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput
from traces.importers.registry import importers
from traces.io import Rejected, read_request
from traces.schema import JsonObject

FAST = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["\ud800", "x\ny", 10**25, -1, 1e300, "9" * 30, "2026-01-01T00:00:00Z", "[", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
MODULES = {module.NAME: module for module in importers()}
ANTHROPIC = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens": 5}
BODY = {"model": "claude-x", "messages": [{"role": "user", "content": "é"}]}
REPLY = {"id": "msg", "type": "message", "model": "claude-x", "usage": ANTHROPIC}
URL = "https://api.anthropic.com/v1/messages"
TIME = "2026-01-01T00:00:00Z"
CHAT = {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}}
PI_USAGE = {"input": 3, "output": 5, "cacheRead": 40, "cacheWrite": 7}
OC_TOKENS = {"input": 3, "output": 5, "reasoning": 0, "cache": {"read": 40, "write": 7}}
LINES: dict[str, tuple[list[Any], JsonObject]] = {
    "pi": (
        [{"type": "session", "id": "s", "timestamp": TIME, "cwd": "/"}],
        {
            "type": "message",
            "timestamp": TIME,
            "message": {"role": "assistant", "usage": PI_USAGE, "timestamp": 1767225599000, "model": "claude-x"},
        },
    ),
    "copilot": (
        [{"type": "session.start", "timestamp": TIME, "data": {"sessionId": "s", "copilotVersion": "1"}}],
        {"type": "assistant.message", "timestamp": TIME, "data": {"model": "m", "outputTokens": 5}},
    ),
    "gemini_cli": (
        [{"sessionId": "s", "projectHash": "h", "startTime": TIME}],
        {"type": "gemini", "timestamp": TIME, "tokens": {"input": 50, "cached": 40, "output": 5}, "toolCalls": []},
    ),
    "claude_trace": (
        [],
        {
            "request": {"timestamp": 1.5, "method": "POST", "url": URL, "headers": {"x-api-key": "k"}, "body": BODY},
            "response": {"timestamp": 2.5, "status_code": 200, "headers": {}, "body": REPLY},
        },
    ),
    "claude_tap": (
        [],
        {
            "timestamp": TIME,
            "turn": 1,
            "duration_ms": 5,
            "upstream_base_url": "https://api.anthropic.com",
            "request": {"method": "POST", "path": "/v1/messages", "headers": {}, "body": BODY},
            "response": {"status": 200, "body": REPLY, "ws_events": []},
        },
    ),
    "request_log": (
        [],
        {"t": 1.5, "method": "POST", "path": "/v1/messages", "headers": [["a", "b"]], "body": BODY, "status": 200},
    ),
    "litellm": (
        [],
        {
            "call_type": "completion",
            "startTime": 1.5,
            "endTime": 2.5,
            "custom_llm_provider": "openai",
            "metadata": {"usage_object": CHAT},
            "messages": [{"role": "user", "content": "x"}],
            "model_parameters": {},
        },
    ),
    "langfuse": (
        [],
        {
            "traceId": "t",
            "type": "GENERATION",
            "startTime": TIME,
            "usageDetails": {"input": 50, "input_cached_tokens": 8, "total": 50},
            "input": [{"role": "user", "content": "x"}],
        },
    ),
    "otel": (
        [],
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {
                                    "startTimeUnixNano": "1767225600000000000",
                                    "attributes": [
                                        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "50"}},
                                    ],
                                }
                            ]
                        }
                    ]
                }
            ]
        },
    ),
    "mooncake": ([], {"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [1, 2]}),
    "responses": ([], {"object": "chat.completion", "created": 1, "model": "m", "choices": [], "usage": CHAT}),
}
DOCUMENTS: dict[str, tuple[Callable[[list[Any]], Any], JsonObject]] = {
    "opencode": (
        lambda rows: {"info": {"id": "s", "slug": "x", "projectID": "p"}, "messages": rows},
        {
            "info": {"role": "assistant", "time": {"created": 1767225600000}, "modelID": "claude-x"},
            "parts": [{"type": "step-start"}, {"type": "step-finish", "tokens": OC_TOKENS}],
        },
    ),
    "gemini_cli": (
        lambda rows: {"sessionId": "s", "projectHash": "h", "startTime": TIME, "messages": rows},
        LINES["gemini_cli"][1],
    ),
    "mini_swe_agent": (
        lambda rows: {"info": {"model_stats": {}, "config": {}}, "messages": rows},
        {"role": "assistant", "content": "x", "extra": {"response": {"created": 1767225600, "usage": CHAT}}},
    ),
    "har": (
        lambda rows: {"log": {"version": "1.2", "creator": {}, "entries": rows}},
        {
            "startedDateTime": TIME,
            "time": 5,
            "request": {"method": "POST", "url": URL, "headers": [], "postData": {"text": json.dumps(BODY)}},
            "response": {"status": 200, "content": {"text": json.dumps(REPLY)}},
        },
    ),
    "langfuse": (lambda rows: {"trace": {"id": "t", "projectId": "p"}, "observations": rows}, LINES["langfuse"][1]),
    "litellm": (lambda rows: rows, LINES["litellm"][1]),
}


def check(name: str, path: Path) -> tuple[int, list[Rejected]]:
    """Import a file as its format; gives how many calls it holds and what was rejected."""
    rejected: list[Rejected] = []
    calls = 0
    try:
        for call in MODULES[name].read(path, on_reject=rejected.append):
            calls += 1
            assert call.place is not None and call.place.file == f"{path}"
            repr(call).encode()
            for time in (call.started_at, call.ended_at, call.first_token_at):
                assert time is None or time.tzinfo is not None
            if call.request is not None and MODULES[name].sniff(path.read_bytes()[: 2**16]):
                assert read_request(call.place) == call.request
    except UnreadableInput as error:
        assert one_line(f"{error}")
    assert all(one_line(f"{row}") for row in rejected)
    return calls, rejected


def one_line(text: str) -> bool:
    return len(text.splitlines()) == 1 and text.isprintable() and len(text) < 400


def changed(data: st.DataObject, value: Any) -> Any:
    """A row with one value in it, however deep, replaced, or a field removed."""
    row = copy.deepcopy(value)
    here, path = row, data.draw(st.integers(1, 6))
    for _ in range(path):
        keys: list[Any] = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return row
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], dict | list) or _ == path - 1:
            break
        here = here[key]
    if isinstance(here, dict) and data.draw(st.booleans()) and data.draw(st.booleans()):
        del here[key]
    else:
        here[key] = data.draw(json_values)
    return row


@FAST
@pytest.mark.parametrize("name", LINES)
@given(data=st.data())
def test_a_row_of_any_shape_costs_at_most_itself(name: str, data: st.DataObject, tmp_path: Path) -> None:
    start, good = LINES[name]
    path = tmp_path / "a.jsonl"
    rows = [*start, good, changed(data, good), good]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    calls, rejected = check(name, path)
    assert calls in (2, 3), rejected
    assert len(rejected) <= 1
    path.write_text(json.dumps(data.draw(json_values)))
    check(name, path)


@FAST
@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_an_element_of_any_shape_costs_at_most_itself(name: str, data: st.DataObject, tmp_path: Path) -> None:
    whole, good = DOCUMENTS[name]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole([good, changed(data, good), good]), indent=data.draw(st.sampled_from([None, 2]))))
    calls, rejected = check(name, path)
    assert calls in (2, 3), rejected
    assert len(rejected) <= 1
    path.write_text(json.dumps(changed(data, whole([good]))))
    check(name, path)


@FAST
@pytest.mark.parametrize("name", [*LINES, *DOCUMENTS])
@given(data=st.data())
def test_cut_and_flipped_bytes_raise_nothing(name: str, data: st.DataObject, tmp_path: Path) -> None:
    if name in DOCUMENTS:
        whole, good = DOCUMENTS[name]
        raw = json.dumps(whole([good] * 3)).encode()
    else:
        start, good = LINES[name]
        raw = b"".join(json.dumps(row).encode() + b"\n" for row in (*start, good, good, good))
    cut = data.draw(st.integers(0, len(raw)))
    flipped = bytearray(raw[:cut] if data.draw(st.booleans()) else raw)
    for _ in range(data.draw(st.integers(0, 3))):
        if flipped:
            flipped[data.draw(st.integers(0, len(flipped) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.json"
    path.write_bytes(flipped)
    calls, _ = check(name, path)
    assert calls <= 3
    for module in importers():
        module.sniff(bytes(flipped)[: 2**16])


@FAST
@given(data=st.data())
def test_damaged_flow_files_raise_nothing(data: st.DataObject, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "unit" / "importers" / "data" / "flows.mitm"
    flipped = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        flipped[data.draw(st.integers(0, len(flipped) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.mitm"
    path.write_bytes(flipped[: data.draw(st.integers(0, len(flipped)))])
    calls, _ = check("mitmproxy", path)
    assert calls <= 4


@FAST
@given(data=st.data())
def test_damaged_stores_raise_nothing(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE session (id TEXT, project_id TEXT, parent_id);"
        "CREATE TABLE message (id TEXT, session_id TEXT, time_created, data);"
        "CREATE TABLE part (id TEXT, message_id TEXT, data);"
    )
    good = DOCUMENTS["opencode"][1]
    info = json.dumps(data.draw(st.just(good["info"]) | json_values))
    step = json.dumps(changed(data, good["parts"][1]))
    db.execute("INSERT INTO message VALUES (?, 's', 1, ?)", (data.draw(st.sampled_from(["m", None, 5, b"x"])), info))
    db.execute("INSERT INTO part VALUES ('p', 'm', ?)", (step,))
    db.commit()
    db.close()
    assert check("opencode_db", path)[0] <= 1
    flipped = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        flipped[data.draw(st.integers(0, len(flipped) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(flipped)
    check("opencode_db", path)
