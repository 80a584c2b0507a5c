"""What `record`, `proxy` and the tests of both put together: database, recorder, watch, metrics, spans.

The harness knows no store and the auditor no proxy; here one is handed to the other.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from auditor.errors import AuditError
from auditor.store import Store, default_path
from harness.errors import RecordingFailed
from harness.metrics import Metrics
from harness.proxy.routes import Routes
from harness.proxy.serve import Proxy
from harness.recorder.recorder import Recorder, Seen
from harness.recorder.tap import Tap
from traces.exchange import Exchange
from tui.cli import warn

OTLP_SETTINGS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def spool_of(db: Path) -> Path:
    """The folder of a database's spool, beside it."""
    return db.with_name(f"{db.name}-spool")


class Database:
    """The store as a recorder needs it: opened and written by the recorder's own thread, opened anew after a fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None

    def salt(self) -> bytes:
        """The file's salt, making the file where there is none. Raises AuditError."""
        with Store.open(self.path) as store:
            return store.salt()

    def save(self, exchanges: Sequence[Exchange]) -> None:
        """Store exchanges in one transaction. Raises RecordingFailed."""
        try:
            if self._store is None:
                self._store = Store.open(self.path)
            self._store.record(exchanges)
        except AuditError as error:
            store, self._store = self._store, None
            if store is not None:
                store.close()
            raise RecordingFailed(str(error)) from None


@contextlib.contextmanager
def recording(
    routes: Routes,
    db: Path | None,
    *,
    redact: bool = False,
    watch: bool = False,
    say: Callable[[str], None] = warn,
) -> Iterator[Proxy]:
    """A proxy that records into `db`; at the end all that is finished is stored. Raises AuditError for the file."""
    database = Database(db or default_path())
    salt = database.salt()
    metrics = Metrics()
    seen: list[Seen] = [metrics.count]
    on_request: Callable[[Tap, bytes], None] | None = None
    with contextlib.ExitStack() as stack:
        if watch:
            from tui.commands.watching import Watch

            watcher = stack.enter_context(Watch(say))
            seen.append(watcher.take)
        if any(os.environ.get(name) for name in OTLP_SETTINGS):
            from harness.otlp import Spans

            try:
                seen.append(stack.enter_context(Spans()).take)
            except ImportError as error:
                say(f"no spans are exported: {error.name} is missing; pip install 'cachewright[otlp]'")
        folder = spool_of(database.path)
        recorder = Recorder(folder, salt, database.save, redact=redact, seen=seen, on_request=on_request, warn=say)
        recorder.start()
        try:
            yield Proxy(routes, recorder, metrics)
        finally:
            recorder.close()
            for reason, count in sorted(recorder.health.gaps.items()):
                say(f"{count} calls were not recorded: {reason}")
