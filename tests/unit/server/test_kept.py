"""The folder of `--kv`: the books after a restart are those before it, and nothing of another world is used."""

import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")

from hypothesis import given, settings
from hypothesis import strategies as st

from localmodel.rules.types import CacheState, Entry
from localmodel.server.errors import BadSettings
from localmodel.server.kept import FORGET_AFTER_S, Kept
from localmodel.server.ledger import Ledger, Ticket
from localmodel.server.render import caller, render
from localmodel.server.ruleset import ruleset
from localmodel.server.scripted import ScriptedBackend

ROOT = Path(__file__).parents[3]
START = datetime(2026, 11, 29, tzinfo=UTC)
WORLD = {"model": "m", "weights": "w1", "rules": "r1"}
KEY = (b"c" * 16, b"s" * 16)
BACKEND = ScriptedBackend()
TTL_S = 300


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Life:
    """Processes of one server, one after the other, over one folder."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    sets: tuple[str, ...] = ("min_tokens=8",)
    said: list[str] = field(default_factory=list)

    def begin(self) -> Ledger:
        kept, rules = Kept(self.folder), ruleset("anthropic", self.sets)
        state = kept.enter({**BACKEND.identity, "rules": rules.base.digest}, f"anthropic {self.sets}", self.clock())
        self.said = kept.said
        return Ledger(rules, self.clock, state, kept)


def ask(ledger: Ledger, letters: str, key: str = "k", **rest: Any) -> Ticket:
    """A call whose last block is marked; one block a letter."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": f"{letter} " * 12} for letter in letters]
    blocks[-1]["cache_control"] = {"type": "ephemeral"}
    body = {"model": "m", "messages": [{"role": "user", "content": blocks}], **rest}
    prompt = render(body, BACKEND, caller(key)).prompt
    return ledger.begin("id", "messages", prompt, caller(key), "t")


def serve(ledger: Ledger, letters: str, key: str = "k", **rest: Any) -> Ticket:
    """The same, answered."""
    ticket = ask(ledger, letters, key, **rest)
    ledger.claimed(ticket, ticket.outcome.read_tokens)
    ledger.started(ticket)
    ledger.ended(ticket, 200, 1)
    return ticket


def entries(ledger: Ledger) -> dict[Any, Entry]:
    return dict(ledger.state.entries.items())


def test_the_next_process_reads_what_the_last_one_wrote(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = life.begin()
    wrote = serve(first, "abc")
    before = entries(first)
    first.close()
    life.clock.now += timedelta(seconds=1)
    second = life.begin()
    assert (entries(second), life.said) == (before, [])
    found = serve(second, "abcd")
    assert (found.verdict.word, found.counts.read_tokens) == ("hit", wrote.counts.write_tokens)
    assert serve(second, "abc", key="other").counts.read_tokens == 0
    second.close()


def test_what_nobody_could_read_yet_is_not_kept(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = life.begin()
    ask(first, "abc")  # its response never begins
    first.close()
    second = life.begin()
    assert entries(second) == {}
    second.close()


@pytest.mark.parametrize(
    ("away_s", "word"), [(TTL_S - 1, "hit"), (TTL_S, "miss"), (TTL_S + FORGET_AFTER_S, "cold_write")]
)
def test_lifetimes_go_on_while_no_process_runs(tmp_path: Path, away_s: int, word: str) -> None:
    life = Life(tmp_path)
    first = life.begin()
    serve(first, "abc")
    first.close()
    life.clock.now += timedelta(seconds=away_s, milliseconds=1 if word == "cold_write" else 0)
    second = life.begin()
    found = serve(second, "abc")
    assert found.verdict.word == word
    assert found.verdict.cause == {"miss": "ttl_expired"}.get(word, word)
    second.close()


def test_a_clock_that_was_set_back_gives_nobody_a_longer_life(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = life.begin()
    serve(first, "abc")
    first.close()
    life.clock.now -= timedelta(days=3)
    second = life.begin()
    life.clock.now += timedelta(seconds=TTL_S - 1)
    assert serve(second, "ab").verdict.word == "cold_write"
    assert serve(second, "abc").verdict.word == "hit"
    life.clock.now += timedelta(seconds=TTL_S + 1)
    assert serve(second, "abc").verdict.word == "miss"
    second.close()


def test_a_read_counts_as_a_use_after_the_restart_too(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = life.begin()
    serve(first, "abc")
    life.clock.now += timedelta(seconds=200)
    serve(first, "abc")
    first.close()
    life.clock.now += timedelta(seconds=200)
    second = life.begin()
    assert serve(second, "abc").verdict.word == "hit"
    second.close()


def test_other_rules_use_nothing_say_so_and_destroy_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path)
    first = life.begin()
    serve(first, "abc")
    first.close()
    life.sets = ("min_tokens=9",)
    second = life.begin()
    assert entries(second) == {}
    (line,) = life.said
    assert "rules \"anthropic ('min_tokens=8',)\", not" in line and "not used, the cache starts empty" in line
    assert serve(second, "abc").verdict.word == "cold_write"
    second.close()
    life.sets = ("min_tokens=8",)
    third = life.begin()
    assert (serve(third, "abc").verdict.word, life.said) == ("hit", [])
    third.close()


@pytest.mark.parametrize("field", WORLD)
def test_every_field_of_a_world_counts(tmp_path: Path, field: str) -> None:
    kept = Kept(tmp_path)
    kept.enter(WORLD, "anthropic", START)
    kept.write([(KEY, Entry("5m", 300, START, START, START))], [])
    kept.close()
    other = Kept(tmp_path)
    assert not other.enter({**WORLD, field: "changed"}, "anthropic", START).entries
    assert len(other.said) == 1 and field in other.said[0]
    other.close()


def play(ledger: Ledger, letters: str, key: str, begins: bool) -> Ticket:
    if begins:
        return serve(ledger, letters, key)
    ticket = ask(ledger, letters, key)
    ledger.ended(ticket, 499, 0)
    return ticket


Step = tuple[str, str, bool, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "ab", "abc", "x", "xy"]), st.sampled_from("kl"), st.booleans(), st.integers(1, 200)
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 12))
def test_random_books_are_the_same_with_a_restart_anywhere(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], at: int
) -> None:
    """Each step: blocks, key, whether the response begins, seconds until the next one."""
    life, whole = Life(tmp_path_factory.mktemp("kv")), Ledger(ruleset("anthropic", ["min_tokens=8"]), Clock())
    ledger = life.begin()
    for number, (letters, key, begins, wait) in enumerate(steps):
        if number == at:
            ledger.close()  # a killed process leaves the same: every change is written as it is made
            ledger = life.begin()
        mine, theirs = (play(one, letters, key, begins) for one in (ledger, whole))
        assert mine.counts == theirs.counts
        assert entries(ledger) == entries(whole)
        life.clock.now += timedelta(seconds=wait)
        assert isinstance(whole.clock, Clock)
        whole.clock.now = life.clock.now
    ledger.close()


# The file itself.


def test_a_folder_in_use_and_one_that_is_none_are_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    with pytest.raises(BadSettings, match="another server uses it"):
        Kept(tmp_path)
    kept.close()
    Kept(tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSettings, match="cannot be used: File exists"):
        Kept(tmp_path / "file")


@pytest.mark.parametrize("damage", ["text", "zeros", "cut", "format"])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, damage: str) -> None:
    life = Life(tmp_path)
    first = life.begin()
    serve(first, "abc")
    first.close()
    path = tmp_path / "state.db"
    raw = path.read_bytes()
    if damage == "format":
        db = sqlite3.connect(path)
        db.execute("pragma user_version = 99")
        db.close()
    else:
        path.write_bytes(
            {"text": b"hello " * 99, "zeros": raw[:4096] + bytes(4096) + raw[8192:], "cut": raw[:-4096]}[damage]
        )
    second = life.begin()
    assert entries(second) == {}
    assert len(life.said) == 1 and "set aside as state.db.damaged" in life.said[0]
    assert serve(second, "abc").verdict.word == "cold_write"
    second.close()
    assert (tmp_path / "state.db.damaged").exists()
    third = life.begin()
    assert serve(third, "abc").verdict.word == "hit"
    third.close()


def test_the_folder_is_private_and_holds_no_text(tmp_path: Path) -> None:
    life = Life(tmp_path / "kv")
    ledger = life.begin()
    serve(ledger, "abc", system=[{"type": "text", "text": "a-secret-word " * 9}])
    ledger.close()
    assert (tmp_path / "kv").stat().st_mode & 0o077 == 0
    files = list((tmp_path / "kv").iterdir())
    assert [path.stat().st_mode & 0o077 for path in files] == [0] * len(files)
    assert all(b"secret" not in path.read_bytes() for path in files)


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from localmodel.rules.types import Entry
from localmodel.server.kept import Kept
kept, now = Kept(Path(sys.argv[1])), datetime(2026, 11, 29, tzinfo=UTC)
kept.enter({"model": "m", "weights": "w1", "rules": "r1"}, "anthropic", now)
for number in range(10**6):
    key = number.to_bytes(16)
    kept.write([((key, bytes([n])), Entry("5m", 300, now, now, now)) for n in range(3)], [])
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 700])
def test_a_process_killed_while_writing_leaves_whole_calls(tmp_path: Path, lines: int) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.kill()
    kept = Kept(tmp_path)
    found = kept.enter(WORLD, "anthropic", START)
    kept.close()
    calls = {chain for chain, _ in found.entries}
    assert kept.said == [] and isinstance(found, CacheState)
    assert len(found.entries) == 3 * len(calls) and len(calls) >= lines
    assert calls == {number.to_bytes(16) for number in range(len(calls))}
