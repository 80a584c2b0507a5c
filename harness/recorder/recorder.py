"""The recorder: taps for the proxy's event loop, and a thread that turns finished calls into rows of the database.

Nothing here can stop the traffic. Where a call cannot be spooled, it goes on unrecorded and is counted as a gap; where
the database fails, finished calls wait in the spool, and the next recorder of that database stores them.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex

from harness.errors import RecordingFailed
from harness.recorder.build import exchange_of
from harness.recorder.journal import Journal, Record, Segment, left_behind
from harness.recorder.links import Links
from harness.recorder.secrets import Masker
from harness.recorder.tap import Opened, T, Tap
from traces.exchange import Exchange

Save = Callable[[Sequence[Exchange]], None]
"""Stores exchanges in one transaction. Raises RecordingFailed."""

Seen = Callable[[Exchange], None]
"""Hears of each exchange once it is stored, in the recorder's thread."""

BATCH_CALLS = 16
BATCH_BYTES = 8_000_000

PAUSE_S = 0.03
"""Calls are stored when none has finished for this long …"""

PATIENCE_S = 2.0
MOST_WAITING = 2000
"""… or after this many seconds or finished calls, whichever comes first."""

REST = 3.0
"""Rest after a batch, in its own processor time: one interpreter does both, and traffic comes first."""

MOST_REST_S = 0.2

RETRY_S = 1.0
WARN_EVERY_S = 10.0


@dataclass(slots=True)
class Health:
    """What was recorded and what was not, since the start."""

    stored: int = 0
    recovered: int = 0
    waiting: int = 0
    gaps: Counter[str] = field(default_factory=Counter)


class Recorder:
    """Records calls into the database that `save` writes to; `folder` is its spool.

    `save`, `closed` (once, at the end) and `seen` are called in the recorder's own thread, `warn` in any.
    """

    def __init__(
        self,
        folder: Path,
        salt: bytes,
        save: Save,
        *,
        closed: Callable[[], None] = lambda: None,
        redact: bool = False,
        seen: Sequence[Seen] = (),
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.masker = Masker(salt)
        self.redact = redact
        self.lock = threading.Lock()
        self.health = Health()
        self._journal = Journal(folder)
        self._save = save
        self._closed = closed
        self._seen = seen
        self._warn = warn
        self._warned: dict[str, float] = {}
        self._number = 0
        self._name, self._numbers = token_hex(5), count(1)
        self._seq = 0
        self._links = Links()
        self._queue: SimpleQueue[Tap | None] = SimpleQueue()
        self._closing = False
        self._aside = ThreadPoolExecutor(1, "masking")
        self._thread = threading.Thread(target=self._until_closed, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to store; what a killed recorder left in the spool comes first."""
        self._thread.start()

    def open(self, opened: Opened) -> Tap:
        """A tap for a request that is about to be forwarded."""
        return Tap(self, opened, f"call_{self._name}{next(self._numbers):06x}")

    def place(self) -> tuple[Segment, int]:
        """A segment of the spool and a number for a call that begins. Raises OSError."""
        self._number += 1
        return self._journal.segment(), self._number

    def aside(self, step: Callable[[], T]) -> Future[T]:
        """Run a step beside the event loop, after those before it."""
        return self._aside.submit(step)

    def finished(self, tap: Tap) -> None:
        """A call is whole in the spool."""
        self.health.waiting += 1
        self._queue.put(tap)

    def gap(self, reason: str) -> None:
        """A call is not recorded, for this reason."""
        self.health.gaps[reason] += 1
        self.say(f"a call was not recorded: {reason}; it went on ({self.health.gaps[reason]} such calls)", reason)

    def close(self, patience_s: float = 30.0) -> None:
        """Store what is finished, then stop. What cannot be stored stays in the spool, and is said."""
        self._aside.shutdown()
        self._queue.put(None)
        self._thread.join(patience_s)
        self._journal.close()
        if self.health.waiting:
            self._warn(
                f"{self._journal.folder}: {self.health.waiting} recorded calls are not in the database yet;"
                " the next proxy on it stores them"
            )

    def say(self, message: str, about: str) -> None:
        """Warn, at most once in a while about one thing."""
        now = time.monotonic()
        if now - self._warned.get(about, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned[about] = now
            self._warn(message)

    def _until_closed(self) -> None:
        try:
            self._run()
        finally:
            self._closed()

    def _run(self) -> None:
        """The thread: recover, then store batch by batch until the end mark."""
        with contextlib.suppress(RecordingFailed, OSError):
            self.health.recovered = left_behind(self._journal.folder, self._recover)
        batch: list[Tap] = []
        while True:
            if not batch:
                batch = self._gather()
            begun = time.thread_time()
            batch = self._store(batch)
            self._rest(time.thread_time() - begun)
            if self._closing and (batch or self._queue.empty()):
                return
            if batch:
                time.sleep(RETRY_S)

    def _gather(self) -> list[Tap]:
        """At least one finished call, and those that finish soon after it."""
        first = None if self._closing else self._queue.get()
        if first is None:
            self._closing = True
        else:
            self._let_pass()
        batch, size = ([first], _size(first)) if first is not None else ([], 0)
        with contextlib.suppress(Empty):
            while len(batch) < BATCH_CALLS and size < BATCH_BYTES:
                tap = self._queue.get_nowait()
                if tap is None:
                    self._closing = True
                else:
                    batch.append(tap)
                    size += _size(tap)
        return batch

    def _let_pass(self) -> None:
        """Wait for a pause in the traffic: one interpreter does both, and finished calls are safe in the spool."""
        until, before = time.monotonic() + PATIENCE_S, -1
        while not self._closing and time.monotonic() < until and before != self.health.waiting < MOST_WAITING:
            before = self.health.waiting
            time.sleep(PAUSE_S)

    def _rest(self, worked_s: float) -> None:
        """Leave the interpreter to the traffic, unless calls pile up."""
        if not self._closing and 0 < self.health.waiting < MOST_WAITING:
            time.sleep(min(REST * worked_s, MOST_REST_S))

    def _store(self, batch: list[Tap]) -> list[Tap]:
        """Store a batch; returns the calls to try again later."""
        built = [(tap, self._built(list(tap.segment.read(tap.places)))) for tap in batch if tap.segment is not None]
        exchanges = [exchange for _, exchange in built if exchange is not None]
        try:
            self._save(exchanges)
        except RecordingFailed as error:
            return self._store_each(built, error)
        for tap, exchange in built:
            self._done(tap, exchange)
        return []

    def _store_each(self, built: list[tuple[Tap, Exchange | None]], error: RecordingFailed) -> list[Tap]:
        """The batch was refused: one call that no store can hold must not keep the others out."""
        stored, refused = [], []
        for tap, exchange in built if len(built) > 1 else ():
            try:
                self._save([exchange] if exchange is not None else [])
                stored.append((tap, exchange))
            except RecordingFailed:
                refused.append((tap, exchange))
        for tap, exchange in stored:
            self._done(tap, exchange)
        if stored and refused:
            for tap, _ in refused:
                self.gap("the database refuses it")
                self._done(tap, None)
            return []
        self.say(f"not stored yet: {error}; {self.health.waiting} calls wait in {self._journal.folder}", "database")
        return [tap for tap, _ in built]

    def _done(self, tap: Tap, exchange: Exchange | None) -> None:
        self.health.waiting -= 1
        if tap.segment is not None:
            tap.segment.release()
        if exchange is not None:
            self._tell(exchange)

    def _tell(self, exchange: Exchange) -> None:
        self.health.stored += 1
        for seen in self._seen:
            try:
                seen(exchange)
            except Exception as error:  # a watcher's fault is no reason to stop recording
                self.say(f"{getattr(seen, '__qualname__', 'a watcher')}: {type(error).__name__}", "watcher")

    def _built(self, records: list[Record]) -> Exchange | None:
        self._seq += 1
        try:
            return exchange_of(records, self._links, self._seq)
        except Exception as error:  # the spool's bytes are ours, their content is anybody's
            self.gap(f"{type(error).__name__} in reading it back")
            return None

    def _recover(self, calls: list[list[Record]]) -> None:
        """Store what a killed recorder left; calls that it did not finish are marked as interrupted."""
        exchanges = [exchange for records in calls if (exchange := self._built(records)) is not None]
        self._save(exchanges)
        for exchange in exchanges:
            self._tell(exchange)


def _size(tap: Tap) -> int:
    return sum(length for _, length in tap.places)
