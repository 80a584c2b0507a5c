"""`cachewright tui` as a user starts it: in a terminal, without one, and over stores that cannot be used."""

import contextlib
import os
import pty
import select
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Cachewright = Callable[..., subprocess.CompletedProcess[str]]
FOURTEEN = Path(__file__).parents[2] / "traces/recorded/fourteen/calls.jsonl"


def test_in_a_terminal_it_shows_the_trace_and_ends_with_q(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    outer, inner = pty.openpty()
    arguments = [*command, "tui", str(FOURTEEN)]
    environment |= {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        arguments, stdin=inner, stdout=inner, stderr=inner, env=environment, cwd=tmp_path, start_new_session=True
    )
    os.close(inner)
    try:
        assert b"fourteen" in _until(outer, b"fourteen")
        os.write(outer, b"q")
        _drain(outer, process)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    assert not (tmp_path / "data").exists(), "the user's own store was touched"


def _until(file: int, words: bytes) -> bytes:
    seen, end = b"", time.monotonic() + 60
    while words not in seen and time.monotonic() < end:
        if select.select([file], [], [], 0.1)[0]:
            seen += os.read(file, 65_536)
    return seen


def _drain(file: int, process: subprocess.Popen[bytes]) -> None:
    """A program cannot end while nobody reads what it writes."""
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        if select.select([file], [], [], 0.1)[0]:
            try:
                os.read(file, 65_536)
            except OSError:  # the other side is closed
                return


def test_without_a_terminal(cachewright: Cachewright) -> None:
    done = cachewright("tui", FOURTEEN, stdin="")
    assert done.returncode == 2
    assert done.stderr == "cachewright: tui needs a terminal; for a file or a pipe use cachewright report\n"


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"no database at all, " * 400, "is not an SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 5000, "a.db: "),
    ],
)
def test_a_store_that_cannot_be_used(cachewright: Cachewright, tmp_path: Path, content: bytes, fact: str) -> None:
    (tmp_path / "a.db").write_bytes(content)
    done = cachewright("tui", "--db", "a.db")
    assert done.returncode == 3
    assert fact in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("DROP TABLE calls; DROP TABLE _sqlite_migrations", "is another program's SQLite database; name another file"),
        (
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('cachewright', 'm0999_x', '')",
            "store version 999 is newer than this program's",
        ),
    ],
)
def test_a_store_of_another_program_or_a_newer_one(
    cachewright: Cachewright, tmp_path: Path, change: str, fact: str
) -> None:
    assert cachewright("audit", FOURTEEN, "--db", "a.db").returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as conn:
        conn.executescript(change)
    done = cachewright("tui", "--db", "a.db")
    assert done.returncode == 3
    assert fact in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_in_place_of_a_store(cachewright: Cachewright, tmp_path: Path) -> None:
    (tmp_path / "a.db").mkdir()
    done = cachewright("tui", "--db", "a.db")
    assert done.returncode == 3
    assert done.stderr == "cachewright: a.db: is a folder; name a file in it\n"


def test_a_store_cut_short(cachewright: Cachewright, tmp_path: Path) -> None:
    assert cachewright("audit", FOURTEEN, "--db", "a.db").returncode == 0
    whole = (tmp_path / "a.db").read_bytes()
    (tmp_path / "a.db").write_bytes(whole[: len(whole) // 2])
    done = cachewright("tui", "--db", "a.db")
    assert done.returncode in (2, 3)
    assert len(done.stderr.splitlines()) == 1


def test_a_locked_store(cachewright: Cachewright, tmp_path: Path) -> None:
    assert cachewright("audit", FOURTEEN, "--db", "a.db").returncode == 0
    lock = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    lock.execute("PRAGMA locking_mode = EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    lock.execute("DELETE FROM outcomes")
    done = cachewright("tui", "--db", "a.db")
    lock.close()
    assert done.returncode == 3
    assert "is locked by another program; wait until that has finished" in done.stderr


def test_a_trace_that_is_not_there(cachewright: Cachewright) -> None:
    done = cachewright("tui", "none.jsonl")
    assert done.returncode == 3
    assert "none.jsonl" in done.stderr
