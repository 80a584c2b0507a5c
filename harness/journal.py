"""The session's journal: one JSON line an event, append-only, on the disk before anything rests on it.

    head        the session begins: schema, id, agent, target, model, settings, head fields and their digest
    tools       the head was changed on purpose: new fields, digest and why (deferred tools leave the digest as it was)
    turn        wire items appended to the conversation, with the running identity of all turns
    attempt     a request is about to be sent: id, purpose, digest of its body
    result      one call of the last answer has ended; the turn with all results follows
    compacted   all turns so far are replaced by these (the old ones stay in the file)

A line that a killed process left torn is cut off when the session is resumed; everything before it is used byte for
byte, and a turn whose running identity does not come out again is an error, never a different request.
"""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from harness.errors import BadSetting, JournalDamaged
from harness.wire import Turn, chained, head_digest
from traces.canonical import dump
from traces.schema import JsonObject

SCHEMA = "cachewright.session/1"


@dataclass(slots=True)
class State:
    """What a journal says so far."""

    head: JsonObject = field(default_factory=dict)
    fields: JsonObject = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    chain: str = ""
    attempts: list[JsonObject] = field(default_factory=list)
    pending: JsonObject | None = None
    """The last attempt, while no turn has followed it."""


class Journal:
    """Appends lines to one file; each is on the disk when the method returns. One process at a time writes it.

    Raises `JournalDamaged` where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = private(path)

    def write(self, kind: str, /, **members: object) -> None:
        """Append one line and wait until the disk has it."""
        append(self._file, {"type": kind, **members})

    def turn(self, turn: Turn, chain: str) -> None:
        """Append a turn; `chain` is the running identity including it."""
        self.write("turn", role=turn.role, chain=chain, items=list(turn.items))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def append(file: BinaryIO, row: JsonObject) -> None:
    """One JSON line, on the disk when this returns. Raises `MalformedRow` for what is no JSON."""
    append_line(file, dump(row) + b"\n")


def append_line(file: BinaryIO, line: bytes) -> None:
    """A whole line or none: on a full disk the part that went in is cut off again. Raises `JournalDamaged`."""
    size = os.fstat(file.fileno()).st_size
    try:
        written = file.write(line)
        while written < len(line):
            written += file.write(line[written:])
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise JournalDamaged(f"{file.name}: cannot be written ({error.strerror}); make room and --resume") from None


def private(path: Path) -> BinaryIO:
    """The file at `path` for appending, its torn last line cut off, locked against other processes. Prompts are
    private, so the owner alone may read it. Raises `JournalDamaged`, `BadSetting` where another process has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise BadSetting(f"{path}: cannot be written ({error.strerror}); name another --db") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = whole_lines(path)
        if whole != path.stat().st_size:
            os.ftruncate(file.fileno(), whole)
    except BlockingIOError:
        file.close()
        raise BadSetting(f"{path}: another process holds this session; wait for it, or --fork") from None
    return file


def whole_lines(path: Path) -> int:
    """Bytes up to the end of the last whole line: a killed process leaves a torn one."""
    return path.read_bytes().rfind(b"\n") + 1


def read(path: Path) -> State:
    """What the journal at `path` says; the file stays as it is. Raises `JournalDamaged` naming the line."""
    try:
        lines = path.read_bytes()[: whole_lines(path)].splitlines()
    except OSError as error:
        raise JournalDamaged(f"{path}: cannot be read ({error.strerror}); name a session that exists") from None
    state = State()
    for number, line in enumerate(lines, 1):
        try:
            _take(state, orjson.loads(line))
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise JournalDamaged(f"{path}:{number}: no line of a journal ({error!r}); start a new session") from None
        except JournalDamaged as error:
            raise JournalDamaged(f"{path}:{number}: {error}") from None
    if not state.head:
        raise JournalDamaged(f"{path}: has no head; start a new session")
    return state


def _take(state: State, row: JsonObject) -> None:
    kind = row["type"]
    if kind == "head":
        if row["schema"] != SCHEMA:
            raise JournalDamaged(f"schema is {row['schema']!r}, this program reads {SCHEMA}")
        state.head = row
    if kind in ("head", "tools"):
        state.fields = row["fields"]
        if head_digest(state.fields) != row["digest"]:
            raise JournalDamaged("the head is not the one that was sent; start a new session")
    elif kind == "turn":
        turn = Turn(row["role"], tuple(row["items"]))
        state.chain = chained([turn], state.chain)
        if state.chain != row["chain"]:
            raise JournalDamaged("the turn is not the one that was sent; start a new session")
        state.turns.append(turn)
        state.pending = None
    elif kind == "attempt":
        state.attempts.append(row)
        state.pending = row if row["kind"] in ("main", "subagent") else state.pending
    elif kind == "compacted":
        state.turns = [Turn(one["role"], tuple(one["items"])) for one in row["turns"]]
        state.chain = chained(state.turns)
        if state.chain != row["chain"]:
            raise JournalDamaged("the compacted history is not the one that was sent; start a new session")
        state.pending = None
