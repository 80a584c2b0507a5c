"""The store: one file for many imports, writers and versions."""

import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from auditor import migrations
from auditor.store import Counts, OutcomeRow, Store, StoreError, call_key, default_path
from traces.schema import Call, JsonObject, Usage

START = datetime(2026, 8, 1, 10, tzinfo=UTC)
MARK = {"type": "ephemeral"}
ROOT = Path(__file__).parents[3]

VERSION_1 = """
CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT);
CREATE UNIQUE INDEX idx__sqlite_migrations_migration_set_name ON _sqlite_migrations (migration_set, name);
INSERT INTO _sqlite_migrations VALUES (1, 'cachewright', 'm0001_calls', '2026-08-01 10:00:00+00:00');
CREATE TABLE blocks (digest BLOB PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE calls (
    number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE,
    id TEXT NOT NULL, trace TEXT NOT NULL, provider TEXT NOT NULL, started_at TEXT, seq INTEGER NOT NULL,
    agent TEXT NOT NULL, parent TEXT, kind TEXT NOT NULL, attempt INTEGER NOT NULL,
    api TEXT, host TEXT, key_fp TEXT, model TEXT, betas TEXT NOT NULL,
    first_token_at TEXT, ended_at TEXT, status INTEGER, clock TEXT NOT NULL,
    input_tokens INTEGER, read_tokens INTEGER, write_tokens INTEGER,
    write_5m_tokens INTEGER, write_1h_tokens INTEGER, output_tokens INTEGER,
    file TEXT, line INTEGER, offset INTEGER, length INTEGER,
    tokens BLOB, response BLOB, request BLOB, blocks BLOB);
CREATE INDEX calls_by_time ON calls (started_at, seq);
CREATE INDEX calls_by_trace ON calls (trace, started_at, seq);
INSERT INTO blocks VALUES (x'73df2a95aa7da61e6d3f3b58c0e0c5a1', '{"type":"text","text":"hello"}');
INSERT INTO calls VALUES (1, x'00112233445566778899aabbccddeeff', 'a', 't', 'anthropic',
    '2026-08-01T10:00:00.000000+00:00', 1, 'main', NULL, 'main', 1, NULL, NULL, NULL, NULL, '[]', NULL, NULL, 200,
    'utc', 10, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    CAST('{"messages":[{"role":"user","content":[0]}]}' AS BLOB), x'73df2a95aa7da61e6d3f3b58c0e0c5a1');
UPDATE blocks SET content = CAST(content AS BLOB);
"""


def body(turns: int, marked: int = -1) -> JsonObject:
    """A conversation of `turns` messages after a system text, a cache marker on the message `marked`."""
    messages = []
    for turn in range(turns):
        block: JsonObject = {"type": "text", "text": f"turn {turn} " * 100}
        messages.append({"role": "user", "content": [block | {"cache_control": MARK} if turn == marked else block]})
    return {"model": "m", "system": [{"type": "text", "text": "You help."}], "messages": messages}


def call(number: int, request: JsonObject | None = None, trace: str = "t") -> Call:
    at = START + timedelta(seconds=number)
    return Call(f"c{number}", trace, "anthropic", at, seq=number, request=request or body(number % 20 + 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return bool(answer == "ok")


def test_importing_again_adds_nothing(store: Store) -> None:
    calls = [call(number) for number in range(1200)]
    assert store.add(calls[:700]) == (700, 0)
    assert store.add(calls) == (500, 700)
    assert list(store.calls()) == calls


def test_a_repeated_call_in_one_import_is_stored_once(store: Store) -> None:
    assert store.add([call(1), call(1)]) == (1, 1)


def test_a_block_is_stored_once_with_and_without_a_marker(store: Store) -> None:
    requests = [body(3), body(3, marked=0), body(3, marked=2)]
    store.add(call(number, request) for number, request in enumerate(requests))
    assert store.counts() == Counts(calls=3, blocks=4, outcomes=0)
    assert [json.dumps(each.request) for each in store.calls()] == [json.dumps(request) for request in requests]


def test_the_markers_place_among_the_keys_is_kept(store: Store) -> None:
    block = {"type": "text", "cache_control": MARK, "text": "hello"}
    one = call(1, {"messages": [{"role": "user", "content": [block]}]})
    store.add([one])
    assert json.dumps(store.request(call_key(one))) == json.dumps(one.request)


def test_unknown_stays_unknown_and_zero_stays_zero(store: Store) -> None:
    store.add([Call("a", "t", "anthropic", START, usage=Usage(input_tokens=0, read_tokens=None, output_tokens=7))])
    (back,) = store.calls()
    assert back.usage == Usage(0, None, None, None, None, 7)
    assert (back.request, back.response, back.tokens, back.place) == (None, None, None, None)


def test_rows_without_bodies_are_told_apart_by_their_usage(store: Store) -> None:
    rows = [Call("", "t", "anthropic", None, seq=seq, usage=Usage(input_tokens=10)) for seq in (1, 2)]
    assert store.add(rows) == (2, 0)
    assert store.add(rows) == (0, 2)


def deep(levels: int) -> JsonObject:
    value: JsonObject = {}
    for _ in range(levels):
        value = {"v": value}
    return value


@pytest.mark.parametrize("odd", [2**70, -(2**90), "\ud83d", float("inf"), deep(300), [None, float("-inf")]])
def test_what_orjson_cannot_write_survives(store: Store, odd: object) -> None:
    request = {"messages": [{"role": "user", "content": [{"type": "x", "input": odd}]}], "extra": odd}
    store.add([call(1, request)])
    (back,) = store.calls()
    assert back.request == request


def test_nesting_beyond_json_is_one_clear_line(store: Store) -> None:
    with pytest.raises(StoreError, match="call c1: nested too deeply"):
        store.add([call(1, {"messages": [{"content": [deep(5000)]}]})])


def test_a_number_beyond_64_bits_names_its_call(store: Store) -> None:
    with pytest.raises(StoreError, match=r"call a: the number 1.18e\+21 has more than 64 bits"):
        store.add([Call("a", "t", "anthropic", START, usage=Usage(input_tokens=2**70))])
    assert store.add([call(1)]) == (1, 0)


def test_calls_come_in_order_of_time_and_by_trace(store: Store) -> None:
    store.add([call(3), call(1, trace="other"), call(2), Call("none", "t", "anthropic", None, seq=9)])
    assert [each.id for each in store.calls()] == ["none", "c1", "c2", "c3"]
    assert [each.id for each in store.calls(trace="t")] == ["none", "c2", "c3"]


def test_the_reader_may_write_meanwhile_and_so_may_another(path: Path, store: Store) -> None:
    store.add(call(number) for number in range(50))
    with Store.open(path) as other:
        for number, each in enumerate(store.calls()):
            other.add([call(100 + number)])
            store.save_outcomes("r", [OutcomeRow(call_key(each), 1, 2, 3, "hit")])
    assert store.counts() == Counts(100, 21, 50)


def test_a_new_ruleset_adds_and_the_same_replaces(store: Store) -> None:
    calls = [call(2), call(1)]
    store.add(calls)
    keys = [call_key(each) for each in calls]
    first = [OutcomeRow(key, 0, None, 5, "miss", "ttl_expired", 7, {"z": 1, "a": [None]}) for key in keys]
    store.save_outcomes("old", first)
    store.save_outcomes("new", [OutcomeRow(keys[0], 9, 0, 0, "hit")])
    store.save_outcomes("new", [OutcomeRow(keys[0], 8, 0, 0, "hit")])
    assert list(store.outcomes("old")) == first[::-1], "in the order of the calls"
    assert list(store.outcomes("new")) == [OutcomeRow(keys[0], 8, 0, 0, "hit")]
    assert list(store.outcomes("none")) == []


def test_an_outcome_of_no_call_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="no call for one of these outcomes"):
        store.save_outcomes("r", [OutcomeRow(b"0" * 16, 0, 0, 0, "hit")])
    assert store.counts().outcomes == 0


def test_asking_for_an_unknown_call_says_so(store: Store) -> None:
    with pytest.raises(StoreError, match="no call has the key 3030"):
        store.request(b"00")


def test_a_source_that_fails_midway_leaves_whole_batches(store: Store) -> None:
    def source() -> Iterator[Call]:
        yield from (call(number) for number in range(700))
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        store.add(source())
    assert store.counts().calls == 500
    assert store.add(call(number) for number in range(700)) == (200, 500)
    assert len(list(store.calls())) == 700


def write(path: Path, first: int, last: int, step: int) -> None:
    with Store.open(path) as store:
        for start in range(first, last, step):
            store.add(call(number) for number in range(start, min(start + step, last)))


def start(path: Path, first: int, last: int, step: int) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=write, args=(path, first, last, step))
    process.start()
    return process


def open_together(path: Path, gate: Event) -> None:
    gate.wait()
    Store.open(path).close()


def test_processes_that_open_a_new_file_at_once_wait_for_each_other(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    path.parent.mkdir()
    for attempt in range(40):
        gate = context.Event()
        file = path.with_name(f"{attempt}.db")
        openers = [context.Process(target=open_together, args=(file, gate)) for _ in range(6)]
        for opener in openers:
            opener.start()
        gate.set()
        for opener in openers:
            opener.join(60)
        assert [opener.exitcode for opener in openers] == [0] * 6


def test_several_processes_write_one_new_file(path: Path) -> None:
    for attempt in range(5):
        file = path.with_name(f"{attempt}.db")
        writers = [start(file, first, first + 300, 7) for first in (0, 0, 200, 400)]
        for writer in writers:
            writer.join(60)
        assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
        with Store.open(file) as store:
            assert [each.seq for each in store.calls()] == list(range(700))
        assert sound(file)


def test_a_killed_writer_loses_nothing_that_was_committed(path: Path) -> None:
    calls = [call(number) for number in range(3000)]
    before = kills = 0
    for attempt in range(12):
        writer = start(path, 0, 3000, 40)
        time.sleep(0.02 + 0.03 * attempt)
        kills += writer.is_alive()
        writer.kill()
        writer.join(60)
        with Store.open(path) as store:
            found = list(store.calls())
        assert found == calls[: len(found)], "a prefix, each call whole"
        assert len(found) >= before
        assert len(found) % 40 == 0, "whole batches"
        before = len(found)
        assert sound(path)
    assert kills, "at least one writer was killed at work"
    with Store.open(path) as store:
        assert store.add(calls) == (3000 - before, before)
        assert list(store.calls()) == calls


def test_a_file_of_version_1_is_upgraded_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    connection = sqlite3.connect(file)
    connection.executescript(VERSION_1)
    connection.close()
    for _ in range(2):
        with Store.open(file) as store:
            (old,) = store.calls()
            assert (old.id, old.started_at, old.usage) == ("a", START, Usage(10, 0))
            assert old.request == {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
            store.save_outcomes("r", [OutcomeRow(bytes.fromhex("00112233445566778899aabbccddeeff"), 0, 0, 0, "hit")])
            assert store.counts() == Counts(1, 1, 1)


def test_an_upgraded_file_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript(VERSION_1)
    connection.close()
    shapes = []
    for name in ("old.db", "new.db"):
        Store.open(tmp_path / name).close()
        connection = sqlite3.connect(tmp_path / name)
        tables = [table for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        shapes.append({table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in tables})
        connection.close()
    assert shapes[0] == shapes[1]


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    Store.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO _sqlite_migrations VALUES (99, 'cachewright', 'm0099_later', '')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    ours = migrations.VERSION
    assert str(caught.value) == (
        f"{path}: store version 99 is newer than this program's {ours}; upgrade cachewright or name another file"
    )
    assert path.read_bytes() == before


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text('{"schema":"cachewright.trace/1"}\n' * 50)
    with pytest.raises(StoreError, match=r"a\.jsonl: is not an SQLite database; move it away"):
        Store.open(text)
    other = tmp_path / "places.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE bookmarks (id)")
    connection.close()
    with pytest.raises(StoreError, match="another program's SQLite database"):
        Store.open(other)
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="name a file in a writable directory"):
        Store.open(text / "store.db")


def test_a_lock_that_is_not_released_is_one_clear_line(path: Path) -> None:
    with Store.open(path, busy_s=0.05) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"store\.db: is locked by another program; wait"):
            store.add([call(1)])
        holder.execute("ROLLBACK")
        holder.close()
        assert store.add([call(1)]) == (1, 0)
        assert len(list(store.calls())) == 1, "the blocks of the failed batch are not taken for stored"


def test_a_full_disk_keeps_what_was_stored(path: Path) -> None:
    with Store.open(path) as store:
        store.add([call(0)])
        store._conn.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreError, match="the disk is full; free some space"):
            store.add([call(n, {"messages": [{"content": os.urandom(9000).hex()}]}) for n in range(1, 20)])
        store._conn.execute("PRAGMA max_page_count = 100000")
        assert store.add([call(0), call(1)]) == (1, 1)
        assert len(list(store.calls())) == 2


def open_as_nobody(path: Path) -> None:
    """Exit with 0 where opening says that the place cannot be written."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        Store.open(path)
    except StoreError as error:
        os._exit(0 if "writable" in str(error) else 2)
    os._exit(1)


@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_directory_is_one_clear_line(existing: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        file = folder / "store.db"
        if existing:
            Store.open(file).close()
            file.chmod(0o444)
        folder.chmod(0o555)
        process = multiprocessing.get_context("fork").Process(target=open_as_nobody, args=(file,))
        process.start()
        process.join(60)
        folder.chmod(0o755)
    assert process.exitcode == 0


def test_damage_is_one_clear_line(path: Path) -> None:
    with Store.open(path) as store:
        store.add([call(1)])
        store._conn.execute("UPDATE blocks SET content = x'78ffff'")
    with Store.open(path) as store, pytest.raises(StoreError, match="is damaged"):
        list(store.calls())
    with Store.open(path) as store:
        store._conn.execute("DELETE FROM blocks")
        with pytest.raises(StoreError, match="is missing; move it away"):
            list(store.calls())


def test_prompts_are_private(path: Path, store: Store) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_the_default_place_is_the_users_data_directory() -> None:
    assert default_path().parts[-2:] == ("cachewright", "cachewright.db")


def test_importing_the_module_does_not_load_sqlite_utils() -> None:
    program = "import sys, auditor.store; sys.exit('sqlite_utils' in sys.modules or 'platformdirs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
