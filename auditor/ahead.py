"""Reading ahead: another process reads, stores and canonicalises a large file while this one judges its calls.

Half of an audit is JSON and digests, the other half the fold over prompts; all that passes between them is what
`gather` yields. It is pickled with one memo for many calls, so that a block sent a thousand times passes once.
The protocol is a stream of pickled (kind, value) pairs on the reader's standard output; see `_Kind`.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from auditor.cycles import no_cycles
from auditor.errors import AuditError, StoreError
from auditor.gather import Gathered, gather
from auditor.store import Store
from traces import io
from traces.canonical import Interner
from traces.errors import TraceError
from traces.schema import Block, Call, Mark, Prompt
from traces.tokens import estimate

_BATCH = 64
# Both sides remember what has passed; after so many batches both forget, which bounds what the reader holds.
_FORGET = 64
_PIPE_BYTES = 2**20

_Kind: TypeAlias = Literal["calls", "forget", "rejected", "unstored", "warning", "error", "end"]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears, while a file is read, of rows left out, calls not stored, and bodies that could not be used."""

    rejected: Callable[[io.Rejected], None]
    unstored: Callable[[StoreError], None]
    warned: Callable[[str], None]


def ahead(path: Path, db: Path | None, tell: Listeners) -> Generator[Gathered, None, None]:
    """The calls of one file as `gather` yields them, read and (with `db`) stored by another process.

    Raises what reading in this process would raise, and `AuditError` where the other process dies.
    """
    program = [sys.executable, "-P", "-m", "auditor.ahead"]
    # A session of its own: Ctrl-C is this process's to answer, and the reader ends with it.
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=_PIPE_BYTES, start_new_session=True
    ) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        try:
            with suppress(BrokenPipeError):
                pickle.dump((path, db), reader.stdin)
                reader.stdin.close()
            yield from _received(reader.stdout, tell)
        except EOFError:
            raise AuditError(f"{path}: the process that read it ended with {reader.wait()}; try again") from None
        finally:
            reader.kill()  # nothing is left to do, or nobody waits for it any more


def _received(stream: IO[bytes], tell: Listeners) -> Iterator[Gathered]:
    source = pickle.Unpickler(stream)
    while True:
        kind, value = source.load()
        if kind == "calls":
            yield from value
        elif kind == "forget":
            source = pickle.Unpickler(stream)
        elif kind == "rejected":
            tell.rejected(value)
        elif kind == "unstored":
            tell.unstored(value)
        elif kind == "warning":
            tell.warned(value)
        elif kind == "error":
            raise value
        else:
            return


# Dataclasses pickle by name of field; by position they pass in a third of the time (structs do so by themselves).
_PASSED = (Prompt, Block, Mark)


def _by_position(kind: type[Any]) -> Callable[[Any], tuple[type[Any], tuple[Any, ...]]]:
    values = attrgetter(*(field.name for field in fields(kind)))
    return lambda one: (kind, values(one))


class _Sender:
    """Writes the protocol."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._table: dict[type, Callable[[Any], tuple[Any, Any]]] = {kind: _by_position(kind) for kind in _PASSED}
        self._pickler = self._new_pickler()

    def _new_pickler(self) -> pickle.Pickler:
        pickler = pickle.Pickler(self._stream, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = self._table
        return pickler

    def __call__(self, kind: _Kind, value: object = None) -> None:
        self._pickler.dump((kind, value))
        self._stream.flush()

    def forget(self) -> None:
        """Begin with an empty memo on both sides."""
        self("forget")
        self._pickler = self._new_pickler()


def _send(path: Path, db: Path | None, send: _Sender) -> None:
    with ExitStack() as stack:
        calls: Iterable[Call] = io.read(path, on_reject=lambda row: send("rejected", row))
        if db is not None:
            store = stack.enter_context(Store.open(db))
            calls = store.through(calls, lambda error: send("unstored", error))
        calls = iter(calls)
        interner, batches = Interner(estimate), 0
        while batch := list(gather(islice(calls, _BATCH), lambda text: send("warning", text), interner)):
            send("calls", batch)
            batches += 1
            if batches % _FORGET == 0:
                send.forget()
                interner = Interner(estimate)
    send("end")


def main() -> None:
    """The reading process: takes (path, db) on standard input."""
    path, db = pickle.load(sys.stdin.buffer)
    send = _Sender(sys.stdout.buffer)
    with suppress(BrokenPipeError), no_cycles():  # nobody reads any more: there is nobody to tell
        try:
            _send(path, db, send)
        except (TraceError, AuditError) as error:
            send("error", error)
    sys.stdout = None  # what could not be written is of no use


if __name__ == "__main__":
    main()
