"""Malformed and hostile input: one clear line each on stderr, the good rows audited, nothing acts on a terminal."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def row(minute: int, **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 3_000, "cache_read_input_tokens": 0, "output_tokens": 1}
    mark = {"cache_control": {"type": "ephemeral"}}
    request = {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "messages": [{"role": "user", "content": "Hello."}],
    }
    base = {"provider": "anthropic", "started_at": f"2026-05-01T10:{minute:02}:00Z", "request": request}
    return base | {"id": f"good-{minute}", "status": 200, "response": {"usage": usage}} | fields


def line(minute: int, **fields: Any) -> bytes:
    return json.dumps(row(minute, **fields)).encode()


NOTHING_READABLE = {
    "empty": b"",
    "blank lines": b"\n\n  \n",
    "binary": bytes(range(256)) * 3,
    "UTF-16": line(1).decode().encode("utf-16"),
    "prose": b"this is no trace\n",
    "a list": b"[1, 2]\n",
    "a body": json.dumps(row(1)["request"]).encode() + b"\n",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", NOTHING_READABLE)
def test_a_file_without_any_call_exits_with_3(cachewright: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(NOTHING_READABLE[name])
    done = cachewright("audit", "bad.jsonl", "--json", "--no-store")
    assert (done.returncode, done.stdout) == (3, "")
    *rows, last = done.stderr.splitlines()
    assert last.startswith("cachewright: bad.jsonl: ")
    assert all(each.startswith("bad.jsonl:") for each in rows) and all(each.isprintable() for each in [*rows, last])


BAD_ROWS = {
    "no JSON": (b"{oops}", "not JSON"),
    "wrong type": (line(2, started_at=7), "started_at: want text, got 7"),
    "NaN": (line(2).replace(b"3000", b"NaN"), "holds NaN"),
    "huge number": (line(2).replace(b"3000", b"1" * 5_000), "4300 digits"),
    "negative tokens": (line(2).replace(b"3000", b"-3000"), "-3000"),
    "deep nesting": (b'{"a":' * 50_000, "nested deeper than"),
    "wrong encoding": (line(2).replace(b"brief", b"br\xefef"), "not UTF-8"),
    "no provider": (line(2, provider=None), "provider is missing"),
    "bad time": (line(2, started_at="yesterday"), "want an ISO 8601 time"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_and_the_good_ones_are_audited(cachewright: Run, tmp_path: Path, name: str) -> None:
    bad, reason = BAD_ROWS[name]
    (tmp_path / "mixed.jsonl").write_bytes(b"\n".join([line(1), bad, line(3), b""]))
    done = cachewright("audit", "mixed.jsonl", "--json", "--no-store")
    assert done.returncode == 0
    (told,) = done.stderr.splitlines()
    assert told.startswith("mixed.jsonl:2: ") and reason in told
    assert [call["id"] for call in json.loads(done.stdout)["calls"]] == ["good-1", "good-3"]


def test_a_torn_last_line_is_pending(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "growing.jsonl").write_bytes(line(1) + b"\n" + line(2)[:-40])
    done = cachewright("audit", "growing.jsonl", "--json", "--no-store")
    assert done.returncode == 0 and len(json.loads(done.stdout)["calls"]) == 1
    (told,) = done.stderr.splitlines()
    assert told.startswith("growing.jsonl:2: ") and told.endswith("(may still be written)")


def test_many_bad_rows_are_counted(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_bytes(b"\n".join([line(1), *[b"{oops}"] * 50, b""]))
    done = cachewright("audit", "mixed.jsonl", "--json", "--no-store")
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 21
    assert done.stderr.splitlines()[-1] == "… and 30 more rows with remarks"


def test_a_good_and_a_bad_file(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_bytes(line(1) + b"\n")
    (tmp_path / "bad.jsonl").write_bytes(b"\0\1\2\3")
    done = cachewright("audit", "bad.jsonl", "good.jsonl", "--json", "--no-store")
    assert done.returncode == 0 and len(json.loads(done.stdout)["calls"]) == 1
    assert "bad.jsonl" in done.stderr and "good.jsonl" not in done.stderr


def test_missing_times_and_a_clock_that_ran_backwards(cachewright: Run, tmp_path: Path) -> None:
    rows = [line(1), line(2, started_at=None), line(3, ended_at="2026-05-01T09:00:00Z")]
    (tmp_path / "times.jsonl").write_bytes(b"\n".join([*rows, b""]))
    done = cachewright("audit", "times.jsonl", "--json", "--no-store")
    assert done.returncode == 0
    calls = {call["id"]: call for call in json.loads(done.stdout)["calls"]}
    assert set(calls) == {"good-1", "good-2", "good-3"} and calls["good-2"]["started_at"] is None
    assert not any(call["diagnosis"] and call["diagnosis"]["cause"] == "ttl_expired" for call in calls.values())
    (told,) = done.stderr.splitlines()
    assert told.startswith("times.jsonl:3: ended_at is 3780.000 s before started_at")


def test_a_row_without_a_time_is_no_reason_to_call_an_entry_expired(cachewright: Run, tmp_path: Path) -> None:
    usage = {"input_tokens": 9_000, "read_tokens": 0, "write_tokens": 9_000}
    rows = [line(1, request=None, response=None, usage=usage, started_at=None)]
    rows += [line(2, request=None, response=None, usage=usage)]
    (tmp_path / "undated.jsonl").write_bytes(b"\n".join([*rows, b""]))
    done = cachewright("audit", "undated.jsonl", "--json", "--no-store")
    assert [call["diagnosis"] for call in json.loads(done.stdout)["calls"]] == [None, None]


def test_an_unpriced_loss_has_no_dollars(cachewright: Run, tmp_path: Path) -> None:
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 3_000, "cache_read_input_tokens": 0}
    request = row(1)["request"] | {"model": "claude-nova-9"}
    rows = [line(minute, request=request, response={"usage": usage}) for minute in (1, 7)]
    (tmp_path / "nova.jsonl").write_bytes(b"\n".join([*rows, b""]))
    cause = json.loads(cachewright("audit", "nova.jsonl", "--no-store", "--json").stdout)["totals"]["by_cause"]
    assert (cause["ttl_expired"]["avoidable_usd"], cause["new_content"]["avoidable_usd"]) == (None, "0")
    assert float(cause["ttl_expired"]["avoidable_equivalents"]) > 0


def test_rows_in_any_order_are_audited_by_time(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "order.jsonl").write_bytes(b"\n".join([line(3), line(1), line(2), b""]))
    done = cachewright("audit", "order.jsonl", "--json", "--no-store")
    assert [call["id"] for call in json.loads(done.stdout)["calls"]] == ["good-1", "good-2", "good-3"]


def test_a_broken_body_leaves_a_call_judged_by_its_usage(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "body.jsonl").write_bytes(line(1, request={"model": "m", "messages": [7]}) + b"\n")
    done = cachewright("audit", "body.jsonl", "--json", "--no-store")
    assert done.returncode == 0
    (call,) = json.loads(done.stdout)["calls"]
    assert (call["basis"], call["verdict"]) == ("usage", "cold_write")
    (told,) = done.stderr.splitlines()
    assert told.startswith("body.jsonl:1: messages[0] is a number") and "judged by its usage alone" in told


def test_an_unknown_model_is_shouted(cachewright: Run, tmp_path: Path) -> None:
    request = row(1)["request"] | {"model": "claude-nova-9"}
    (tmp_path / "nova.jsonl").write_bytes(line(1, request=request) + b"\n")
    text = cachewright("audit", "nova.jsonl", "--no-store")
    assert "UNPRICED: no price known for model 'claude-nova-9' (1 calls, 3,005 tokens)" in " ".join(text.stdout.split())
    totals = json.loads(cachewright("audit", "nova.jsonl", "--no-store", "--json").stdout)["totals"]
    unpriced = {"claude-nova-9": {"calls": 1, "tokens": 3_005}}
    assert (totals["unpriced"], totals["cost_usd"], totals["partial"]) == (unpriced, None, True)


HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]fs[/red]\u202e"


def test_hostile_names_are_shown_literally(cachewright: Run, tmp_path: Path) -> None:
    """Control characters in tool names, models and paths reach neither a terminal nor rich's markup."""
    rows = []
    for minute, names in ((1, ["a"]), (2, [HOSTILE, "a"])):
        tools = [{"name": name, "description": "x", "input_schema": {"type": "object"}} for name in names]
        rows.append(line(minute, request={"tools": tools, **row(1)["request"], "model": HOSTILE}))
    (tmp_path / "hostile.jsonl").write_bytes(b"\n".join([*rows, b""]))
    done = cachewright("audit", "hostile.jsonl", "--no-store")
    compared = cachewright("diff", "hostile.jsonl:1", "hostile.jsonl:2")
    linted = cachewright("lint", "hostile.jsonl")
    for shown in (done, compared, linted):
        assert shown.returncode == 0
        assert not set(shown.stdout + shown.stderr) & set("\x1b\x07\u202e\x9b")
    assert "tools_changed: inserted" in done.stdout
    assert "␛[2J[red]fs[/red]" in "".join(done.stdout.split())
    found = json.loads(cachewright("audit", "hostile.jsonl", "--no-store", "--json").stdout)
    assert found["calls"][1]["diagnosis"]["first_change"]["names"] == [HOSTILE], "data stays as it is"
