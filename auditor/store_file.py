"""The store's file: made private, switched to write-ahead mode, and its faults explained in one line with a remedy."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from auditor.errors import StoreError
from auditor.store_rows import DamagedRow

REMEDY = "move it away and import the traces again"
_FAULTS = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; move it away or name another file",
    sqlite3.SQLITE_BUSY: "is locked by another program; wait until that has finished, then repeat",
    sqlite3.SQLITE_READONLY: "cannot be written; make the file and its directory writable or name another file",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its directory is writable or name another file",
    sqlite3.SQLITE_FULL: "the disk is full; free some space, then repeat (what was stored before is kept)",
    sqlite3.SQLITE_CORRUPT: f"is damaged; {REMEDY}",
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "holds no call for one of these outcomes; import its trace first",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check the disk, then repeat",
}


def make_file(path: Path) -> None:
    """Make the file and its directory. Prompts are private: the file is readable by its owner only."""
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be made ({error.strerror}); name a file in a writable directory") from error


def write_ahead(conn: sqlite3.Connection, busy_s: float) -> None:
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
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite says, and text in the file that is not what was written there, into one line with a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        fault = _FAULTS.get(code) or _FAULTS.get(code & 0xFF) or f"cannot be used; {REMEDY}"
        raise StoreError(f"{path}: {fault} (SQLite: {error})") from error
    except (zlib.error, DamagedRow, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: is damaged ({error}); {REMEDY}") from error
