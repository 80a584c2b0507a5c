"""Reading the files named on a command line, with everything that had to be left out said on stderr."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from auditor.errors import StoreError
from auditor.gather import Gathered, gather
from auditor.store import Store
from traces import io
from traces.errors import TraceError
from traces.schema import Call
from tui.cli import warn
from tui.commands.options import MOST_NAMED

LARGE_BYTES = 16 * 2**20
"""A smaller file is read before another process has started."""


class Reading:
    """One command's reading of its files, into `store` too where there is one; at its end it counts what it unnamed.

    `warnings` fills up, while the calls stream, with the bodies that could not be used, `rejected` with the rows.
    """

    def __init__(self, store: Store | None) -> None:
        self.warnings: list[str] = []
        self.rejected: list[io.Rejected] = []
        self._store = store
        self._unstored = self._read = 0
        self._seen: set[object] = set()
        self._unreadable: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if len(self.rejected) > MOST_NAMED:
            warn(f"… and {len(self.rejected) - MOST_NAMED:,} more rows with remarks")
        if self._unstored > MOST_NAMED:
            warn(f"… and {self._unstored - MOST_NAMED:,} more calls not stored")

    def calls(self, paths: Iterable[Path]) -> Iterator[Gathered]:
        """Calls of all files. Raises `TraceError` where none of them gave any; a file that gave none is named."""
        files = io.find(paths)
        large = [path for path in files if _worth_a_process(path)]
        for path in large:
            yield from self._ahead(path)
        calls = io.distinct(self._small([path for path in files if path not in large]), self._seen)
        if self._store is not None:
            calls = self._store.through(calls, self._on_unstored)
        yield from gather(calls, self.warnings.append)
        for message in self._unreadable if self._read else self._unreadable[:-1]:
            warn(message)
        if self._unreadable and not self._read:
            raise TraceError(self._unreadable[-1])

    def _small(self, paths: list[Path]) -> Iterator[Call]:
        for path in paths:
            try:
                for call in io.read(path, on_reject=self._on_reject):
                    self._read += 1
                    yield call
            except TraceError as error:
                self._unreadable.append(str(error))

    def _ahead(self, path: Path) -> Iterator[Gathered]:
        from auditor.ahead import Listeners, ahead

        db = self._store.path if self._store is not None and self._store.working else None
        try:
            for one in ahead(path, db, Listeners(self._on_reject, self._on_unstored, self.warnings.append)):
                self._read += 1
                if not io.is_copy(one[0], self._seen):
                    yield one
        except TraceError as error:
            self._unreadable.append(str(error))

    def _on_reject(self, row: io.Rejected) -> None:
        self.rejected.append(row)
        if len(self.rejected) <= MOST_NAMED:
            warn(row.told)

    def _on_unstored(self, error: StoreError) -> None:
        self._unstored += 1
        if self._unstored <= MOST_NAMED:
            warn(f"not stored: {error}")


def _worth_a_process(path: Path) -> bool:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors > 1 and io.plain_size(path) >= LARGE_BYTES
