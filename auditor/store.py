"""The store: recorded calls and what the rules say about them, in one SQLite file.

Content blocks are stored once however many calls hold them (`auditor.store_bodies`), calls once however often their
file is imported, verdicts once for each call and ruleset. Tokens are stored, money is not. Writes are short immediate
transactions in write-ahead mode: several processes may write one file, and a killed one leaves only whole batches.
A `Store` belongs to the thread that opened it.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from auditor import migrations
from auditor.errors import StoreError as StoreError
from auditor.store_bodies import DIGEST_BYTES, join, pack, unpack
from auditor.store_exchanges import ADD_EXCHANGE, exchange_of, exchange_row, purge
from auditor.store_file import REMEDY, explained, make_file, write_ahead
from auditor.store_rows import (
    CALL_COLUMNS,
    OUTCOME_COLUMNS,
    DamagedRow,
    body_of,
    call_of,
    call_row,
    json_value,
    outcome_of,
    outcome_row,
    sql_text,
    text_of,
    undamaged,
)
from auditor.store_rows import OutcomeRow as OutcomeRow
from auditor.store_rows import call_key as call_key
from traces.exchange import Exchange
from traces.schema import Call, JsonObject

BUSY_S = 10.0
"""Seconds to wait for another writer; its batches take well under one."""

BATCH_CALLS = 500
BATCH_BYTES = 8_000_000
KNOWN_DIGESTS = 200_000
"""Stored blocks remembered by a writer, about 20 MB."""

CACHE_BYTES = 64_000_000
"""Block text that a reader keeps."""

_MARKS = ",".join("?" * len(CALL_COLUMNS))

_ADD_BLOCK = "INSERT INTO blocks VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"
_ADD_CALL = f"INSERT INTO calls ({','.join(CALL_COLUMNS)}) VALUES ({_MARKS}) ON CONFLICT (key) DO NOTHING"
_ADD_OUTCOME = (
    f"INSERT OR REPLACE INTO outcomes (ruleset, {','.join(OUTCOME_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ONE_CALL = f"SELECT {','.join(CALL_COLUMNS)} FROM calls WHERE number = ?"
_ONE_OUTCOME = f"SELECT {','.join(OUTCOME_COLUMNS)} FROM outcomes WHERE ruleset = ? AND call = ?"
_OUTCOME_ORDER = "SELECT call FROM outcomes JOIN calls ON key = call WHERE ruleset = ? ORDER BY started_at, seq, number"


class Added(NamedTuple):
    """How many calls an import stored, and how many it found stored already."""

    new: int
    known: int


class Counts(NamedTuple):
    """Rows in the store."""

    calls: int
    blocks: int
    outcomes: int


@dataclass(slots=True)
class _Batch:
    """Rows ready for one transaction: `calls` in column order, `blocks` packed, by digest."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    blocks: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0


def default_path() -> Path:
    """Return the place of the store where nobody names one."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("cachewright", appauthor=False)) / "cachewright.db"


class Store:
    """An open store; a context manager. Every method raises StoreError where the file fails."""

    def __init__(self, path: Path, conn: sqlite3.Connection) -> None:
        """Use `Store.open`; the file must be at the current version."""
        self.working = True
        self.path = path
        self._conn = conn
        self._known: set[bytes] = set()
        self._texts: dict[bytes, bytes] = {}
        self._texts_size = 0

    @classmethod
    def open(cls, path: Path, *, busy_s: float = BUSY_S) -> Self:
        """Open the store at `path`, making or upgrading it where needed; wait `busy_s` seconds for other writers.

        Raises StoreError for a file that is not a store, is newer than this program or cannot be used.
        """
        make_file(path)
        with explained(path):
            conn = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
            try:
                store = cls(path, conn)
                store._prepare(busy_s)
            except BaseException:
                conn.close()
                raise
        return store

    def close(self) -> None:
        """Close the file; the last one to close it also removes the write-ahead files."""
        self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, calls: Iterable[Call]) -> Added:
        """Store calls in batches of one transaction each; calls that are stored already stay as they are.

        An import that was cut short has stored whole batches: repeat it.
        """
        new = known = 0
        for batch in self._batches(calls):
            stored = self._store(batch)
            new += stored
            known += len(batch.calls) - stored
        return Added(new, known)

    def record(self, exchanges: Sequence[Exchange]) -> None:
        """Store what a recorder saw, with the calls in it, in one transaction."""
        batch, rows = _Batch(), []
        for exchange in exchanges:
            key = None
            if exchange.call is not None:
                self._take(exchange.call, batch)
                key = batch.calls[-1][0]
            rows.append(exchange_row(exchange, key))
        self._store(batch, rows)

    def exchanges(self) -> Iterator[Exchange]:
        """Yield recorded exchanges in order of start, with their calls; holds no lock between two."""
        with explained(self.path):
            ids = self._conn.execute("SELECT id FROM exchanges ORDER BY started_at, id").fetchall()
        for (name,) in ids:
            with explained(self.path):
                row = self._conn.execute("SELECT * FROM exchanges WHERE id = ?", (name,)).fetchone()
                number = self._conn.execute("SELECT number FROM calls WHERE key = ?", (row[2],)).fetchone()
                call = None if number is None else self._call(number[0])
                with undamaged(f"the exchange {name}"):
                    exchange = exchange_of(row, call)
            yield exchange

    def salt(self) -> bytes:
        """Return the 16 random bytes of this file under which its recorders fingerprint keys."""
        with explained(self.path):
            found: bytes = self._conn.execute("SELECT value FROM settings WHERE name = 'salt'").fetchone()[0]
            return found

    def purge(self, *, trace: str | None = None, before: str | None = None) -> int:
        """Delete calls for good, of one trace, from before a day (ISO), or all; returns how many rows went.

        Nothing of them is left in free pages or in the write-ahead file. Needs the file's size free on the disk.
        """
        with explained(self.path):
            self._known.clear()
            self._texts.clear()
            return purge(self._conn, trace, before)

    def through(self, calls: Iterable[Call], on_error: Callable[[StoreError], None]) -> Iterator[Call]:
        """Yield each call with its `key` as it is stored, in batches; calls that are stored already stay as they are.

        A call that no store can hold goes to `on_error` and is left out. The first failure of the file goes there too:
        it ends the storing (`working` is then False), not the stream.
        """
        batch = _Batch()
        for call in calls:
            if self.working:
                try:
                    self._take(call, batch)
                    call = replace(call, key=batch.calls[-1][0])
                except StoreError as error:
                    on_error(error)
            if len(batch.calls) >= BATCH_CALLS or batch.size >= BATCH_BYTES:
                self._try(batch, on_error)
                batch = _Batch()
            yield call
        if batch.calls:
            self._try(batch, on_error)

    def _try(self, batch: _Batch, on_error: Callable[[StoreError], None]) -> None:
        """Write one batch, or say why not and write no more."""
        try:
            self._store(batch)
        except StoreError as error:
            self.working = False
            on_error(error)

    def calls(self, *, trace: str | None = None) -> Iterator[Call]:
        """Yield the calls that are stored now, of one trace or all, ordered by start and seq (no start comes first).

        One call is in memory at a time, and no lock is held between two, so that the caller may write meanwhile.
        """
        where, values = ("", ()) if trace is None else ("WHERE trace = ?", (sql_text(trace),))
        with explained(self.path):
            rows = self._conn.execute(f"SELECT number FROM calls {where} ORDER BY started_at, seq, number", values)
            numbers = array("q", (number for (number,) in rows))
        for number in numbers:
            with explained(self.path):
                call = self._call(number)
            yield call

    def request(self, key: bytes) -> JsonObject | None:
        """Return the request body of the call with this `call_key`; `None` where none was recorded.

        Raises StoreError where no such call is stored.
        """
        with explained(self.path):
            row = self._conn.execute("SELECT request, blocks FROM calls WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise StoreError(f"{self.path}: no call has the key {key.hex()}; import its trace first")
            with undamaged(f"the call {key.hex()}"):
                return self._request(*row)

    def save_outcomes(self, ruleset_digest: str, rows: Iterable[OutcomeRow]) -> None:
        """Store what a ruleset says about calls that are stored: replaces its own rows, leaves other rulesets'.

        Raises StoreError where a row belongs to no stored call.
        """
        encoded = ((ruleset_digest, *outcome_row(row)) for row in rows)
        while batch := list(islice(encoded, BATCH_CALLS)):
            with self._writing():
                self._conn.executemany(_ADD_OUTCOME, batch)

    def outcomes(self, ruleset_digest: str) -> Iterator[OutcomeRow]:
        """Yield what a ruleset says, in the order of `calls`; holds no lock between two rows."""
        with explained(self.path):
            keys = self._conn.execute(_OUTCOME_ORDER, (ruleset_digest,)).fetchall()
        for (key,) in keys:
            with explained(self.path):
                row = self._conn.execute(_ONE_OUTCOME, (ruleset_digest, key)).fetchone()
                with undamaged(f"the outcome of {key.hex()}"):
                    outcome = outcome_of(row)
            yield outcome

    def sessions(self) -> dict[str, tuple[bytes, bytes]]:
        """Return stamp and digest of each session that was read before, by its name (`auditor.sessions`)."""
        with explained(self.path):
            rows = self._conn.execute("SELECT name, stamp, digest FROM sessions")
            return {text_of(name): (stamp, digest) for name, stamp, digest in rows}

    def save_sessions(self, digests: Mapping[str, tuple[bytes, bytes]], gone: Iterable[str] = ()) -> None:
        """Keep stamp and digest of sessions that were read, and forget those that are gone."""
        with self._writing():
            rows = ((sql_text(name), *each) for name, each in digests.items())
            self._conn.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", rows)
            self._conn.executemany("DELETE FROM sessions WHERE name = ?", ((sql_text(name),) for name in gone))

    def select(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Answer one read-only question (those of `auditor.summary`) with all its rows."""
        with explained(self.path):
            return self._conn.execute(sql, values).fetchall()

    def counts(self) -> Counts:
        """Count the rows."""
        with explained(self.path):
            tables = "(SELECT count(*) FROM calls), (SELECT count(*) FROM blocks), (SELECT count(*) FROM outcomes)"
            return Counts(*self._conn.execute(f"SELECT {tables}").fetchone())

    def _prepare(self, busy_s: float) -> None:
        """Refuse what is not ours or newer, before anything is written; then set the file up."""
        tables = self._conn.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
        version = migrations.version(self._conn)
        if tables and not version:
            raise StoreError(f"{self.path}: is another program's SQLite database; name another file")
        if version > migrations.VERSION:
            raise StoreError(
                f"{self.path}: store version {version} is newer than this program's {migrations.VERSION};"
                " upgrade cachewright or name another file"
            )
        self._conn.execute("PRAGMA foreign_keys = ON")
        write_ahead(self._conn, busy_s)
        if version < migrations.VERSION:
            with self._writing():
                migrations.migrate(self._conn)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One write transaction. It takes the lock at once: upgrading a read lock later could fail at any time."""
        with explained(self.path):
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._conn.execute("COMMIT")
            except BaseException:
                if self._conn.in_transaction:
                    self._conn.execute("ROLLBACK")
                raise

    def _batches(self, calls: Iterable[Call]) -> Iterator[_Batch]:
        batch = _Batch()
        for call in calls:
            self._take(call, batch)
            if len(batch.calls) >= BATCH_CALLS or batch.size >= BATCH_BYTES:
                yield batch
                batch = _Batch()
        if batch.calls:
            yield batch

    def _take(self, call: Call, batch: _Batch) -> None:
        """Add a call and those of its blocks that are not known to be stored."""
        body = body_of(call, self._known, batch.blocks)
        for name, text in body.fresh.items():
            batch.blocks[name] = pack(text)
            batch.size += len(text)
        row = call_row(call, body)
        batch.calls.append(row)
        batch.size += sum(len(value) for value in row[-4:] if value is not None)

    def _store(self, batch: _Batch, exchanges: Sequence[tuple[Any, ...]] = ()) -> int:
        """Write one batch; returns how many of its calls are new. Blocks count as known only once committed."""
        with self._writing():
            self._conn.executemany(_ADD_BLOCK, batch.blocks.items())
            new = self._conn.executemany(_ADD_CALL, batch.calls).rowcount
            self._conn.executemany(ADD_EXCHANGE, exchanges)
        if len(self._known) > KNOWN_DIGESTS:
            self._known.clear()
        self._known.update(batch.blocks)
        return new

    def _call(self, number: int) -> Call:
        row = self._conn.execute(_ONE_CALL, (number,)).fetchone()
        if row is None:
            raise DamagedRow(f"call number {number} is gone")
        with undamaged(f"call number {number}"):
            return call_of(row, self._request(*row[-2:]))

    def _request(self, skeleton: bytes | None, packed: bytes | None) -> JsonObject | None:
        if skeleton is None or packed is None:
            return None
        names = [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]
        texts = self._blocks(names)
        return join(json_value(skeleton), (texts[name] for name in names))

    def _blocks(self, names: list[bytes]) -> dict[bytes, bytes]:
        """Return the texts of these blocks by digest, from memory where they were read lately."""
        if self._texts_size > CACHE_BYTES:
            self._texts, self._texts_size = {}, 0
        missing = list(dict.fromkeys(name for name in names if name not in self._texts))
        for start in range(0, len(missing), BATCH_CALLS):
            some = missing[start : start + BATCH_CALLS]
            marks = ",".join("?" * len(some))
            for name, content in self._conn.execute(f"SELECT * FROM blocks WHERE digest IN ({marks})", some):
                self._texts[name] = text = unpack(content)
                self._texts_size += len(text)
        lost = [name for name in missing if name not in self._texts]
        if lost:
            raise StoreError(f"{self.path}: block {lost[0].hex()} is missing; {REMEDY}")
        return self._texts
