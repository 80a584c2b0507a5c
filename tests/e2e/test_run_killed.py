"""The command killed and interrupted for real, at moments nobody chose, and the places it writes to taken away."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")
pytest.importorskip("anthropic", reason="the SDK is not installed")

import orjson
import serving

from traces import io
from traces.canonical import dump

Run = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "claude-opus-5"
ALL = '[permissions]\nread = "allow"\nwrite = "allow"\nrun = "allow"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[serving.Running]:
    script = serving.script(tmp_path, {"match": "slow", "delay_ms": 30_000, "text": "late"},
                            {"match": "drip", "piece_ms": 50, "text": "word " * 400},
                            {"match": "trickle", "piece_ms": 50, "text": "word " * 20})  # fmt: skip
    with serving.running(script=str(script)) as running:
        yield running


@pytest.fixture
def started(
    command: list[str], environment: dict[str, str], server: serving.Running, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`started("-p", text, …)`: the agent as a process that a test may kill."""
    (tmp_path / "cachewright.toml").write_text(ALL)
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        common = ("--target", server.url, "--model", MODEL, "--db", str(tmp_path / "own.db"))
        processes.append(subprocess.Popen(
            [*command, "run", *arguments, *common], cwd=tmp_path, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
        return processes[-1]

    yield start
    for one in processes:
        if one.poll() is None:
            one.kill()
        one.communicate()


def journal(place: Path) -> list[dict[str, Any]]:
    data = (place / "main.jsonl").read_bytes()
    return [orjson.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def turns(place: Path) -> list[bytes]:
    """All turns of a conversation that was never compacted, as stored."""
    return [dump(row["items"]) for row in journal(place) if row["type"] == "turn"]


def sent(call: Any) -> list[bytes]:
    assert call.request is not None
    raw = dump(call.request["messages"]).replace(b',"cache_control":{"type":"ephemeral"}', b"")
    return [dump([one]) for one in orjson.loads(raw)]


@pytest.mark.slow
def test_killed_ten_times_at_random(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """kill -9 while it thinks, streams, runs tools or writes; each time it goes on with the same bytes."""
    dice = random.Random(7)
    task = 'call shell with {"command": "sleep 0.3; echo done"}'
    conversation = "\n".join([task, "trickle", 'call search with {"pattern": "word"}'] * 20) + "\n"
    before: list[bytes] = []
    arguments: tuple[str, ...] = ()
    for _ in range(10):
        process = started(*arguments)
        assert process.stdin is not None
        process.stdin.write(conversation)
        process.stdin.flush()
        until(lambda: (tmp_path / "sessions").exists() and any((tmp_path / "sessions").iterdir()))
        (place,) = (tmp_path / "sessions").iterdir()
        until(partial(grown, place, len(before)))
        time.sleep(dice.uniform(0, 2.5))
        process.kill()
        process.communicate()
        now = turns(place)
        assert now[: len(before)] == before
        before, arguments = now, ("--resume", place.name)
    done = started("-p", "and the end", "--resume", place.name)
    done.communicate(timeout=120)
    assert done.returncode == 0
    attempts = [row["id"] for row in journal(place) if row["type"] == "attempt"]
    rows = list(io.read(place / "ledger.jsonl"))
    assert sorted(attempts) == sorted(row.id for row in rows)  # none lost, none twice
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    heads = {dump({name: row.request[name] for name in ("model", "tools")}) for row in rows if row.request}
    assert len(heads) == 1
    stored = turns(place)
    for row in rows:
        if row.request is not None:
            assert sent(row) == stored[: len(sent(row))]


def grown(place: Path, known: int) -> bool:
    return (place / "main.jsonl").exists() and len(turns(place)) > known


def until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.03)


def test_ctrl_c_in_the_middle_of_a_stream(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = started("-p", "drip please")
    assert process.stdout is not None
    assert process.stdout.read(20).startswith("word word")
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert "Traceback" not in words
    (place,) = (tmp_path / "sessions").iterdir()
    (row,) = io.read(place / "ledger.jsonl")
    assert row.status == 200 and row.usage.write_tokens  # billed though nobody saw the end
    again = started("-p", "go on", "--resume", place.name)
    _, words = again.communicate(timeout=60)
    assert again.returncode == 0, words


def test_ctrl_c_in_the_middle_of_a_command(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = started("-p", 'call shell with {"command": "echo $$ > pid; sleep 300; touch late"}')
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert "Traceback" not in words
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    (place,) = (tmp_path / "sessions").iterdir()
    last = journal(place)[-1]
    assert last["role"] == "results" and "Interrupted" in json.dumps(last["items"])
    again = started("-p", "go on", "--resume", place.name)
    _, words = again.communicate(timeout=60)
    assert again.returncode == 0, words


@pytest.mark.parametrize("what", ["a folder", "another program's", "a file above it"])
def test_a_store_that_cannot_be_written(cachewright: Run, server: serving.Running, tmp_path: Path, what: str) -> None:
    db = tmp_path / "own.db"
    if what == "a folder":
        db.mkdir()
    elif what == "another program's":
        db.write_bytes(b"no database " * 100)
    else:
        (tmp_path / "file").write_text("x")
        db = tmp_path / "file" / "own.db"
    done = cachewright("run", "-p", "hello", "--target", server.url, "--model", MODEL, "--db", db)
    if what == "a file above it":
        assert done.returncode == 2 and "cannot be written" in done.stderr and "name another --db" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("not stored: ") == 1 and "the session's ledger file has every call" in done.stderr
    assert len(done.stderr.splitlines()) < 8


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0", "0.00", "sNaN", ""])
def test_a_budget_that_is_none(cachewright: Run, value: str) -> None:
    done = cachewright("run", "-p", "x", "--target", "http://127.0.0.1:9", "--model", MODEL, "--budget", value)
    assert done.returncode == 2 and "is no amount of dollars above 0" in done.stderr


def test_a_budget_that_is_spent_sends_nothing_more(cachewright: Run, server: serving.Running, tmp_path: Path) -> None:
    common = ("--target", server.url, "--model", MODEL, "--db", tmp_path / "own.db", "--budget", "0.000001")
    done = cachewright("run", "-p", 'call search with {"pattern": ""}', *common)
    assert done.returncode == 1 and "of 0.000001 USD; raise --budget to go on" in done.stderr
    again = cachewright("run", "-p", "more", "--json", "--resume", done.stderr.split("session ")[1].split()[0], *common)
    last = json.loads(again.stdout.splitlines()[-1])
    assert again.returncode == 1 and last["event"] == "failed" and last["cost"]["total"]["attempts"] == 1
    assert last["reason"] in again.stderr
    assert len(server.client("local").calls()) == 1  # the answer that spent it; the tool's result is not sent
