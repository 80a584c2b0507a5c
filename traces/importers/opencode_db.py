"""OpenCode's SQLite store (`opencode.db`, from 1.2): tables session, message and part, JSON in `data`.

It is opened read-only, beside a running OpenCode; what its write-ahead log holds is read too where the folder allows.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from traces import rows
from traces.errors import MalformedRow, UnreadableInput
from traces.importers.opencode import Session, calls_of_message
from traces.importers.reading import reject
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Place

NAME = "opencode_db"
_MAGIC = b"SQLite format 3\x00"
_MESSAGES = """
    SELECT m.rowid, m.id, m.session_id, m.data, s.parent_id
    FROM message m LEFT JOIN session s ON s.id = m.session_id ORDER BY m.session_id, m.time_created, m.id
"""
_STEPS = "SELECT data FROM part WHERE message_id = ? AND instr(data, '\"step-') ORDER BY id"


def sniff(head: bytes) -> bool:
    """An SQLite file whose schema has OpenCode's tables and columns."""
    return head.startswith(_MAGIC) and all(word in head for word in (b"session_id", b"message_id", b"project_id"))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """The calls of all sessions, session by session. Raises `UnreadableInput` for a store of another layout."""
    try:
        session, latest = Session(path.stem), None
        with closing(_opened(path, on_reject)) as store:
            for row, name, session_id, data, parent in store.execute(_MESSAGES):
                place = Place(f"{path}", row)
                if session_id != latest:
                    session, latest = Session(path.stem), session_id
                    session.learn({"id": session_id, "parentID": parent})
                try:
                    steps = [_json(step, "part") for (step,) in store.execute(_STEPS, (name,))]
                    found = list(calls_of_message(session, place, _json(data, "data") | {"id": name}, steps, ""))
                except MalformedRow as error:
                    reject(on_reject, place, f"message {name!a:.80}: {error}")
                    continue
                yield from found
    except sqlite3.Error as error:
        reason = f"{error}".splitlines()[0] if f"{error}" else "damaged"
        raise UnreadableInput(f"{path}: cannot be read as OpenCode's store ({reason})") from None


def _opened(path: Path, on_reject: OnReject | None) -> sqlite3.Connection:
    """Read-only; where the folder does not allow the files that a write-ahead log needs, without that log."""
    place = quote(f"{path.absolute()}")
    store = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
    try:
        store.execute("SELECT 1 FROM message LIMIT 1")
    except sqlite3.OperationalError as error:
        store.close()
        if "unable to open" not in f"{error}" and "readonly" not in f"{error}":
            raise
        store = sqlite3.connect(f"file:{place}?immutable=1", uri=True)
        if path.with_name(f"{path.name}-wal").exists():
            reject(on_reject, Place(f"{path}", 1), "the folder is read-only: the latest messages, still in -wal, are "
                   "left out", kept=True)  # fmt: skip
    return store


def _json(data: object, name: str) -> JsonObject:
    raw = data.encode(errors="replace") if isinstance(data, str) else data
    value = rows.loads(raw) if isinstance(raw, bytes) else None
    if not isinstance(value, dict):
        raise MalformedRow(f"{name} is no JSON object")
    return value
