"""The store: recorded calls and what the rules say about them, in one SQLite file.

Content blocks are stored once however many calls hold them (`auditor.store_bodies`), calls once however often their
file is imported, verdicts once for each call and ruleset. Tokens are stored, money is not. Writes are short immediate
transactions in write-ahead mode: several processes may write one file, and a killed one leaves only whole batches.
A `Store` belongs to the thread that opened it.
"""

import sqlite3
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self

from auditor import migrations
from auditor.errors import StoreError as StoreError
from auditor.store_bodies import DIGEST_BYTES, join, pack, unpack
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
    undamaged,
)
from auditor.store_rows import OutcomeRow as OutcomeRow
from auditor.store_rows import call_key as call_key
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

_REMEDY = "move it away and import the traces again"
_FAULTS = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; move it away or name another file",
    sqlite3.SQLITE_BUSY: "is locked by another program; wait until that has finished, then repeat",
    sqlite3.SQLITE_READONLY: "cannot be written; make the file and its directory writable or name another file",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its directory is writable or name another file",
    sqlite3.SQLITE_FULL: "the disk is full; free some space, then repeat (what was stored before is kept)",
    sqlite3.SQLITE_CORRUPT: f"is damaged; {_REMEDY}",
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "holds no call for one of these outcomes; import its trace first",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check the disk, then repeat",
}


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
        _make_file(path)
        with _explained(path):
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
        with _explained(self.path):
            rows = self._conn.execute(f"SELECT number FROM calls {where} ORDER BY started_at, seq, number", values)
            numbers = array("q", (number for (number,) in rows))
        for number in numbers:
            with _explained(self.path):
                call = self._call(number)
            yield call

    def request(self, key: bytes) -> JsonObject | None:
        """Return the request body of the call with this `call_key`; `None` where none was recorded.

        Raises StoreError where no such call is stored.
        """
        with _explained(self.path):
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
        with _explained(self.path):
            keys = self._conn.execute(_OUTCOME_ORDER, (ruleset_digest,)).fetchall()
        for (key,) in keys:
            with _explained(self.path):
                row = self._conn.execute(_ONE_OUTCOME, (ruleset_digest, key)).fetchone()
                with undamaged(f"the outcome of {key.hex()}"):
                    outcome = outcome_of(row)
            yield outcome

    def select(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Answer one read-only question (those of `auditor.summary`) with all its rows."""
        with _explained(self.path):
            return self._conn.execute(sql, values).fetchall()

    def counts(self) -> Counts:
        """Count the rows."""
        with _explained(self.path):
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
        _write_ahead(self._conn, busy_s)
        if version < migrations.VERSION:
            with self._writing():
                migrations.migrate(self._conn)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One write transaction. It takes the lock at once: upgrading a read lock later could fail at any time."""
        with _explained(self.path):
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

    def _store(self, batch: _Batch) -> int:
        """Write one batch; returns how many of its calls are new. Blocks count as known only once committed."""
        with self._writing():
            self._conn.executemany(_ADD_BLOCK, batch.blocks.items())
            new = self._conn.executemany(_ADD_CALL, batch.calls).rowcount
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
            raise StoreError(f"{self.path}: block {lost[0].hex()} is missing; {_REMEDY}")
        return self._texts


def _make_file(path: Path) -> None:
    """Make the file and its directory. Prompts are private: the file is readable by its owner only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be made ({error.strerror}); name a file in a writable directory") from error


def _write_ahead(conn: sqlite3.Connection, busy_s: float) -> None:
    """Switch a file to write-ahead mode. SQLite does not wait for others here as it does elsewhere, so this does."""
    patience = monotonic() + busy_s
    while True:
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > patience:
                raise
        sleep(0.005)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite says, and text in the file that is not what was written there, into one line with a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        fault = _FAULTS.get(code) or _FAULTS.get(code & 0xFF) or f"cannot be used; {_REMEDY}"
        raise StoreError(f"{path}: {fault} (SQLite: {error})") from error
    except (zlib.error, DamagedRow, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: is damaged ({error}); {_REMEDY}") from error
