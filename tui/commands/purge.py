"""`cachewright purge`: recorded calls deleted, with nothing left in the file."""

import re
from pathlib import Path

import click

from tui.cli import ExitCode, fail

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(T[\d:.]+)?$")


@click.command()
@click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="Database to purge; default: the store.")
@click.option("--trace", metavar="NAME", help="Only the calls of this run.")
@click.option("--before", metavar="DAY", help="Only calls from before this day (UTC), such as 2026-11-01.")
@click.option("--all", "everything", is_flag=True, help="All calls; the file's salt is made anew too.")
def command(db: Path | None, trace: str | None, before: str | None, everything: bool) -> None:
    """Delete recorded calls for good: no copy stays in the file's free pages or in its write-ahead file.

    The file is written anew for that, which needs its size free on the disk. What a killed proxy left beside it is
    taken in first. Copies and backups are not touched.
    """
    from auditor.errors import AuditError
    from auditor.store import Store, default_path
    from tui.commands.recording import recorder, spool_of

    if everything == (trace is not None or before is not None):
        raise click.UsageError("say which calls: --trace NAME, --before DAY, or --all")
    if before is not None and not _DAY.match(before):
        raise click.UsageError(f"--before {before}: want a day, such as 2026-11-01")
    path = db or default_path()
    if not path.exists():
        fail(f"{path}: no such file", ExitCode.UNREADABLE)
    try:
        if spool_of(path).exists():
            with recorder(path):
                pass
        with Store.open(path) as store:
            count = store.purge(trace=trace, before=before)
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)
    click.echo(f"{count} calls deleted")
