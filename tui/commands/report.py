"""`cachewright report`: an audit as a page to send to a colleague."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from auditor.errors import AuditError
from auditor.records import Audit
from localmodel.rules.errors import RulesError
from traces.errors import TraceError
from traces.schema import JsonObject
from tui.cli import ExitCode, fail
from tui.commands.audit import read_and_audit, warn_of, what_if_rows

if TYPE_CHECKING:
    from auditor.pricing import PriceList


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="Store to keep calls in, or, without PATH, to report on.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write one self-contained HTML page.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write Markdown; - is stdout.")
@click.option("--rules", metavar="NAME|FILE", help="Audit every call under this ruleset, not under its provider's own.")
@click.option("--prices", type=click.Path(path_type=Path), help="Price file of your own; it wins over the built-in.")
@click.option("--no-store", is_flag=True, help="Leave the store alone.")
def command(
    paths: tuple[Path, ...],
    db: Path | None,
    html: Path | None,
    markdown: Path | None,
    rules: str | None,
    prices: Path | None,
    no_store: bool,
) -> None:
    """Write an audit as a page: the bill, the timeline, why tokens were paid for again, and what would have saved them.

    PATH is what `audit` takes; without it the store is reported on. The numbers are those of `audit --json`.
    """
    if html is None and markdown is None:
        raise click.UsageError("name the page to write: --html FILE or --markdown FILE")
    from auditor.excerpt import excerpts
    from auditor.pricing import open_prices
    from localmodel.rules.book import Rulebook
    from localmodel.rules.load import load

    try:
        book, price_list = Rulebook(load(rules) if rules else None), open_prices(prices)
        with contextlib.ExitStack() as stack:
            result, body_of = read_and_audit(stack, paths, db, no_store, book)
            around = excerpts(result, body_of)
    except (TraceError, RulesError, AuditError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not result.calls:
        fail("no calls to report on", ExitCode.UNREADABLE)
    warn_of(result)
    report, title = _report(result, price_list), ", ".join(map(str, paths)) or str(db or "store")
    if html is not None:
        from auditor.html import page

        _write(html, page(report, title, around))
    if markdown is not None:
        from auditor.markdown import page as markdown_page

        _write(markdown, markdown_page(report, title))


def _report(result: Audit, price_list: "PriceList") -> JsonObject:
    """The report as `audit --json` prints it: what is shown elsewhere can then not differ from it."""
    import json

    from auditor.money import Money
    from auditor.report import lines
    from auditor.totals import totals

    money = Money(result.calls, price_list)
    rows = what_if_rows(result, money)
    report: JsonObject = json.loads(b"".join(lines(result, totals(result.calls, money), rows, money)))
    return report


def _write(path: Path, text: str) -> None:
    """Write a page. Prompts are private: the file is readable by its owner only."""
    data = text.encode("utf-8", "backslashreplace")
    if str(path) == "-":
        click.echo(data, nl=False)
        return
    try:
        path.touch(mode=0o600)
        path.write_bytes(data)
    except OSError as error:
        fail(f"{path}: cannot be written ({error.strerror}); name a file in a writable folder", ExitCode.UNREADABLE)
