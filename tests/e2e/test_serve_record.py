"""Where `cachewright serve` keeps its calls: `--db` a store, `--record` a trace; neither may hold up the calls."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def served(
    command: list[str], environment: dict[str, str], *options: str | Path
) -> Iterator[tuple[serving.Client, subprocess.Popen[str]]]:
    words = [*command, "serve", "--port", "0", "--model", "scripted", "--set", "min_tokens=8", *map(str, options)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        try:
            yield serving.Client(url), process
        finally:
            process.terminate()
            process.wait(20)


def ask(client: serving.Client, text: str = "hello") -> dict[str, Any]:
    body = serving.message(text) | {
        "system": "Count all words of this text. " * 8,
        "cache_control": {"type": "ephemeral"},
    }
    reply = client.post("/v1/messages", body)
    assert reply.status == 200, reply.raw
    return dict(reply.json)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_call_is_in_the_store_when_the_server_has_stopped(
    number: int, command: list[str], environment: dict[str, str], cachewright: Run, tmp_path: Path
) -> None:
    db = tmp_path / "calls.db"
    with served(command, environment, "--db", db) as (client, process):
        sent = [ask(client) for _ in range(5)] + [ask(client, "long " * 150_000)]
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None and process.stderr.read() == ""
    stored = orjson.loads(cachewright("audit", "--db", db, "--json").stdout)["totals"]
    assert stored["calls"] == len(sent)
    assert stored["read_tokens"] == sum(one["usage"]["cache_read_input_tokens"] for one in sent) > 0


def test_the_terminal_sends_its_ctrl_c_to_both_processes(
    command: list[str], environment: dict[str, str], cachewright: Run, tmp_path: Path
) -> None:
    db = tmp_path / "calls.db"
    with served(command, environment, "--db", db) as (client, process):
        ask(client)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    assert orjson.loads(cachewright("audit", "--db", db, "--json").stdout)["totals"]["calls"] == 1


def test_calls_are_served_when_the_record_cannot_be_written(command: list[str], environment: dict[str, str]) -> None:
    with served(command, environment, "--record", "/dev/full") as (client, process):
        for _ in range(3):
            ask(client)
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read().splitlines() == [
            "cachewright: the record ends here, No space left on device; calls are still served"
        ]


def test_calls_are_served_when_the_store_goes_away(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    db = tmp_path / "calls.db"
    with served(command, environment, "--db", db) as (client, process):
        for file in tmp_path.glob("calls.db*"):
            file.unlink()
        db.mkdir()
        for _ in range(3):
            ask(client, "more than a pipe holds " * 5_000)
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        told = process.stderr.read().splitlines()
    assert [line.partition(":")[0] for line in told] == [f"call {number} was not stored" for number in (1, 2, 3)]


def test_a_store_that_is_none_is_told_before_anything_is_served(cachewright: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("no database" * 100)
    done = cachewright("serve", "--model", "scripted", "--db", wrong)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1 and "notes.txt" in done.stderr
    both = cachewright("serve", "--model", "scripted", "--db", "a.db", "--record", "a.jsonl")
    assert both.returncode == 2 and "give one of them" in both.stderr
