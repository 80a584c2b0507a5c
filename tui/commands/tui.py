"""`cachewright tui`: the terminal app over the store, or over the traces named."""

import contextlib
import sys
import tempfile
from pathlib import Path

import click

from auditor.errors import AuditError
from localmodel.rules.errors import RulesError
from traces.errors import TraceError
from tui.cli import ExitCode, fail


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="Store to show; PATHs are read into it.")
def command(paths: tuple[Path, ...], db: Path | None) -> None:
    """Browse what the cache cost and why it missed, in the terminal.

    Without PATH the store is shown, and followed while calls are recorded. PATH is what `audit` takes; without --db it
    is shown from a temporary store, and yours is left alone.
    """
    from auditor.pricing import open_prices
    from auditor.store import Store, default_path
    from localmodel.rules.book import Rulebook
    from tui.queries import BUSY_S, Source

    try:
        from tui.app import CachewrightApp
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; install cachewright[tui]", ExitCode.USAGE)
    with contextlib.ExitStack() as stack:
        try:
            book = Rulebook()
            if paths and db is None:
                db = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cachewright-"))) / "tui.db"
            path = db or default_path()
            if paths:
                _import(paths, path)
            Store.open(path, busy_s=BUSY_S).close()
        except (TraceError, RulesError, AuditError) as error:
            fail(str(error), ExitCode.UNREADABLE)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            fail("tui needs a terminal; for a file or a pipe use cachewright report", ExitCode.USAGE)
        CachewrightApp(Source(path, book, open_prices()), live=not paths).run()


def _import(paths: tuple[Path, ...], db: Path) -> None:
    from localmodel.rules.book import Rulebook
    from tui.commands.audit import read_and_audit, warn_of

    with contextlib.ExitStack() as stack:
        warn_of(read_and_audit(stack, paths, db, False, Rulebook())[0])
