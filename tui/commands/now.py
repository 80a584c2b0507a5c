"""`cachewright now`: which sessions are still warm, until when, and what resuming each would cost."""

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import click

from auditor.errors import AuditError
from localmodel.rules.errors import RulesError
from traces.errors import TraceError
from tui.cli import ExitCode, fail
from tui.commands.options import echo_table, form_options, moment_option, zone_option

if TYPE_CHECKING:
    from auditor.digests import Seen
    from auditor.pricing import PriceList
    from auditor.selection import Selection
    from localmodel.rules.book import Rulebook

COLD = 10
"""Sessions that are no longer warm and are listed nevertheless: the latest ones."""


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@moment_option
@zone_option
@click.option("--rules", metavar="NAME|FILE", help="Judge every call under this ruleset, not its provider's own.")
@click.option("--prices", type=click.Path(path_type=Path), help="Price file of your own; it wins over the built-in.")
@click.option("--model", metavar="TEXT", help="Only calls of models with this text in their name.")
@click.option("--project", metavar="TEXT", help="Only calls of clients that worked in a folder with this text.")
@click.option("--all", "all_", is_flag=True, help="List all sessions, also those that ended long ago.")
@click.option("--no-store", is_flag=True, help="Leave the store alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON (schema cachewright.table/1).")
@form_options
def command(
    paths: tuple[Path, ...],
    at: datetime | None,
    tz: tzinfo,
    rules: str | None,
    prices: Path | None,
    model: str | None,
    project: str | None,
    all_: bool,
    no_store: bool,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
) -> None:
    """Say which sessions' caches are still warm, until when, and what resuming each would cost.

    PATH is as for audit; without one, the sessions that known tools keep in their own folders. A session is warm until
    the lifetime of its latest write has passed since the start of the call that last used it. resume_usd is what
    sending its input again costs as things stand, cold_usd what it costs once the cache is gone.
    """
    from auditor.pricing import open_prices
    from auditor.selection import Selection
    from auditor.warm import sessions, table, warmth
    from localmodel.rules.book import Rulebook
    from localmodel.rules.load import load

    now, quiet = at or datetime.now(UTC), as_json or as_csv or as_markdown
    try:
        book, price_list = Rulebook(load(rules) if rules else None), open_prices(prices)
        calls = _calls(paths, book, price_list, Selection(until=now, model=model, project=project), quiet, no_store)
        found = [warmth(session, book, price_list, now) for session in sessions(calls)]
    except (TraceError, RulesError, AuditError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    echo_table(table(found, tz, None if all_ else COLD), json=as_json, csv=as_csv, markdown=as_markdown)


def _calls(
    paths: tuple[Path, ...],
    book: "Rulebook",
    prices: "PriceList",
    chosen: "Selection",
    quiet: bool,
    no_store: bool,
) -> "list[Seen]":
    """All calls that were made before now, without their bodies."""
    from auditor.digests import seen_of
    from auditor.selection import selected
    from tui.commands.audit import audited, of_machine

    if not paths:
        shown, paths = of_machine(book, prices, chosen, whole=False, quiet=quiet, keep=not no_store, any_size=True)
        if shown is not None:
            return shown.seen
    result = selected(audited(paths, None, True, book), chosen)
    return [seen_of(one) for one in result.calls if not one.call.failed]
