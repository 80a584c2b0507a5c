"""`cachewright run` and `compare` as a user starts them."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")
pytest.importorskip("anthropic", reason="the SDK is not installed")

import agents
import serving

from harness.keepalive import Warmer
from localmodel.server.settings import Limits
from traces import io

Run = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "claude-opus-5"


@pytest.fixture(scope="module")
def server() -> Iterator[serving.Running]:
    with serving.running() as running:
        yield running


def test_a_task_its_ledger_and_its_resumption(cachewright: Run, server: serving.Running, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief. " * 300)
    (tmp_path / "a.txt").write_text("forty-two\n")
    ask = 'call read with {"path": "a.txt"}'
    common = ("--target", server.url, "--model", MODEL, "--db", tmp_path / "own.db")
    done = cachewright("run", "-p", ask, *common)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Calling read.\nThe tool has answered, and that is all.\n"
    assert "· read" in done.stderr and "no miss" in done.stderr and "$0." in done.stderr
    name = done.stderr.split("session ")[1].split()[0]
    again = cachewright("run", "-p", "and now?", "--json", "--resume", name, *common)
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert [one["event"] for one in events] == ["session", "call", "answer", "cache", "done"]
    call = events[1]
    assert call["predicted_read_tokens"] == call["read_tokens"] > 1000
    assert events[-1]["cost"]["total"]["attempts"] == 3
    audit = cachewright("audit", "--db", tmp_path / "own.db", "--json")
    report = json.loads(audit.stdout)
    assert report["totals"]["calls"] == 3
    assert [one["verdict"] for one in report["calls"]] == ["cold_write", "hit", "hit"]
    assert all(one["agrees"] for one in report["calls"])


def test_nobody_to_ask_means_no_change(cachewright: Run, server: serving.Running, tmp_path: Path) -> None:
    ask = 'call write with {"path": "b.txt", "content": "x"}'
    done = cachewright("run", "-p", ask, "--target", server.url, "--model", MODEL, "--db", tmp_path / "own.db")
    assert done.returncode == 0
    assert "needs a person's consent and nobody can be asked here" in done.stderr
    assert not (tmp_path / "b.txt").exists()


def test_a_compaction_is_paid_apart_and_is_no_miss(cachewright: Run, server: serving.Running, tmp_path: Path) -> None:
    typed = "".join(f"turn {number}: {'a few more words ' * 300}\n" for number in range(6)) + "/compact\nbye\n/cost\n"
    done = cachewright("run", "--target", server.url, "--model", MODEL, "--db", tmp_path / "own.db", stdin=typed)
    assert done.returncode == 0, done.stderr
    footers = [line for line in done.stderr.splitlines() if line.startswith("cache ")]
    assert len(footers) == 7 and all("no miss" in line for line in footers)
    costs = r"compaction \(prefix\) of [\d,]+ tokens: summary \$0\.\d+, first \$0\.\d+, later not yet; pays back after"
    assert re.search(costs, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--target", "nowhere", "--model", "m"], 2, "--target 'nowhere': want anthropic, openai, deepseek or an"),
        (["--model", "m"], 2, "ANTHROPIC_API_KEY is not set"),
        (["--target", "http://127.0.0.1:9", "--model", "m", "--resume", "abc"], 2, "--resume abc: no such session"),
        (["--target", "http://127.0.0.1:9", "--model", "m", "--budget", "1"], 2, "m has no price"),
        (["--target", "http://127.0.0.1:9", "--model", "m", "--budget", "x"], 2, "'x' is no amount of dollars above 0"),
        (["--target", "http://127.0.0.1:9/responses", "--model", "m", "--tools", "native"], 2, "use --tools fixed"),
    ],
)
def test_mistakes_are_one_line(
    cachewright: Run, environment: dict[str, str], arguments: list[str], code: int, words: str
) -> None:
    environment.pop("ANTHROPIC_API_KEY", None)
    done = cachewright("run", "-p", "hello", *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def test_a_conversation_with_commands(cachewright: Run, server: serving.Running, tmp_path: Path) -> None:
    typed = "hello\n/cost\n/what\n/compact\nbye\n/exit\nnever\n"
    done = cachewright("run", "--target", server.url, "--model", MODEL, "--db", tmp_path / "own.db", stdin=typed)
    assert done.returncode == 0, done.stderr
    assert "no command /what" in done.stderr
    assert "purpose" in done.stderr and "total" in done.stderr
    assert "never" not in done.stdout


def test_killed_for_real_and_resumed(
    command: list[str], environment: dict[str, str], cachewright: Run, tmp_path: Path
) -> None:
    script = serving.script(tmp_path, {"match": "slow", "delay_ms": 20_000, "text": "late"})
    with serving.running(script=str(script)) as server:
        common = ["--target", server.url, "--model", MODEL, "--db", str(tmp_path / "own.db")]
        process = subprocess.Popen(
            [*command, "run", "-p", "slow please", *common], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 40
        while not server.client("local").calls() and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (place,) = (tmp_path / "sessions").iterdir()
        done = cachewright("run", "-p", "go on", "--resume", place.name, *common)
        assert done.returncode == 0, done.stderr
    rows = list(io.read(place / "ledger.jsonl"))
    assert [row.usage.input_tokens is None for row in rows] == [True, False]
    first, second = rows[0].request, rows[1].request
    assert first is not None and second is not None
    assert plain(second)[: len(plain(first))] == plain(first)
    counted = json.loads(cachewright("audit", "--db", tmp_path / "own.db", "--json").stdout)["totals"]
    assert (counted["calls"], counted["unknown_calls"]) == (2, 1)


def plain(body: dict[str, Any]) -> list[Any]:
    return [[block["text"] for block in one["content"]] for one in body["messages"]]


@pytest.mark.slow
def test_keep_alive_for_real(tmp_path: Path) -> None:
    """Entries live twenty seconds here; a ping after ten keeps one readable at twenty-four."""
    with serving.running(limits=Limits(), sets=["ttl.5m=20"]) as server:
        rules = server.service.ledger.rules
        made = agents.options(tmp_path, server.url, keepalive="running")
        with agents.opened(made, rules=rules, base=lambda *_: Decimal(1)) as run:
            run.agent.say("hello " * 500)
            assert isinstance(run.agent.warmer, Warmer)
            time.sleep(24)
            run.agent.say("still there?")
            calls = [
                (row.call.kind, row.call.usage.read_tokens, row.call.usage.write_tokens) for row in run.ledger.rows
            ]
            warmer = run.agent.warmer
    first = run.ledger.rows[0].call.usage.write_tokens
    assert calls[1:-1] == [("keepalive", first, 0)] * 2
    assert calls[-1][1] == first
    assert (warmer.pings, warmer.lost, warmer.hits_bought) == (2, 0, 1)


@pytest.mark.slow
def test_compare_shows_what_the_what_if_predicts(command: list[str], environment: dict[str, str]) -> None:
    arms = ("fixed", "eager", "fixed+fresh-summary", "fixed+simultaneous")
    asked = [*command, "compare", "bundled", *(word for arm in arms for word in ("--arm", arm)), "--json"]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["arm"]: row for row in json.loads(done.stdout)["arms"]}
    assert {row["passed"] for row in rows.values()} == {3}
    assert rows["fixed"]["misses"] == {}
    assert rows["eager"]["misses"] == {"tools_changed": 1}
    for arm, task in (("eager", "late-tool"), ("fixed+fresh-summary", "compaction"), ("fixed+simultaneous", "fan-out")):
        found = rows[arm]["against"]["by_task"][task]
        assert Decimal(found["measured_equivalents"]) > 1000, (arm, found)
        assert found["difference"] < 0.02, (arm, found)
        assert rows[arm]["against"]["difference"] < 0.02, rows[arm]["against"]


def test_compare_refuses_what_it_does_not_know(cachewright: Run, tmp_path: Path) -> None:
    done = cachewright("compare", "bundled", "--arm", "magic")
    assert done.returncode == 2
    assert "no strategy 'magic'; there are fixed, native, eager" in done.stderr
    (tmp_path / "t.toml").write_text('model = "m"\n[[task]]\nname = "x"\n')
    done = cachewright("compare", tmp_path / "t.toml", "--arm", "fixed")
    assert done.returncode == 2
    assert "t.toml: task.0.steps: Field required" in done.stderr
