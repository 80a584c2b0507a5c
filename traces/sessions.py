"""Sessions of other tools: their files, many and small, and the copies of responses that several of them hold.

Apart from `traces.io`, which checks native rows: what that takes is not loaded where only sessions are read.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from traces.importers.registry import importer_of
from traces.lines import OnReject
from traces.schema import Call

Reader: TypeAlias = Callable[..., Iterator[Call]]
"""`read` of an importer (`traces.importers.registry`)."""

_HEAD = 2**16
# Files up to this size are read at once.
_WHOLE = 2**22


def read_as(reader: Reader, path: Path, *, on_reject: OnReject | None) -> Iterator[Call]:
    """Calls of a file that an importer knows, read by its `read`. They all have facts, which native ones need not."""
    for call in reader(path, on_reject=on_reject):
        yield call if call.facts is not None else replace(call, facts={})


def read_session(path: str, on_reject: OnReject) -> Iterator[Call]:
    """Calls of another tool's file, none where no importer knows it. Raises `OSError` or `UnreadableInput`.

    For thousands of small files: most are opened once, and what was read to tell the format is not read again.
    """
    start, whole = _start(path)
    importer = importer_of(start[:_HEAD])
    if importer is None:
        return
    from_open = getattr(importer, "read_open", None)
    if from_open is None or not whole:
        yield from read_as(importer.read, Path(path), on_reject=on_reject)
    else:
        yield from from_open(BytesIO(start), path, on_reject=on_reject)


def _start(path: str) -> tuple[bytes, bool]:
    """A file's first bytes, and whether they are all of it. Without a file object, which takes as long as the rest."""
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        start = os.read(file, min(size, _WHOLE) + 1)
    finally:
        os.close(file)
    return start, len(start) == size


def distinct(calls: Iterable[Call], seen: set[object] | None = None) -> Iterator[Call]:
    """Calls without the copies of responses that several transcripts hold (forks, resumes, snapshots), the first stays.

    `seen` is what `is_copy` remembers.
    """
    seen = set() if seen is None else seen
    return (call for call in calls if not is_copy(call, seen))


def is_copy(call: Call, seen: set[object]) -> bool:
    """Whether a call is the copy of one that `seen` remembers, which takes it in: 100 bytes each.

    Only calls of other tools' files, whose ids are those of responses, have copies. A call of unknown usage may have no
    response and then is called by its row, as others in files of the same name are: it is no copy.
    """
    usage = call.usage
    if call.facts is None or "native" in call.facts or usage.input_tokens is None:
        return False
    key = (call.id, usage.input_tokens, usage.read_tokens, usage.write_tokens)
    known = key in seen
    seen.add(key)
    return known
