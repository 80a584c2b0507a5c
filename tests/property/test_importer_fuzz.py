"""Whatever stands between good rows of another tool's file, reading goes on: no exception, no good row lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from traces import io
from traces.errors import UnreadableInput
from traces.lines import Rejected

FAST = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 7, "output_tokens": 1}
CLAUDE: dict[str, Any] = {
    "type": "assistant",
    "uuid": "u",
    "parentUuid": None,
    "sessionId": "s",
    "timestamp": "2026-03-01T10:00:00Z",
}
CLAUDE["message"] = {"id": "msg_good", "model": "claude-opus-4-8", "content": [], "usage": USAGE}
COUNT = {"input_tokens": 90, "cached_input_tokens": 40, "output_tokens": 2}
CODEX: dict[str, Any] = {"timestamp": "2026-03-01T10:00:00Z", "type": "token_usage_record"}
CODEX["payload"] = {"response_id": "resp_good", "usage": COUNT}
FIRST = {
    "claude_code": {"type": "queue-operation", "sessionId": "s"},
    "codex": {"timestamp": "2026-03-01T09:00:00Z", "type": "session_meta", "payload": {"id": "A"}},
}
GOOD: dict[str, tuple[dict[str, Any], str]] = {"claude_code": (CLAUDE, "msg_good"), "codex": (CODEX, "resp_good")}

words = st.sampled_from(
    [
        *("type", "uuid", "parentUuid", "sessionId", "timestamp", "message", "usage", "payload", "info", "data", "id"),
        *("assistant", "user", "system", "progress", "token_count", "event_msg", "session_meta", "agent_progress"),
        *(
            "input_tokens",
            "cache_creation",
            "total_token_usage",
            "compact_boundary",
            "subtype",
            "x",
            "\ud800",
            "diagnostics",
        ),
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=12,
)
lines = st.one_of(
    values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(words, values, max_size=6).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")),
)


def mutated(good: dict[str, Any], key: str, value: Any) -> bytes:
    return json.dumps(good | {key: value}).encode()


@pytest.mark.parametrize("name", ["claude_code", "codex"])
@FAST
@given(data=st.data())
def test_rows_around_a_good_one_cost_nothing_but_themselves(name: str, tmp_path: Path, data: st.DataObject) -> None:
    good, wanted = GOOD[name]
    bad = st.one_of(lines, st.builds(mutated, st.just(good), st.sampled_from(sorted(good)), values))
    before, after = data.draw(st.lists(bad, max_size=4)), data.draw(st.lists(bad, max_size=4))
    rows = [json.dumps(FIRST[name]).encode(), *before, json.dumps(good).encode(), *after]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(rows) + data.draw(st.sampled_from([b"", b"\n", b'\n{"type":', b"\n\0\0\0"])))
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    assert wanted in {call.id.split("/")[0] for call in calls}
    assert all("\n" not in f"{each}" for each in rejected)
    assert all(call.usage.input_tokens is None or call.usage.input_tokens >= 0 for call in calls)


@pytest.mark.parametrize("name", ["claude_code", "codex"])
@FAST
@given(cut=st.integers(0, 400), flip=st.integers(0, 400), byte=st.integers(0, 255))
@example(cut=400, flip=0, byte=0)
def test_a_damaged_byte_or_a_cut_raises_nothing_else(name: str, tmp_path: Path, cut: int, flip: int, byte: int) -> None:
    text = bytearray(json.dumps(FIRST[name]).encode() + b"\n" + json.dumps(GOOD[name][0]).encode() + b"\n")
    text[min(flip, len(text) - 1)] = byte
    path = tmp_path / "x.jsonl"
    path.write_bytes(bytes(text[:cut]))
    try:
        assert all(call.place is not None for call in io.read(path))
    except UnreadableInput as error:
        assert "\n" not in f"{error}"
