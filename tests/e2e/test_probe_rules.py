"""Rule probes against the local server: they confirm the rules it was started with and find those it was not."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="the SDK is not installed")
pytest.importorskip("starlette", reason="the server needs the extra `local`")

import inside
import serving
from habits import Habits, MessagesCache
from hosted import Fault, hosted
from workbench import lab_at

from probes.api import fanout, readable, suite
from probes.api.claim import Claim, fits
from probes.errors import Unreachable

Run = Callable[..., subprocess.CompletedProcess[str]]
Json = dict[str, Any]

RULES = """schema = 1
inherits = "anthropic"
[sources]
test = "this test"
"""
VALUE = '[[{rule}]]\nvalue = {value}\nstatus = "assumed"\nchecked = 2026-01-01\nsource = "test"\n'
# A second request may be half a second on its way where other tests keep both processors busy.
SLOW = {"match": "Count from", "text": "one two three four five " * 16, "piece_ms": 100, "delay_ms": 1000}
TTL = 6
"""Seconds: longer than anything is on its way on a busy machine, shorter than the long answer."""


def rule_file(folder: Path, **values: object) -> Path:
    path = folder / "mine.toml"
    path.write_text(RULES + "".join(VALUE.format(rule=rule, value=value) for rule, value in values.items()))
    return path


@pytest.fixture
def cachewright(tmp_path: Path, environment: dict[str, str]) -> Run:
    return partial(inside.cachewright, tmp_path, environment)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return serving.script(tmp_path, SLOW, {"match": "Name the", "text": "yes", "delay_ms": 1000}, {"text": "OK"})


def claims(output: str) -> list[Json]:
    return [row for row in map(json.loads, output.splitlines()) if "claim" in row]


@pytest.mark.slow
def test_the_rules_of_the_server_are_confirmed(cachewright: Run, script: Path, tmp_path: Path) -> None:
    rules = rule_file(tmp_path, ttl_seconds_5m=TTL, min_tokens=128)
    with serving.running(rules=f"{rules}", script=script) as server:
        arguments = ("--target", server.url, "--model", "claude-opus-4-8", "--rules", "mine.toml", "--json")
        done = cachewright("probe", "rules", *arguments, "--out", "run.jsonl")
    found = claims(done.stdout)
    assert {row["probe"]: row["why"] for row in found if row["finding"] != "confirmed"} == {}
    assert done.returncode == 0
    probed = {row["probe"].split("_")[0] for row in found}
    usual = {probe.name for probe in suite.PROBES.values() if probe.usual and "messages" in probe.apis}
    assert probed == usual
    assert len([row for row in found if row["probe"].startswith("invalidation")]) == 11
    for row in found:
        assert row["requests"] and row["claim"] and row["prediction"] and row["observation"]
    compared = cachewright("probe", "diff", "run.jsonl", "--rules", "mine.toml", "--json")
    assert compared.returncode == 0
    assert {row["word"] for row in json.loads(compared.stdout)} == {"agrees", "no_rule", "open"}


@pytest.mark.slow
def test_other_rules_are_refuted_and_their_values_found(cachewright: Run, script: Path, tmp_path: Path) -> None:
    sets = ["lookback.positions=5", f"ttl.5m={TTL}", "min_tokens=64", 'invalidates_tool_choice="system"']
    probes = ("minimum", "lookback", "invalidation", "lifetime")
    with serving.running(sets=[*sets, "max_breakpoints=3"], script=script) as server:
        arguments = [*(f"--only={name}" for name in (*probes, "breakpoints")), "--out", "run.jsonl"]
        done = cachewright("probe", "rules", "--target", server.url, "--model", "claude-opus-4-8", "--json", *arguments)
    assert done.returncode == 1, done.stderr
    refuted = {row["rule"]: row["value"] for row in claims(done.stdout) if row["finding"] == "refuted"}
    lifetime = refuted.pop("ttl_seconds_5m")
    assert refuted == {
        "min_tokens": 64, "lookback_positions": 5, "max_breakpoints": 3, "invalidates_tool_choice": "system",
    }  # fmt: skip
    assert fits(lifetime, TTL) and lifetime["at_most"] < 2 * TTL
    compared = cachewright("probe", "diff", "run.jsonl")
    assert compared.returncode == 1
    for line in ("min_tokens: 1024 (documented", "but measured 64", "[[lookback_positions]]", "value = 5"):
        assert line in compared.stdout


def test_the_fan_out_truth_table(cachewright: Run, script: Path) -> None:
    with serving.running(script=script) as server:
        done = cachewright("probe", "fanout", "--target", server.url, "--model", "claude-opus-4-8", "--json")
    assert done.returncode == 0, done.stderr
    *requests, found = map(json.loads, done.stdout.splitlines())
    assert len(requests) == 9 and found["verdict"] == "confirmed"
    table = {(row["marker"], row["timing"]): row["b_hit"] for row in found["table"]}
    assert table == {
        ("absent", "simultaneous"): False, ("absent", "wait"): False,
        ("present", "simultaneous"): False, ("present", "wait"): True,
    }  # fmt: skip
    assert all(row["predicted_hit"] == row["b_hit"] and row["answer"] for row in found["table"])
    assert all(row["a_read_tokens"] == 0 for row in found["table"])


SLOW_FIRST, FAST_SECOND = Fault(first_s=0.9, stall_s=0.6), Fault(first_s=0.1)


@pytest.mark.parametrize(
    ("habit", "verdict", "hits"),
    [
        ("sent", "refuted", [False, False, True, True]),
        ("begun", "confirmed", [False, False, False, True]),
        ("ended", "refuted", [False, False, False, False]),
    ],
)
def test_fan_out_tells_other_caches_apart(habit: Any, verdict: str, hits: list[bool]) -> None:
    with hosted(MessagesCache(Habits(readable=habit))) as server, lab_at(server.url) as lab:
        # Whoever comes first is slow, so that the second is there while the first is being answered.
        server.faults = {number: (SLOW_FIRST, FAST_SECOND)[number % 2] for number in range(2, 20)}
        found = fanout.run(lab)
    assert [row["reused"] for row in found["table"]] == hits
    assert found["verdict"] == verdict


class Losing(MessagesCache):
    """Answers one request as another machine would, which has seen nothing."""

    count = 0

    def ask(self, key: str, body: Json, now: float) -> Any:
        self.count += 1
        return super().ask("elsewhere" if self.count == 9 else key, body, now)


def test_one_lost_entry_does_not_refute_fan_out() -> None:
    with hosted(Losing(Habits())) as server, lab_at(server.url) as lab:
        found = fanout.run(lab)
    assert found["verdict"] == "inconclusive"
    assert "two pairs differ" in found["table"][3]["answer"] and len(found["table"][3]["requests"]) == 4


def test_without_a_delay_simultaneous_cells_are_inconclusive_not_refuted() -> None:
    with hosted(MessagesCache(Habits())) as server, lab_at(server.url) as lab:
        found = fanout.run(lab)
    assert {row["finding"] for row in found["table"] if row["timing"] == "simultaneous"} <= {
        "inconclusive",
        "confirmed",
    }
    assert found["verdict"] != "refuted"


@pytest.mark.parametrize(
    ("habit", "value"),
    [("sent", "request_start"), ("begun", "first_response_begins"), ("ended", "response_end")],
)
def test_readable_after(habit: Any, value: str) -> None:
    with hosted(MessagesCache(Habits(readable=habit))) as server, lab_at(server.url) as lab:
        server.faults = {number: (SLOW_FIRST, FAST_SECOND)[number % 2] for number in range(2, 6)}
        (claim,) = readable.run(lab)
    assert (claim.value, claim.finding) == (value, "confirmed" if habit == "begun" else "refuted")


def test_instant_answers_refute_no_right_rule() -> None:
    with hosted(MessagesCache(Habits())) as server, lab_at(server.url) as lab:
        (claim,) = readable.run(lab)
    assert claim.finding != "refuted"


@pytest.fixture
def faulty() -> Iterator[Any]:
    with hosted(MessagesCache(Habits())) as server, lab_at(server.url) as lab:
        yield server, lab


def ran(lab: Any, *names: str) -> tuple[list[Claim], Exception | None]:
    found: list[Claim] = []
    try:
        for claim in suite.run(lab, [suite.PROBES[name] for name in names]):
            found.append(claim)  # noqa: PERF402
    except Exception as error:
        return found, error
    return found, None


def test_a_torn_stream_ends_one_probe_and_not_the_next(faulty: Any) -> None:
    server, lab = faulty
    server.faults[3] = Fault(cut=2)
    found, error = ran(lab, "minimum", "breakpoints")
    assert error is None
    assert [claim.finding for claim in found] == ["inconclusive", "confirmed"]
    assert "broke off" in found[0].why and found[0].requests == (1, 2, 3)


@pytest.mark.parametrize("status", [401, 404, 429, 529])
def test_what_no_request_gets_past_ends_all_probes(faulty: Any, status: int) -> None:
    server, lab = faulty
    server.faults[3] = Fault(status=status, message="no")
    found, error = ran(lab, "minimum", "lookback", "breakpoints")
    assert isinstance(error, Unreachable)
    assert [claim.finding for claim in found] == ["inconclusive"] * 3
    assert len(server.bodies) == 3


def test_missing_usage_refutes_nothing(faulty: Any) -> None:
    server, lab = faulty
    server.faults = {number: Fault(no_usage=True) for number in range(3, 60)}
    names = ("lookback", "invalidation", "readable", "isolation", "prewarm")
    found, _ = ran(lab, *names)
    assert {claim.finding for claim in found} <= {"inconclusive", "confirmed"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--only", "minimun"], "no such probe; known: minimum, lookback"),
        (["--only", "units"], "it speaks chat"),
        (["--rules", "none.toml"], "none.toml"),
        (["--max-wait", "-1"], "--max-wait"),
        (["--max-wait", "nan"], "'nan' is no number of seconds"),
        (["--model", ""], "no name of a model"),
        (["--model", "m\x1b[31m"], "no name of a model"),
    ],
)
def test_wrong_usage(cachewright: Run, arguments: list[str], part: str) -> None:
    done = cachewright("probe", "rules", "--target", "http://127.0.0.1:9", "--model", "m", *arguments)
    assert done.returncode in (2, 3) and part in done.stderr and done.stdout == ""


def test_rule_probes_of_a_paid_api_need_a_budget(cachewright: Run) -> None:
    done = cachewright("probe", "rules", "--target", "anthropic", "--model", "claude-opus-4-8", "--yes")
    assert done.returncode == 2 and "give --budget USD" in done.stderr


def test_ctrl_c_in_a_pair_keeps_both(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    with hosted(MessagesCache(Habits())) as server:
        server.faults = {2: Fault(stall_s=30), 3: Fault(stall_s=30)}
        arguments = [
            *command,
            "probe",
            "fanout",
            "--target",
            server.url,
            "--model",
            "m",
            "--json",
            "--out",
            "run.jsonl",
        ]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
        ) as process:
            end = time.monotonic() + 50
            while len(server.bodies) < 3:
                assert time.monotonic() < end
                time.sleep(0.05)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            said, words = process.communicate(timeout=30)
    assert process.returncode == 130 and b"Traceback" not in words and b"Exception" not in words
    *requests, last = map(json.loads, said.splitlines())
    assert [row["complete"] for row in requests] == [True, False, False]
    assert all(row["error"] == "stopped by the user" and row["usage"] for row in requests[1:])
    assert last["verdict"] == "incomplete"
    assert (tmp_path / "run.jsonl").read_bytes() == said
