"""Sessions on disk: read in parallel, audited one by one, kept as digests, so that only changed ones are read again.

A session is the file of its main conversation with the files of its sub-agents. Its stamp is what tells versions of
these files apart (name, inode, size, time of change). Sessions that hold copies of each other's responses (forks,
resumed ones) are audited together, whether they changed or not.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from auditor.cycles import no_cycles
from auditor.digests import FORMAT, Digest, decode, digest_of, encode
from auditor.records import start_of
from localmodel.rules.book import Rulebook
from traces.errors import TraceError
from traces.lines import Rejected
from traces.schema import Call

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

Kept: TypeAlias = Mapping[str, tuple[bytes, bytes]]
"""Stamp and encoded digest by the name of a session."""

WORTH_WORKERS = 4_000_000
"""Bytes to read from which on starting more processes pays."""

CHUNKS = 8
"""Portions of work for each process: the last one to finish has little left."""


@dataclass(slots=True)
class Session:
    """A session's files with their sizes, and its stamp. `name` is the path of its main file without the ending."""

    name: str
    files: list[str] = field(default_factory=list)
    size: int = 0
    stamp: bytes = b""


@dataclass(slots=True)
class Read:
    """Digests of all sessions: those read now (to be kept), and all that count, in order of their names."""

    fresh: dict[str, tuple[bytes, bytes]]
    digests: list[Digest]
    bodies: bool


def sessions_of(files: Iterable[str], basis: bytes) -> list[Session]:
    """Sessions by name. `basis` is what else a digest depends on (rules); files that vanish meanwhile are left out."""
    found: dict[str, Session] = {}
    marks: dict[str, list[str]] = {}
    for path in files:
        try:
            status = os.stat(path)  # noqa: PTH116 -- thousands of them: a path object each would double the time
        except OSError:
            continue
        name = _name(path)
        session = found.get(name)
        if session is None:
            session = found[name] = Session(name)
            marks[name] = []
        session.files.append(path)
        session.size += status.st_size
        marks[name].append(f"{path}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}{_pending(path)}")
    for name, session in found.items():
        session.files.sort()
        text = "\n".join(sorted(marks[name])).encode("utf-8", "surrogateescape")
        session.stamp = blake2b(text, digest_size=16, key=basis[:64]).digest()
    return [found[name] for name in sorted(found)]


def basis_of(book: Rulebook) -> bytes:
    """What digests depend on beside the files: the rules and the digests' own format."""
    return blake2b(f"{FORMAT}\0{book.basis}".encode(), digest_size=16).digest()


def read(sessions: list[Session], kept: Kept, book: Rulebook, workers: int | None = None) -> Read:
    """Digests of sessions: the kept ones where nothing changed, else read and audited now.

    `workers` is the number of processes, by default one for each core where there is enough to read.
    """
    changed = [one for one in sessions if kept.get(one.name, (b"", b""))[0] != one.stamp]
    fresh, digests = dict[str, tuple[bytes, bytes]](), dict[str, Digest]()
    for one, made in _digested(changed, book, workers):
        fresh[one.name], digests[one.name] = (one.stamp, made), decode(made)  # while others are still read
    digests |= {one.name: decode(kept[one.name][1]) for one in sessions if one.name not in fresh}
    for group in _overlapping(sessions, digests):
        joint = _audited([file for one in group for file in one.files], book)
        for one in group:
            del digests[one.name]
        digests[group[0].name] = joint
    ordered = [digests[name] for name in sorted(digests)]
    return Read(fresh, ordered, any(digest.bodies for digest in ordered))


def _pending(path: str) -> str:
    """The mark of the write-ahead file of an SQLite database, where changes stand before the file itself changes."""
    if not path.endswith(".db"):
        return ""
    try:
        status = Path(f"{path}-wal").stat()
    except OSError:
        return ""
    return f"\0{status.st_size}\0{status.st_mtime_ns}"


def _name(path: str) -> str:
    """The session of a file: sub-agents' files stand in a folder that has the name of the session's own file."""
    head, mark, _ = path.partition("/subagents/")
    return head if mark else path.removesuffix(".jsonl")


def _digested(changed: list[Session], book: Rulebook, workers: int | None) -> Iterator[tuple[Session, bytes]]:
    size = sum(one.size for one in changed)
    count = workers or (os.cpu_count() or 1 if size >= WORTH_WORKERS else 1)
    if count == 1:
        with no_cycles():
            for one in changed:
                yield one, encode(_audited(one.files, book))
        return
    from concurrent.futures import ProcessPoolExecutor

    _reading()  # once here, and not in each process
    portions = _portions(changed, count * CHUNKS)
    with ProcessPoolExecutor(count, mp_context=_context()) as pool:
        results = pool.map(_portion, ([one.files for one in each] for each in portions), [book] * len(portions))
        for portion, made in zip(portions, results, strict=True):
            yield from zip(portion, made, strict=True)


def _context() -> "BaseContext":
    """How processes are started: forked where that is quick and safe, which beside other threads it is not."""
    from multiprocessing import get_context

    alone = sys.platform == "linux" and threading.active_count() == 1
    return get_context("fork" if alone else "spawn")


def _portions(sessions: list[Session], count: int) -> list[list[Session]]:
    """Sessions in portions of about equal size."""
    portions: list[list[Session]] = [[]]
    share, size = sum(one.size for one in sessions) / count, 0
    for one in sessions:
        portions[-1].append(one)
        size += one.size
        if size >= share * len(portions) and one is not sessions[-1]:
            portions.append([])
    return portions


def _portion(sessions: list[list[str]], book: Rulebook) -> list[bytes]:
    with no_cycles():
        return [encode(_audited(files, book)) for files in sessions]


def _reading() -> None:
    """Load what reading and judging needs."""
    import traces.importers.claude_code
    import traces.sessions  # noqa: F401


def _audited(files: list[str], book: Rulebook) -> Digest:
    """Read and audit files as one trace set; what cannot be read is a remark."""
    from auditor.audit import judge  # what reading needs is not loaded where nothing changed
    from auditor.gather import gather
    from traces.sessions import distinct, read_session

    remarks: list[str] = []

    def on_reject(row: Rejected) -> None:
        remarks.append(row.told)

    def calls() -> Iterator[Call]:
        for path in files:
            try:
                yield from read_session(path, on_reject)
            except (TraceError, OSError) as error:
                remarks.append(f"{error}")

    # In order before they are judged: sub-agents' files come after the conversation that they interrupt, and a fold
    # that meets an earlier call has to begin anew.
    warnings: list[str] = []
    gathered = sorted(gather(distinct(calls()), warnings.append), key=lambda one: start_of(one[0]))
    return digest_of(judge(gathered, book, lambda _: None, warnings), remarks)


def _overlapping(sessions: list[Session], digests: Mapping[str, Digest]) -> list[list[Session]]:
    """Groups of sessions that hold copies of one response."""
    counts = Counter(seen.id for digest in digests.values() for seen in digest.calls)
    if len(counts) == counts.total():
        return []
    groups: dict[str, list[Session]] = {}
    owner: dict[bytes, list[Session]] = {}
    for one in sessions:
        group = groups[one.name] = [one]
        for copy in {seen.id for seen in digests[one.name].calls if counts[seen.id] > 1}:
            other = owner.get(copy)
            if other is not None and other is not group:
                other += group
                for each in group:
                    groups[each.name] = other
                    owner.update((name, other) for name, known in owner.items() if known is group)
                group = other
            owner[copy] = group
    unique = {id(group): group for group in groups.values() if len(group) > 1}
    return list(unique.values())
