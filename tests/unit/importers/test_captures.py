"""Raw HTTP captures: bodies as sent, replies folded, times, retries; and no secret anywhere in what is made of them."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from traces import io
from traces.importers.endpoints import fingerprint, flat_headers
from traces.lines import Rejected
from traces.schema import Call, Usage

KEY = "sk-ant-FAKE-0123456789"
BODY = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "é"}],
}
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens": 5}
REPLY = {"id": "msg_1", "type": "message", "model": "claude-sonnet-4-5", "content": [], "usage": USAGE}
START = {"id": "msg_1", "usage": USAGE | {"output_tokens": 1}}
SSE = "".join(
    f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
    for event in (
        {"type": "message_start", "message": START},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    )
)
URL = f"https://user:{KEY}@api.anthropic.com/v1/messages?beta=true&key={KEY}"
HEADERS = {"X-API-Key": KEY, "Cookie": f"s={KEY}", "Proxy-Authorization": KEY, "anthropic-beta": "b-1,c-2"}
WHOLE = Usage(50, 40, 7, output_tokens=5)


def read(path: Path, rows: Any, *, lines: bool = True) -> tuple[list[Call], list[Rejected]]:
    text = "".join(f"{json.dumps(row)}\n" for row in rows) if lines else json.dumps(rows, indent=1)
    path.write_text(text)
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    for call in calls:
        assert call.place is not None
        if call.request is not None:
            assert io.read_request(call.place) == call.request
    return calls, rejected


def pair(started: float, **response: Any) -> dict[str, Any]:
    sent = {"timestamp": started, "method": "POST", "url": URL, "headers": HEADERS, "body": BODY}
    back = {"timestamp": started + 2, "status_code": 200, "headers": {}} | response
    return {"request": sent, "response": back if response else None, "logged_at": "2026-01-01T00:00:00Z"}


def test_claude_trace_folds_streams_and_keeps_requests_without_reply(tmp_path: Path) -> None:
    rows = [pair(1767225600.5, body_raw=SSE), pair(1767225610, body=REPLY), pair(1767225620)]
    (first, second, orphan), rejected = read(tmp_path / "log.jsonl", rows)
    assert rejected == []
    assert first.usage == second.usage == WHOLE and first.id == "msg_1"
    assert first.provider == "anthropic" and first.host == "api.anthropic.com" and first.api == "messages"
    assert first.betas == ("b-1", "c-2") and first.request == BODY
    assert first.started_at and first.ended_at and (first.ended_at - first.started_at).total_seconds() == 2
    assert first.started_at.microsecond == 500_000
    assert orphan.usage == Usage() and orphan.response is None and orphan.status is None and not orphan.failed


def test_the_key_is_a_fingerprint_and_nothing_secret_is_in_a_call(tmp_path: Path) -> None:
    (call,), _ = read(tmp_path / "log.jsonl", [pair(1767225600, body=REPLY)])
    assert KEY not in repr(call)
    assert call.key_fp and len(call.key_fp) == 8
    again = fingerprint({"authorization": f"Bearer {KEY}"})
    assert again == call.key_fp != fingerprint({"x-api-key": "another"})


@pytest.mark.parametrize("mask", ["Bearer sk-ant-api...", "sk-***", "REDACTED", "[m:17:8a42df80]", "Bearer <redacted>"])
def test_equal_masks_do_not_make_equal_keys(mask: str) -> None:
    assert fingerprint({"authorization": mask}) is None


def test_case_f08_no_marked_secret_survives(shared: Path, tmp_path: Path) -> None:
    capture = json.loads((shared / "cases" / "F08" / "capture.json").read_text())
    secrets = json.loads((shared / "cases" / "F08" / "secrets.json").read_text())
    sent = {"timestamp": 1.0, "method": "POST", "url": capture["url"], "headers": capture["headers"]}
    row = {
        "request": sent | {"body": capture["body"]},
        "response": None,
        **{k: capture[k] for k in ("metadata", "error")},
    }
    (call,), rejected = read(tmp_path / "log.jsonl", [row])
    shown = repr(call) + repr(rejected)
    assert not [name for name, secret in secrets.items() if name != "G" and secret in shown]
    assert secrets["G"] in shown  # the body is what the user recorded
    assert call.key_fp is not None


def test_what_asks_no_model_is_passed_over_in_silence(tmp_path: Path) -> None:
    rows = [pair(1767225600, body=REPLY) for _ in range(4)]
    rows[0]["request"]["method"] = "GET"
    rows[1]["request"]["url"] = "https://api.anthropic.com/v1/models"
    rows[2]["request"]["url"] = "https://api.anthropic.com/v1/messages/count_tokens"
    calls, rejected = read(tmp_path / "log.jsonl", rows)
    assert [(call.kind, call.usage == Usage()) for call in calls] == [("count", True), ("main", False)]
    assert rejected == []


def test_a_repeated_body_after_a_failure_is_the_next_attempt(tmp_path: Path) -> None:
    failed = {"status_code": 529, "body": {"type": "error", "error": {"type": "overloaded_error"}}}
    rows = [pair(1767225600, **failed), pair(1767225601), pair(1767225602, body=REPLY), pair(1767225603, body=REPLY)]
    calls, _ = read(tmp_path / "log.jsonl", rows)
    assert [call.attempt for call in calls] == [1, 2, 3, 1]
    assert [call.failed for call in calls] == [True, False, False, False]
    assert calls[0].usage == Usage()


def test_sessions_and_agents_are_named_by_headers_or_by_the_user_in_the_body(tmp_path: Path) -> None:
    rows = [pair(1767225600, body=REPLY) for _ in range(3)]
    rows[0]["request"]["headers"] = {"X-Claude-Code-Session-Id": "s1", "x-claude-code-agent-id": "a1"}
    user = "user_1_account_2_session_01234567-89ab-cdef-0123-456789abcdef"
    rows[1]["request"]["body"] = BODY | {"metadata": {"user_id": user}}
    calls, _ = read(tmp_path / "log.jsonl", rows)
    assert [call.trace for call in calls] == ["s1", "01234567-89ab-cdef-0123-456789abcdef", "log"]
    assert [(call.agent, call.kind) for call in calls] == [("a1", "subagent"), ("main", "main"), ("main", "main")]


def test_claude_tap_times_are_ends(tmp_path: Path) -> None:
    sent = {"method": "POST", "path": "/v1/messages", "headers": HEADERS, "body": BODY}
    row = {"timestamp": "2026-01-01T00:00:10Z", "request_id": "r", "turn": 1, "duration_ms": 4000, "request": sent}
    (call,), _ = read(tmp_path / "t.jsonl", [row | {"response": {"status": 200, "headers": {}, "body": REPLY}}])
    assert call.started_at and call.ended_at
    assert (call.started_at.second, call.ended_at.second) == (6, 10)
    assert call.usage == WHOLE and call.provider == "anthropic"


def entry(reply: str | None, encoding: str | None = None, **response: Any) -> dict[str, Any]:
    content = {"mimeType": "text/event-stream", "size": 1}
    content |= {} if reply is None else {"text": reply}
    content |= {} if encoding is None else {"encoding": encoding}
    sent = {"method": "POST", "url": URL, "headers": [{"name": k, "value": v} for k, v in HEADERS.items()]}
    return {
        "startedDateTime": "2026-01-01T01:00:00.000+01:00",
        "time": 2500,
        "timings": {"blocked": -1, "dns": -1, "connect": 100, "send": 0, "wait": 400, "receive": 2000},
        "request": sent | {"postData": {"mimeType": "application/json", "text": json.dumps(BODY)}},
        "response": {"status": 200, "headers": [], "content": content} | response,
    }


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


def har(*entries: Any) -> dict[str, Any]:
    return {"log": {"version": "1.2", "creator": {"name": "x", "version": "1"}, "entries": list(entries)}}


def test_har_bodies_in_base64_and_packed(tmp_path: Path) -> None:
    plain = base64.b64encode(json.dumps(REPLY).encode()).decode()
    rows = [entry(SSE), entry(plain, "base64"), entry(packed(SSE), "base64"), entry(None)]
    calls, rejected = read(tmp_path / "a.har", har(*rows), lines=False)
    assert rejected == []
    assert [call.usage for call in calls] == [WHOLE, WHOLE, WHOLE, Usage()]
    first = calls[0]
    assert first.started_at and first.first_token_at and first.ended_at
    assert first.started_at.isoformat() == "2026-01-01T00:00:00+00:00"
    assert (first.first_token_at - first.started_at).total_seconds() == 0.5
    assert (first.ended_at - first.started_at).total_seconds() == 2.5
    assert KEY not in repr(calls)


def test_a_packed_reply_that_was_cut_keeps_the_usage_in_front_of_the_cut(tmp_path: Path) -> None:
    noise = ": " + "".join(f"{number * 7919 % 10007} " for number in range(4000)) + "\n\n"
    whole = gzip.compress((SSE + noise).encode())
    cut = base64.b64encode(whole[: len(whole) // 2]).decode()
    (call,), rejected = read(tmp_path / "a.har", har(entry(cut, "base64")), lines=False)
    assert call.usage == WHOLE and rejected == []


def test_a_coding_that_is_not_known_costs_what_it_packs_and_no_call(tmp_path: Path) -> None:
    zstd = base64.b64encode(b"\x28\xb5\x2f\xfd\x00\x01\x02").decode()
    other = entry(SSE)
    other["request"]["postData"] = {"text": zstd, "encoding": "base64"}
    (first, second), said = read(tmp_path / "a.har", har(entry(zstd, "base64"), other), lines=False)
    assert first.request == BODY and first.usage == Usage()
    assert second.request is None and second.usage == WHOLE
    assert [row.kept for row in said] == [True, True]
    assert "log.entries[0]: response body is packed with zstd; record it unpacked" in f"{said[0]}"
    assert "log.entries[1]: request body is packed with zstd" in f"{said[1]}"


def test_a_damaged_entry_costs_itself_alone(tmp_path: Path) -> None:
    bad = entry(SSE) | {"startedDateTime": "yesterday"}
    calls, (said,) = read(tmp_path / "a.har", har(entry(SSE), bad, entry(SSE)), lines=False)
    assert len(calls) == 2
    assert "log.entries[1]: startedDateTime: want an ISO 8601 time, got 'yesterday'" in f"{said}"


def test_mitmproxy_flows_as_mitmproxy_writes_them() -> None:
    """`data/flows.mitm` was written by mitmproxy 11.0.2 from invented flows: a packed stream, a failure and its
    repetition, and a reply in a coding that is not read here."""
    path = Path(__file__).with_name("data") / "flows.mitm"
    rejected: list[Rejected] = []
    calls = list(io.read(path, on_reject=rejected.append))
    assert [call.id for call in calls] == ["msg_m1", "flows:2", "msg_m2", "flows:4"]
    assert [call.attempt for call in calls] == [1, 1, 2, 1]
    assert calls[0].usage == Usage(105, 0, 100, output_tokens=7) and calls[1].failed
    assert calls[2].usage == Usage(105, 100, 0, output_tokens=2)
    assert "br" in f"{rejected[0]}" and rejected[0].kept and len(rejected) == 1
    assert "SECRET" not in repr(calls)
    for call in calls:
        assert call.place and io.read_request(call.place) == call.request
        assert call.started_at and call.first_token_at
        assert (call.first_token_at - call.started_at).total_seconds() == 0.5


def test_a_flow_file_that_is_still_written_is_pending(tmp_path: Path) -> None:
    whole = (Path(__file__).with_name("data") / "flows.mitm").read_bytes()
    path, rejected = tmp_path / "f.mitm", list[Rejected]()
    path.write_bytes(whole[:-100])
    assert len(list(io.read(path, on_reject=rejected.append))) == 3
    assert [row.pending for row in rejected] == [True]


def test_headers_of_any_shape_are_the_same() -> None:
    pairs = [["A", "1"], ["b", "2"]]
    objects = [{"name": "A", "value": "1"}, {"name": "b", "value": "2"}, {"name": 3}, "x"]
    assert flat_headers(pairs) == flat_headers(objects) == flat_headers({"A": "1", "b": ["2"]}) == {"a": "1", "b": "2"}
    assert flat_headers("x") == {}


@pytest.mark.parametrize(
    ("url", "provider", "api", "model"),
    [
        ("https://api.openai.com/v1/responses", "openai", "responses", "m"),
        ("https://chatgpt.com/backend-api/codex/responses", "openai", "responses", "m"),
        ("https://api.deepseek.com/chat/completions", "deepseek", "chat", "m"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model/anthropic.claude-x/invoke", "bedrock", "messages", "m"),
        ("https://openrouter.ai/api/v1/chat/completions", "openrouter", "chat", "m"),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent",
            "gemini",
            "generate_content",
            "m",
        ),
        ("http://127.0.0.1:8080/v1/chat/completions", "unknown", "chat", "m"),
    ],
)
def test_who_was_asked_is_told_by_host_and_path(tmp_path: Path, url: str, provider: str, api: str, model: str) -> None:
    row = pair(1767225600, body={"id": "x"})
    row["request"] |= {"url": url, "body": {"model": model, "messages": []}}
    (call,), _ = read(tmp_path / "log.jsonl", [row])
    assert (call.provider, call.api, call.model) == (provider, api, model)
