"""What `record`, `proxy` and programs that record in process put together: database, recorder, watch, metrics, spans.

The harness knows no store and the auditor no proxy; here one is handed to the other.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import auditor.visible  # noqa: F401  `warn` needs it, and may be called when no more file can be opened
from auditor.errors import AuditError
from auditor.store import Store, default_path
from harness.errors import RecordingFailed
from harness.proxy.metrics import Metrics
from harness.proxy.routes import Routes
from harness.proxy.serve import Proxy
from harness.recorder.recorder import Recorder, Seen
from traces.exchange import Exchange
from tui.cli import warn

Say = Callable[[str], None]

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
            self.close()
            raise RecordingFailed(str(error)) from None

    def close(self) -> None:
        """Close the file; to be called by the thread that saves."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


@contextlib.contextmanager
def recorder(
    db: Path | None = None, *, redact: bool = False, seen: Sequence[Seen] = (), say: Say = warn
) -> Iterator[Recorder]:
    """A recorder that writes to `db` (default: the store); at the end all that is finished is stored.

    Raises AuditError for a file that cannot be used.
    """
    database = Database(db or default_path())
    salt = database.salt()
    made = Recorder(
        spool_of(database.path), salt, database.save, closed=database.close, redact=redact, seen=seen, warn=say
    )
    made.start()
    try:
        yield made
    finally:
        made.close()
        for reason, count in sorted(made.health.gaps.items()):
            say(f"{count} calls were not recorded: {reason}")


@contextlib.contextmanager
def recording(
    routes: Routes, db: Path | None, *, redact: bool = False, watch: bool = False, say: Say = warn
) -> Iterator[Proxy]:
    """A proxy that records into `db`. Raises AuditError for a file that cannot be used."""
    metrics = Metrics()
    seen: list[Seen] = [metrics.count]
    with contextlib.ExitStack() as stack:
        if any(os.environ.get(name) for name in OTLP_SETTINGS):
            from harness.recorder.otlp import Spans

            try:
                seen.append(stack.enter_context(Spans()).take)
            except ImportError as error:
                say(f"no spans are exported: {error.name} is missing; pip install 'cachewright[otlp]'")
        proxy = Proxy(routes, metrics)
        if watch:
            from tui.commands.watching import Watch

            seen.append(stack.enter_context(Watch(say, proxy.busy)).take)
        proxy.recorder = stack.enter_context(recorder(db, redact=redact, seen=seen, say=say))
        yield proxy
