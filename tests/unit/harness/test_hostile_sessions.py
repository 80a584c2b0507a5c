"""Sessions whose files, options or scripts are not what they were: an error of one line, or on with the same bytes."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import agents
import orjson
import pytest

from harness.dialects.chat import Chat
from harness.errors import BadSetting, BudgetSpent, JournalDamaged
from harness.opening import Opened
from harness.providers.base import Feed
from traces.schema import JsonObject


def told(folder: Path, *words: str, name: str | None = None, **rest: Any) -> str:
    """A session in which that is said; its name."""
    opening, _ = agents.scripted(folder, resume=name, **rest)
    with opening as run:
        for one in words:
            run.agent.say(one)
        return run.shared.name


def refused(folder: Path, name: str, words: str, **rest: Any) -> None:
    opening, provider = agents.scripted(folder, resume=name, **rest)
    with pytest.raises(BadSetting, match=words), opening:
        pass
    assert provider.bodies == []


def test_a_resumed_session_keeps_what_stands_in_its_head(tmp_path: Path) -> None:
    name = told(tmp_path, "hello", tools="eager")
    refused(tmp_path, name, "--model other: the session was held with claude-opus-5", model="other")
    refused(tmp_path, name, "--tools fixed: the session was held with eager", tools="fixed")
    refused(tmp_path, name, "--thinking adaptive: the session was held with no thinking", thinking="adaptive")
    refused(tmp_path, name, "--codemode: the session was held without", codemode=True)
    refused(tmp_path, "../x", r"--resume \.\./x: no such session")
    made = agents.options(tmp_path, "http://127.0.0.1:1/chat/completions", resume=name)
    with (
        pytest.raises(BadSetting, match="another API"),
        agents.opened(made, provider=Silent(), dialect=Chat(), clock=agents.ManualClock()),
    ):
        pass
    opening, provider = agents.scripted(tmp_path, resume=name)
    with opening as run:
        assert run.agent.tools.mode == "eager"
        run.agent.say("on")
    assert b"search_tools" not in provider.bodies[0]


def test_codemode_is_resumed_too(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty", reason="the extra `codemode` is not installed")
    name = told(tmp_path, "hello", codemode=True)
    opening, _ = agents.scripted(tmp_path, resume=name)
    with opening as run:
        assert "run_code" in run.agent.tools.builtin


def test_tools_that_are_gone_are_told_and_stay_in_the_request(tmp_path: Path) -> None:
    opening, provider = agents.scripted(tmp_path, tools="eager")
    with opening as run:
        run.agent.add_tools([agents.tool("mcp__gone__x")])
        run.agent.say("hello")
        digest, name = run.agent.session.head.digest, run.shared.name
    heard = agents.Heard()
    made = agents.options(tmp_path, "http://127.0.0.1:1", resume=name)
    with agents.opened(made, heard, provider=provider, dialect=run.shared.dialect, clock=agents.ManualClock()) as again:
        assert again.agent.session.head.digest == digest
    assert heard.named("remark") == [{"text": "the session offers tools that are not there now: mcp__gone__x"}]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    opening, _ = agents.scripted(tmp_path)
    with opening as run:
        run.agent.say("hello")
        place = run.shared.folder / "main.jsonl"
        with place.open("ab") as file:
            file.write(b'{"type":"tu')  # a line that is being written
        size = place.stat().st_size
        refused(tmp_path, run.shared.name, "another process holds this session; wait for it, or --fork")
        forked, _ = agents.scripted(tmp_path, fork=run.shared.name)
        with forked as other:
            assert other.agent.session.chain == run.agent.session.chain
        assert place.stat().st_size == size


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """No file may grow beyond `most` bytes, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("more", range(0, 4_000, 450))
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, more: int) -> None:
    opening, _ = agents.scripted(tmp_path)
    with opening as run:
        run.agent.say("hello")
        place, name = run.shared.folder, run.shared.name
        largest = max((place / file).stat().st_size for file in ("main.jsonl", "ledger.jsonl"))
        with small_disk(largest + more), pytest.raises(JournalDamaged, match="make room and --resume"):
            for number in range(100):
                run.agent.say(f"turn {number}")
        chain, rows = run.agent.session.chain, len(run.ledger.rows)
    opening, provider = agents.scripted(tmp_path, resume=name)
    with opening as run:
        assert len(run.ledger.rows) in (rows, rows + 1)
        run.agent.say("on")
        ids = [row.call.id for row in run.ledger.rows]
    stored = [orjson.loads(line) for line in (place / "ledger.jsonl").read_bytes().splitlines()]
    assert [one["id"] for one in stored] == ids and len(set(ids)) == len(ids)
    assert chain and provider.bodies


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file in the way")
    with pytest.raises(BadSetting, match=r"cannot be written .*; name another --db"):
        told(tmp_path, "hello")


@pytest.mark.parametrize("damage", ["a row", "all rows", "no file"])
def test_rows_that_cannot_be_read_are_unknown_not_gone(tmp_path: Path, damage: str) -> None:
    name = told(tmp_path, "hello")
    path = tmp_path / "sessions" / name / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    if damage == "no file":
        path.unlink()
    else:
        path.write_bytes(b"".join([b"{nonsense\n", lines[1] if damage == "a row" else b"[]\n"]))
    opening, _ = agents.scripted(tmp_path, resume=name)
    with opening as run:
        known = [row.call.usage.input_tokens is not None for row in run.ledger.rows]
        assert sorted(known) == ([False, True] if damage == "a row" else [False, False])
        run.agent.say("on")


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[]", b'"x"', b"{}", b'{"type":"turn"}', b'{"type":"turn","role":"user","items":[1],"chain":""}'],
)
def test_a_damaged_journal_is_named_with_its_line(tmp_path: Path, line: bytes) -> None:
    name = told(tmp_path, "hello")
    path = tmp_path / "sessions" / name / "main.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:], b""]))
    with pytest.raises(JournalDamaged, match=r"main\.jsonl:4: "):
        told(tmp_path, "on", name=name)


class Silent:
    """A compatible server that reports no usage."""

    name, host, key_fp = "openai", "stub", "k"

    def __init__(self) -> None:
        self.sent = 0

    def stream(self, body: bytes, feed: Feed) -> None:
        self.sent += 1
        feed({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]})

    def whole(self, body: bytes) -> JsonObject:
        raise AssertionError


def test_a_budget_is_not_kept_by_counting_unknown_as_nothing(tmp_path: Path) -> None:
    made = agents.options(tmp_path, "http://127.0.0.1:1/chat/completions", model="gpt-6", budget=Decimal(1))
    provider = Silent()
    with agents.opened(made, provider=provider, dialect=Chat(), clock=agents.ManualClock()) as run:
        with pytest.raises(BudgetSpent, match="3 answers came without usage, so --budget 1 cannot be kept"):
            for _ in range(10):
                run.agent.say("hello")
        assert provider.sent == 3


def test_a_budget_of_nothing_sends_nothing(tmp_path: Path) -> None:
    opening, provider = agents.scripted(tmp_path, budget=Decimal(0))
    with opening as run, pytest.raises(BudgetSpent, match="of 0 USD"):
        run.agent.say("hello")
    assert provider.bodies == []


def interrupted(run: Opened, after: float, words: str) -> float:
    """Ctrl-C comes `after` seconds; how long it took to be heard."""
    main = threading.main_thread().ident
    assert main is not None
    start = time.monotonic()
    threading.Timer(after, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.agent.say(words)
    return time.monotonic() - start - after


@pytest.mark.parametrize("how", ["shell", "script", "shell in a script"])
def test_ctrl_c_ends_what_runs_and_nothing_of_it_stays(tmp_path: Path, how: str) -> None:
    command = {"command": "sleep 98.7654; touch late"}
    if how != "shell":
        pytest.importorskip("pydantic_monty", reason="the extra `codemode` is not installed")
    code = "while True:\n    pass" if how == "script" else f'call_tool("shell", command="{command["command"]}")'
    call: JsonObject = {"type": "tool_use", "id": "t", "name": "shell", "input": command}
    if how != "shell":
        call = {**call, "name": "run_code", "input": {"code": code, "timeout_s": 100}}
    calls = [call]

    def reply(body: JsonObject) -> list[JsonObject]:
        return [calls.pop()] if calls else [{"type": "text", "text": "Done."}]

    opening, _ = agents.scripted(tmp_path, reply, codemode=how != "shell")
    with opening as run:
        assert interrupted(run, 1.5, "go") < 5
        assert [turn.role for turn in run.agent.session.turns] == ["user", "answer", "results"]
        assert run.agent.say("and now?") == "Done."
    assert not any(b"98.7654" in one for one in running())


def running() -> list[bytes]:
    """Command lines of all processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found
