"""The 14-row trace sent for real: same blocks and gaps, tokens by five, time by a hundred, over HTTP to the command."""

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

from localmodel.rules.load import load
from localmodel.rules.step import step
from localmodel.rules.types import CacheState
from localmodel.server.pieces import tokenise
from localmodel.server.blocks import text_of
from traces.canonical import Interner, canonical
from traces.io import read
from traces.schema import Call
from traces.wire import anthropic

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "traces/recorded/fourteen"
TOKENS, SPEED, TTL_S, MINIMUM = 5, 100, 3, 200
# Rules of the trace's day: since September 2026 a run of tool results counts as one position.
RULES = f"""
schema = 1
inherits = "anthropic"
[sources]
test = "this test"
[[ttl_seconds_5m]]
value = {TTL_S}
status = "assumed"
checked = 2026-11-29
source = "test"
[[min_tokens]]
value = {MINIMUM}
status = "assumed"
checked = 2026-11-29
source = "test"
models = ["claude-sonnet-4-5"]
[[lookback_collapse]]
value = []
status = "assumed"
checked = 2026-11-29
source = "test"
platforms = ["claude_api"]
since = 2026-09-01
"""
Json = dict[str, Any]


def recorded() -> list[Json]:
    return [json.loads(line) for line in (FOLDER / "calls.jsonl").read_text().splitlines()]


def expected() -> list[list[int]]:
    """(total, write, read) of each row, by its table."""
    rows = (FOLDER / "usage.csv").read_text().splitlines()[1:]
    return [[int(number) // TOKENS for number in row.split(",")[3:]] for row in rows]


def padded(row: Json) -> Json:
    """The row's request, its blocks filled up to a fifth of their recorded tokens."""
    body: Json = copy.deepcopy(row["request"])
    for part in list(anthropic.parts(body)):
        missing = row["tokens"][part.path] // TOKENS - len(tokenise(text_of(part)))
        assert missing >= 0, part
        fill(part.value, " a" * missing)
    return body


def fill(block: Json, words: str) -> None:
    if "input_schema" in block:
        block["description"] += words
    elif block["type"] == "tool_use":
        block["input"]["arg"] += words
    elif block["type"] == "tool_result":
        block["content"][0]["text"] += words
    else:
        block["text"] += words


def seconds(row: Json) -> int:
    minutes, rest = row["started_at"][14:19].split(":")
    return int(minutes) * 60 + int(rest)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[tuple[serving.Client, Path, Path]]:
    """`cachewright serve` as a user starts it, its rule file and its record."""
    rules, record = tmp_path / "fast.toml", tmp_path / "calls.jsonl"
    rules.write_text(RULES)
    script = serving.script(tmp_path, {"match": "Block tail", "text": "Done.", "delay_ms": 400}, {"text": "Done."})
    options = {"--model": "scripted", "--port": "0", "--rules": rules, "--script": script, "--record": record}
    arguments = [str(word) for pair in options.items() for word in pair]
    program = [sys.executable, "-c", "from tui.cli import main; main(prog_name='cachewright')", "serve", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        yield serving.Client(url), rules, record
        process.terminate()
        assert process.wait(10) == 0
        assert process.stdout.read() == ""


def send_all(client: serving.Client, rows: list[Json]) -> list[serving.Reply]:
    """Send the rows at their gaps; the last three together. Gaps count from the actual start of the row before."""
    replies, before, started = [], seconds(rows[0]), time.monotonic()
    for row in rows[:11]:
        time.sleep(max(0.0, started + (seconds(row) - before) / SPEED - time.monotonic()))
        before, started = seconds(row), time.monotonic()
        replies.append(client.post("/v1/messages?beta=true", padded(row)))
    time.sleep(0.1)
    together: list[serving.Reply] = []
    threads = [
        threading.Thread(target=lambda body: together.append(client.post("/v1/messages", body)), args=[padded(row)])
        for row in rows[11:]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*replies, *together]


def tail_text(rows: list[Json]) -> None:
    """What the last three rows have in common and no other has, for the script to answer late."""
    for row in rows[11:]:
        row["request"]["messages"][-1]["content"][-1]["text"] = f"Block tail {row['seq']}."


def predicted(record: Path, rules: Path) -> dict[str, tuple[int, int]]:
    """(read, write) of each recorded call by `step` folded over the record."""
    found: dict[str, tuple[int, int]] = {}
    state, ruleset, interner = CacheState(), load(str(rules)), Interner(lambda raw: 0)
    calls = sorted(recorded_calls(record), key=lambda call: str(call.started_at))
    for call in calls:
        prompt = canonical(call, interner)
        assert prompt is not None and prompt.ends and call.started_at is not None
        state, outcome = step(state, prompt, ruleset, at=call.started_at, first_token_at=call.first_token_at)
        found[call.id] = outcome.read_tokens, outcome.write_tokens
    return found


def recorded_calls(record: Path) -> list[Call]:
    return list(read(record))


def test_every_row_has_the_same_verdict(command: tuple[serving.Client, Path, Path], tmp_path: Path) -> None:
    client, rules, record = command
    rows = recorded()
    tail_text(rows)
    replies = send_all(client, rows)
    assert [reply.status for reply in replies] == [200] * 14
    usage = {reply.json["id"]: reply.json["usage"] for reply in replies}
    figures = {
        name: (one["cache_read_input_tokens"], one["cache_creation_input_tokens"]) for name, one in usage.items()
    }
    order = [reply.json["id"] for reply in replies]
    assert [(sum(figures[name]), *reversed(figures[name])) for name in order] == [tuple(row) for row in expected()]
    assert figures == predicted(record, rules)

    calls = client.calls()
    assert {call["id"]: (call["read_tokens"], call["write_tokens"]) for call in calls} == figures
    assert all(call["reused_tokens"] == call["read_tokens"] for call in calls)
    causes = [(call["verdict"], call["cause"]) for call in calls]
    hit = ("hit", "hit")
    assert causes == [
        ("cold_write", "cold_write"), hit, hit, hit, ("miss", "tools_changed"), hit, ("miss", "ttl_expired"), hit,
        ("partial_miss", "parameter_changed"), ("partial_miss", "parameter_changed"),
        ("partial_miss", "beyond_lookback"), hit, ("partial_miss", "not_yet_readable"),
        ("partial_miss", "not_yet_readable"),
    ]  # fmt: skip
    for reply in replies:
        call = next(call for call in calls if call["id"] == reply.json["id"])
        for name in ("verdict", "cause", "read", "write"):
            key = f"{name}_tokens" if name in ("read", "write") else name
            assert reply.headers[f"x-cachewright-{name}"] == str(call[key])
    audited(record, rules, calls, tmp_path)


def audited(record: Path, rules: Path, calls: list[Json], home: Path) -> None:
    """`cachewright audit` of the record says the same, but for the leader of a group, which it alone points at."""
    program = [sys.executable, "-c", "from tui.cli import main; main(prog_name='cachewright')", "audit", str(record)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    options = ["--json", "--no-store", "--what-if", "none", "--rules", str(rules)]
    done = subprocess.run([*program, *options], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert [call["agrees"] for call in report["calls"]] == [True] * 14
    assert {call["id"]: call["verdict"] for call in report["calls"]} == {call["id"]: call["verdict"] for call in calls}
    causes = {call["id"]: call["diagnosis"]["cause"] for call in report["calls"] if call["diagnosis"]}
    lossy = [call for call in calls if call["lost_tokens"]]
    assert {call["id"]: causes[call["id"]] for call in lossy} == {call["id"]: call["cause"] for call in lossy}
    lost = {call["id"]: call["diagnosis"]["lost_tokens"] for call in report["calls"] if call["diagnosis"]}
    assert {call["id"]: lost[call["id"]] for call in lossy} == {call["id"]: call["lost_tokens"] for call in lossy}
