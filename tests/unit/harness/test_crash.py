"""Killed at any point, a session goes on with the same bytes and no attempt is missing on its ledger."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import agents
import orjson
import pytest

from harness.opening import Opened
from harness.scripted import Scripted
from traces.canonical import dump

ORACLE = Path(__file__).parents[2] / "oracle" / "killable.py"
ROOT = Path(__file__).parents[3]
Step = tuple[str, bytes]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Step]]:
    """A session's folder and all that was appended to its files, in order."""
    folder = tmp_path_factory.mktemp("whole")
    opening, _ = agents.scripted(folder)
    with opening as run:
        run.agent.say("first " * 300)
        run.agent.say("second")
        place = run.shared.folder
    return place, in_order(place)


def in_order(place: Path) -> list[Step]:
    """A ledger row is written after its attempt's line and before the journal's next one."""
    rows = (place / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    by_id = {orjson.loads(row)["id"]: row for row in rows}
    found: list[Step] = []
    for line in (place / "main.jsonl").read_bytes().splitlines(keepends=True):
        found.append(("main.jsonl", line))
        entry = orjson.loads(line)
        if entry["type"] == "attempt":
            found.append(("ledger.jsonl", by_id[entry["id"]]))
    return found


def test_every_cut_resumes(steps: tuple[Path, list[Step]], tmp_path: Path) -> None:
    place, appended = steps
    assert len(appended) > 15
    for count in range(1, len(appended) + 1):
        for torn in (0, 1, 40):
            if torn and count == len(appended):
                continue
            folder = tmp_path / f"{count}-{torn}"
            kept = list(appended[:count])
            if torn:
                name, line = appended[count]
                kept.append((name, line[: min(torn, len(line) - 1)]))
            rebuild(folder, place.name, kept)
            check(folder, place.name, appended[:count])


def rebuild(folder: Path, name: str, kept: list[Step]) -> None:
    place = folder / "sessions" / name
    place.mkdir(parents=True)
    for file, line in kept:
        with (place / file).open("ab") as stream:
            stream.write(line)


def check(folder: Path, name: str, whole: list[Step]) -> None:
    attempts = [row["id"] for row in rows_of(whole, "main.jsonl") if row["type"] == "attempt"]
    turns = [row["items"] for row in rows_of(whole, "main.jsonl") if row["type"] == "turn"]
    opening, provider = agents.scripted(folder, resume=name)
    with opening as run:
        assert [row.call.id for row in run.ledger.rows] == attempts
        run.agent.say("and on")
        assert_goes_on(run, provider, turns)
        ids = [row.call.id for row in run.ledger.rows]
    assert ids[: len(attempts)] == attempts and len(set(ids)) == len(ids)
    stored = (folder / "sessions" / name / "ledger.jsonl").read_bytes().splitlines()
    assert [orjson.loads(row)["id"] for row in stored] == ids


def rows_of(steps: list[Step], file: str) -> list[Any]:
    return [orjson.loads(line) for name, line in steps if name == file]


def assert_goes_on(run: Opened, provider: Scripted, turns: list[Any]) -> None:
    """The first request after the crash begins with every turn that was stored, and no call is left open."""
    body = orjson.loads(provider.bodies[0].replace(b',"cache_control":{"type":"ephemeral"}', b""))
    sent = [dump([item]) for item in body["messages"]]
    assert sent[: len(turns)] == [dump(items) for items in turns]
    asked = [block["id"] for one in body["messages"] for block in one["content"] if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for one in body["messages"] for block in one["content"] if "tool_use_id" in block]
    assert asked == answered


def test_a_paid_answer_is_not_bought_twice(steps: tuple[Path, list[Step]], tmp_path: Path) -> None:
    place, appended = steps
    until = next(number for number, (file, _) in enumerate(appended) if file == "ledger.jsonl") + 1
    rebuild(tmp_path, place.name, appended[:until])
    opening, provider = agents.scripted(tmp_path, resume=place.name)
    with opening as run:
        assert [turn.role for turn in run.agent.session.turns] == ["user", "answer", "results"]
        assert provider.bodies == []


@pytest.mark.parametrize("tick", [6, 9, 13, 18, 24, 31])
def test_a_process_killed_for_real(tmp_path: Path, tick: int) -> None:
    done = subprocess.run(
        [sys.executable, str(ORACLE), str(tmp_path), str(tick)],
        env={"PYTHONPATH": f"{ROOT}:{ORACLE.parent}:{Path(__file__).parent}", "PATH": "/usr/bin:/bin"},
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    (place,) = (tmp_path / "sessions").iterdir()
    lines = (place / "main.jsonl").read_bytes().splitlines()
    whole = [("main.jsonl", line) for line in lines]
    check(tmp_path, place.name, whole)
    shutil.rmtree(tmp_path / "sessions")


def test_sub_agents_that_died_leave_their_attempts(steps: tuple[Path, list[Step]], tmp_path: Path) -> None:
    place, appended = steps
    rebuild(tmp_path, place.name, appended)
    row = orjson.dumps(
        {"type": "attempt", "id": "child", "kind": "subagent", "agent": "main/1", "attempt": 1, "marks": {},
         "at": "2026-11-20T10:00:00+00:00", "sha256": "0"}
    )  # fmt: skip
    head = appended[0][1]
    folder = tmp_path / "sessions" / place.name
    (folder / "main.1.jsonl").write_bytes(head + row + b"\n")
    (folder / "main.2.jsonl").write_bytes(b'{"type":"he')
    opening, _ = agents.scripted(tmp_path, resume=place.name)
    with opening as run:
        last = run.ledger.rows[-1].call
        assert (last.id, last.agent, last.kind, last.usage.input_tokens) == ("child", "main/1", "subagent", None)
