"""The store's tables, as numbered steps that are applied in order and never edited once released.

`sqlite_utils.migrations` runs each step in a transaction and records it in `_sqlite_migrations`. A step that is not
ours in that table means that a newer program wrote the file.
"""

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

SET = "cachewright"


def m0001_calls(db: "Database") -> None:
    """Calls and the content blocks that they share."""
    # Content addressed: an agent's calls repeat nearly all blocks, so each is kept once. `content` is JSON text,
    # compressed where it begins with "x" or "X". No WITHOUT ROWID: rows are long and digests random, so that appending
    # to the table and keeping only digests in the index is what stays fast.
    db.execute("CREATE TABLE blocks (digest BLOB PRIMARY KEY, content BLOB NOT NULL)")
    # One row a call, all fields of `traces.schema.Call`. `key` identifies what was recorded, so that a file can be
    # imported again; `number` keeps the order of import for calls of equal time. Times are ISO text in UTC with six
    # decimals, which sorts as time. Token columns allow NULL, because unknown is not 0. Money has no column: it is a
    # join with dated prices at read time. Long columns come last, where short reads do not walk over them.
    # `request` is the skeleton; `blocks` the 16-byte digests of its blocks in order, too many for a table of pairs.
    db.execute("""
        CREATE TABLE calls (
            number INTEGER PRIMARY KEY,
            key BLOB NOT NULL UNIQUE,
            id TEXT NOT NULL, trace TEXT NOT NULL, provider TEXT NOT NULL, started_at TEXT, seq INTEGER NOT NULL,
            agent TEXT NOT NULL, parent TEXT, kind TEXT NOT NULL, attempt INTEGER NOT NULL,
            api TEXT, host TEXT, key_fp TEXT, model TEXT, betas TEXT NOT NULL,
            first_token_at TEXT, ended_at TEXT, status INTEGER, clock TEXT NOT NULL,
            input_tokens INTEGER, read_tokens INTEGER, write_tokens INTEGER,
            write_5m_tokens INTEGER, write_1h_tokens INTEGER, output_tokens INTEGER,
            file TEXT, line INTEGER, offset INTEGER, length INTEGER,
            tokens BLOB, response BLOB, request BLOB, blocks BLOB
        )""")
    # Reading is in order of time, over everything or over one trace; both without touching the rows.
    db.execute("CREATE INDEX calls_by_time ON calls (started_at, seq)")
    db.execute("CREATE INDEX calls_by_trace ON calls (trace, started_at, seq)")


def m0002_outcomes(db: "Database") -> None:
    """What the rules say about the calls, apart from the facts: rules change, facts do not."""
    # The ruleset is part of the key: a new one adds its verdicts beside the old ones, so that they can be compared;
    # the same one replaces its own. Ruleset first, because a report reads all verdicts of one ruleset.
    db.execute("""
        CREATE TABLE outcomes (
            ruleset TEXT NOT NULL, call BLOB NOT NULL REFERENCES calls (key),
            read_tokens INTEGER, write_tokens INTEGER, uncached_tokens INTEGER,
            verdict TEXT NOT NULL, cause TEXT, lost_tokens INTEGER, diagnosis BLOB,
            PRIMARY KEY (ruleset, call)
        ) WITHOUT ROWID""")


def m0003_facts(db: "Database") -> None:
    """What a client's transcript tells of a call of which it holds no body (`traces.schema.Call.facts`), as JSON."""
    db.execute("ALTER TABLE calls ADD COLUMN facts BLOB")


def m0004_sessions(db: "Database") -> None:
    """What was found in sessions of other tools, so that only changed ones are read again (`auditor.sessions`)."""
    # A cache: rows may be deleted at any time. `stamp` tells versions of the files and of the rules apart.
    db.execute("CREATE TABLE sessions (name TEXT PRIMARY KEY, stamp BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID")


def m0005_exchanges(db: "Database") -> None:
    """What a recorder saw: each HTTP attempt, whether or not it is a call of a model's API."""
    # `call` is NULL for model lists, health checks and the like. Headers, arrival times and links are in `facts`
    # (packed JSON). `request` and `response` are the exact bodies, packed as `auditor.store_exchanges` says.
    db.execute("""
        CREATE TABLE exchanges (
            id TEXT PRIMARY KEY, started_at TEXT NOT NULL, call BLOB REFERENCES calls (key),
            method TEXT NOT NULL, path TEXT NOT NULL, upstream TEXT NOT NULL, status INTEGER, outcome TEXT NOT NULL,
            conversation TEXT, facts BLOB NOT NULL, request BLOB, response BLOB
        )""")
    db.execute("CREATE INDEX exchanges_by_call ON exchanges (call)")
    db.execute("CREATE INDEX exchanges_by_time ON exchanges (started_at)")
    # `salt`: a key's fingerprint is the same in all calls of this file, and in no other file.
    db.execute("CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
    db.execute("INSERT INTO settings VALUES ('salt', randomblob(16))")


def m0006_summaries(db: "Database") -> None:
    """Sums over all calls without reading their rows, which are long: the first screen must not wait for them."""
    # Covers what `auditor.summary` sums up for each trace. It begins as the index that it replaces.
    db.execute("DROP INDEX calls_by_trace")
    db.execute("""
        CREATE INDEX calls_by_trace ON calls (
            trace, started_at, seq, provider, model, kind, status,
            input_tokens, read_tokens, write_tokens, write_5m_tokens, write_1h_tokens, output_tokens
        )""")
    # Only the calls that lost tokens, which are few; the diagnosis that makes outcomes long is not in it.
    db.execute("CREATE INDEX outcomes_lost ON outcomes (ruleset, call, cause, lost_tokens) WHERE lost_tokens > 0")


def m0007_label(db: "Database") -> None:
    """The provider's own comparison of a call (`traces.schema.Label`), as JSON; older rows keep it in their facts."""
    db.execute("ALTER TABLE calls ADD COLUMN label TEXT")


STEPS: tuple[Callable[["Database"], None], ...] = (
    *(m0001_calls, m0002_outcomes, m0003_facts, m0004_sessions, m0005_exchanges, m0006_summaries, m0007_label),
)
VERSION = len(STEPS)


def migrations() -> "Migrations":
    """Return all steps as a set that sqlite-utils can apply."""
    from sqlite_utils.migrations import Migrations

    steps = Migrations(SET)
    for step in STEPS:
        steps()(step)
    return steps


def version(conn: sqlite3.Connection) -> int:
    """Return the number of the last step applied to a file: 0 for a new one, above `VERSION` for a newer one's.

    Reads the table that sqlite-utils keeps, so that opening a store that is up to date need not import the package.
    """
    kept = conn.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_sqlite_migrations'").fetchone()
    if kept is None:
        return 0
    names = conn.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = ?", (SET,)).fetchall()
    return max((int(name[1:5]) for (name,) in names), default=0)


def migrate(conn: sqlite3.Connection) -> None:
    """Apply the steps that are missing. Run it in a write transaction, so that two openers do not both apply one."""
    from sqlite_utils import Database

    migrations().apply(Database(conn, execute_plugins=False))
