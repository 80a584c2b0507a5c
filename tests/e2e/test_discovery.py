"""`cachewright audit` without a path: what it looks for, what it finds, and what the filters leave of it."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Done = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A home without any tool's sessions."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    home = tmp_path / "home"
    home.mkdir()
    environment["HOME"] = f"{home}"
    return home


def session(folder: Path, name: str, model: str, day: int, cwd: str, calls: int = 2) -> None:
    """A transcript of Claude Code with a call a minute."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, total = [], 0
    for number in range(calls):
        bill = {"input_tokens": 2, "cache_read_input_tokens": total, "cache_creation_input_tokens": 5000}
        message = {"id": f"msg_{name}{number}", "model": model, "content": [], "usage": bill | {"output_tokens": 9}}
        time = f"2026-05-{day:02}T10:{number:02}:00.000Z"
        row = {"type": "assistant", "uuid": f"{name}{number}", "sessionId": name, "cwd": cwd, "timestamp": time}
        rows.append(row | {"requestId": f"r{name}{number}", "message": message})
        total += 5000
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_nothing_found_says_what_was_looked_for_and_is_no_failure(cachewright: Done, home: Path) -> None:
    done = cachewright("audit")
    assert done.returncode == 0
    text = done.stdout
    for place in (".claude/projects", ".codex/sessions", ".pi/agent/sessions", ".gemini/tmp", ".copilot/session-state"):
        assert f"{home / place}" in text
    assert "opencode" in text


def test_sessions_are_found_where_the_environment_says(
    cachewright: Done, home: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    moved = tmp_path / "elsewhere"
    environment["CLAUDE_CONFIG_DIR"] = f"{moved}"
    session(moved / "projects" / "-p", "one", "claude-opus-4-5-20251101", 3, "/home/dev/p")
    session(home / ".claude" / "projects" / "-q", "two", "claude-opus-4-5-20251101", 3, "/home/dev/q")
    (moved / "projects" / "notes.jsonl").write_text('{"some":"thing"}\n')
    done = cachewright("audit", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert {call["trace"] for call in report["calls"]} == {"one"}
    assert "CLAUDE_CONFIG_DIR" in done.stderr


def test_filters_choose_calls_and_keep_their_causes(cachewright: Done, home: Path) -> None:
    folder = home / ".claude" / "projects" / "-p"
    session(folder, "one", "claude-opus-4-5-20251101", 3, "/home/dev/p")
    session(folder, "two", "claude-sonnet-4-5-20250929", 5, "/home/dev/q", calls=3)

    def seen(*options: str) -> list[str]:
        done = cachewright("audit", "--json", *options)
        return [call["id"] for call in json.loads(done.stdout)["calls"]]

    assert len(seen()) == 5
    assert seen("--model", "Sonnet") == ["msg_two0", "msg_two1", "msg_two2"]
    assert seen("--project", "dev/p") == ["msg_one0", "msg_one1"]
    assert seen("--since", "2026-05-05T10:01Z", "--until", "2026-05-05T10:02Z") == ["msg_two1"]
    # A moment without a zone is one of the zone that days are counted in, wherever that option stands.
    assert seen("--since", "2026-05-05T12:01", "--until", "2026-05-05T12:02", "--tz", "Europe/Madrid") == ["msg_two1"]
    assert seen("--tz", "Europe/Madrid", "--since", "2026-05-05T12:02") == ["msg_two2"]


def test_an_unreadable_session_does_not_hide_the_others(cachewright: Done, home: Path) -> None:
    folder = home / ".claude" / "projects" / "-p"
    session(folder, "one", "claude-opus-4-5-20251101", 3, "/home/dev/p")
    (folder / "two.jsonl").write_bytes((folder / "one.jsonl").read_bytes()[:-40].replace(b"msg_one", b"msg_two"))
    done = cachewright("audit", "--json")
    assert len(json.loads(done.stdout)["calls"]) == 3
    assert "may still be written" in done.stderr
    assert os.fspath(folder / "two.jsonl") in done.stderr


def test_a_second_run_reads_only_what_changed_and_says_the_same(
    cachewright: Done, home: Path, environment: dict[str, str]
) -> None:
    folder = home / ".claude" / "projects" / "-p"
    for number in range(6):
        session(folder, f"s{number}", "claude-opus-4-5-20251101", 3 + number, "/home/dev/p", calls=9)
    first, bare = cachewright("audit"), cachewright("audit", "--no-store")
    assert "54 calls" in first.stdout
    second = cachewright("audit")
    assert first.stdout == second.stdout == bare.stdout
    with (folder / "s5.jsonl").open("ab") as file:
        file.write((folder / "s5.jsonl").read_bytes().splitlines()[-1].replace(b"s58", b"s5x") + b"\n")
    assert "55 calls" in cachewright("audit").stdout
    assert "9 calls" in cachewright("audit", "--since", "2026-05-04", "--until", "2026-05-05").stdout
    for options in ((), ("--what-if", "none"), ("--by", "day"), ("--by", "model", "--json")):
        whole = cachewright("audit", f"{folder}", "--no-store", *options).stdout
        assert whole.splitlines()[1:] == cachewright("audit", *options).stdout.splitlines()[1:]
    one, other = (json.loads(cachewright("audit", *path, "--json").stdout) for path in ((), (f"{folder}",)))
    assert (one["totals"], one["calls"], one["what_if"]) == (other["totals"], other["calls"], other["what_if"])
