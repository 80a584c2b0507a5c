"""Sessions of other tools: their files, many and small, and the copies of responses that several of them hold.

Apart from `traces.io`, which checks native rows: what that takes is not loaded where only sessions are read.
"""

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


def read_as(reader: Reader, path: Path, *, on_reject: OnReject | None) -> Iterator[Call]:
    """Calls of a file that an importer knows, read by its `read`. They all have facts, which native ones need not."""
    for call in reader(path, on_reject=on_reject):
        yield call if call.facts is not None else replace(call, facts={})


def read_session(path: str, on_reject: OnReject) -> Iterator[Call]:
    """Calls of another tool's file, none where no importer knows it. Raises `OSError` or `UnreadableInput`.

    For thousands of small files: most are opened once, and what was read to tell the format is not read again.
    """
    with open(path, "rb") as file:  # noqa: PTH123 -- a path object for each would take as long as reading it
        head = file.read(_HEAD)
        importer = importer_of(head)
        if importer is None:
            return
        from_open = getattr(importer, "read_open", None)
        if from_open is not None:
            if len(head) == _HEAD:
                file.seek(0)
            yield from from_open(file if len(head) == _HEAD else BytesIO(head), path, on_reject=on_reject)
            return
    yield from read_as(importer.read, Path(path), on_reject=on_reject)


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
