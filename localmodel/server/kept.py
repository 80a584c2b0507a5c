"""`--kv DIR`: what a restart keeps. The rules' entries are rows of `state.db`, the engine's pages files in `pages/`.

An entry is a promise about one model under one ruleset, so each combination is a *world* of its own. A server reads
and writes its own world alone; those of others stay until their entries have died, and the start says what differs.

SQLite keeps the file whole: a process that is killed loses the transaction it was writing, a power cut the latest ones.
A row is written once its response has begun, for what nobody could read yet is worth nothing to the next process. Rows
hold digests and times, no text. The file is locked while a server uses it.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from rpds import HashTrieMap

from localmodel.rules.types import CacheState, Entry, EntryKey
from localmodel.server.errors import BadSettings

FORGET_AFTER_S = 3600
"""Entries are kept for so long after their end: until then they tell an expiry from a first write."""

World: TypeAlias = Mapping[str, str]
"""All that must be equal for entries to mean the same, by name: model, weights, …, rules (their digest)."""

PAGES = "pages"
_FORMAT = 1
_DAMAGED = "state.db.damaged"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 48
_SCHEMA = """
create table if not exists worlds (
    id integer primary key, identity text not null unique, rules text not null, used integer not null);
create table if not exists entries (
    world integer not null references worlds, chain blob not null, salt blob not null, ttl text not null,
    ttl_s integer not null, written integer not null, used integer not null, readable integer not null,
    primary key (world, chain, salt)) without rowid;
"""


class Kept:
    """The state file of one folder, open and locked. `said` holds what the user should hear of it, line by line."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self._path = folder / "state.db"
        self._world = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = _opened(self._path)
        except OSError as error:
            raise BadSettings(f"--kv {folder}: cannot be used: {error.strerror}; give a folder of your own") from None
        except sqlite3.Error as error:
            if (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BadSettings(
                    f"--kv {folder}: another server uses it; stop that one or give another folder"
                ) from None
            if not isinstance(error, _Damaged) and (error.sqlite_errorcode & 0xFF) not in _BAD_FILE:
                raise BadSettings(f"--kv {folder}: state.db cannot be used: {error}; give another folder") from None
            self.said.append(
                f"--kv {folder}: state.db {_reason(error)}; set aside as {_DAMAGED}, nothing of it is used"
            )
            self._db = self._anew()

    def _anew(self) -> sqlite3.Connection:
        self._path.replace(self._path.with_name(_DAMAGED))
        for left in ("state.db-wal", "state.db-shm"):
            self._path.with_name(left).unlink(missing_ok=True)
        return _opened(self._path)

    def enter(self, world: World, rules: str, now: datetime) -> CacheState:
        """Use this world from now on: the entries that it holds. `rules` names its ruleset for people.

        Lifetimes have gone on by the wall clock. Where that was set back meanwhile, no time lies in the future.
        """
        identity, moment = json.dumps(dict(world), sort_keys=True), _micros(now)
        with self._db:
            self._forget_dead(moment)
            self._tell_others(world, identity, rules)
            self._db.execute(
                "insert into worlds (identity, rules, used) values (?, ?, ?)"
                " on conflict (identity) do update set rules = excluded.rules, used = excluded.used",
                (identity, rules, moment),
            )
            (self._world,) = self._db.execute("select id from worlds where identity = ?", (identity,)).fetchone()
        return CacheState(HashTrieMap(dict(self._entries(now))))

    def _forget_dead(self, moment: int) -> None:
        """Drop entries that died long ago, and worlds that hold none."""
        dead = "delete from entries where used + (ttl_s + ?) * 1000000 < ?"
        self._db.execute(dead, (FORGET_AFTER_S, moment))
        self._db.execute("delete from worlds where id not in (select world from entries)")

    def _tell_others(self, world: World, identity: str, rules: str) -> None:
        """Where only other worlds hold entries: say in what the latest of them differs."""
        rows = self._db.execute("select identity, rules from worlds order by used desc").fetchall()
        if not rows or any(row[0] == identity for row in rows):
            return
        there: dict[str, str] = json.loads(rows[0][0])
        differing = [name for name in {**there, **world} if there.get(name) != world.get(name)]
        told = [_difference(name, (there, rows[0][1]), (world, rules)) for name in differing]
        self.said.append(
            f"--kv {self._path.parent}: its entries are of {', '.join(told)}: not used, the cache starts empty; "
            "start with the former options to use them"
        )

    def _entries(self, now: datetime) -> Iterator[tuple[EntryKey, Entry]]:
        rows = self._db.execute(
            "select chain, salt, ttl, ttl_s, written, used, readable from entries where world = ?", (self._world,)
        )
        for chain, salt, ttl, ttl_s, *times in rows:
            written, used, readable = (min(_moment(one), now) for one in times)
            yield (chain, salt), Entry(ttl, ttl_s, written, used, readable)

    def write(self, changed: Iterable[tuple[EntryKey, Entry]], dropped: Iterable[EntryKey]) -> None:
        """Put entries in and take others out, in one transaction. Raises `sqlite3.Error`."""
        rows = [
            (self._world, *key, one.ttl, one.ttl_s, _micros(one.written_at), _micros(one.used_at),
             _micros(one.readable_at))
            for key, one in changed
        ]  # fmt: skip
        with self._db:
            self._db.executemany("insert or replace into entries values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            gone = [(self._world, *key) for key in dropped]
            self._db.executemany("delete from entries where world = ? and chain = ? and salt = ?", gone)

    def close(self) -> None:
        """Close and unlock the file."""
        self._db.close()


class _Damaged(sqlite3.DatabaseError):
    """The file is SQLite's and yet not ours to use."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


_BAD_FILE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def _opened(path: Path) -> sqlite3.Connection:
    """The database, locked for this process alone. Raises `sqlite3.Error`."""
    path.touch(mode=0o600)
    db = sqlite3.connect(path, timeout=0.5, check_same_thread=False)
    try:
        db.execute("pragma locking_mode = exclusive")
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute("begin exclusive")
        (version,) = db.execute("pragma user_version").fetchone()
        db.commit()
        if version not in (0, _FORMAT):
            raise _Damaged(f"has format {version}, this version reads {_FORMAT}")
        if db.execute("pragma quick_check").fetchone() != ("ok",):
            raise _Damaged("is damaged")
        db.executescript(f"{_SCHEMA} pragma user_version = {_FORMAT};")
    except BaseException:
        db.close()
        raise
    return db


def _reason(error: sqlite3.Error) -> str:
    return str(error) if isinstance(error, _Damaged) else "is damaged or no database"


def _difference(name: str, there: tuple[World, str], here: tuple[World, str]) -> str:
    if name == "rules":
        old, new = there[1], here[1]
        return f"rules {old!r}, not {new!r}" if old != new else f"another content of rules {old!r}"
    one, other = (world.get(name, "none")[:_SHOWN] for world in (there[0], here[0]))
    return f"{name} {one!r}, not {other!r}"


def _micros(moment: datetime) -> int:
    """Microseconds since 1970, exact."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
