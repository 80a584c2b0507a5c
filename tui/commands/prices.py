"""`cachewright prices`: what a model costs, by date, and what our price list corrects."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from tui.cli import ExitCode, fail
from tui.commands.options import echo_json, moment_option


@click.group()
def command() -> None:
    """Show the dated prices of a model; check the price list."""


@command.command()
@click.argument("model")
@moment_option
@click.option("--prices", type=click.Path(path_type=Path), help="Price file of your own; it wins over the built-in.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def show(model: str, at: datetime | None, prices: Path | None, as_json: bool) -> None:
    """Print the price rows of MODEL (or PROVIDER/MODEL), USD per million tokens.

    Without --at the whole history is listed; with it, the row in force.
    """
    from auditor.errors import AuditError
    from auditor.pricing import as_json as report
    from auditor.pricing import as_text, open_prices
    from auditor.pricing import show as rows_of

    try:
        rows = rows_of(open_prices(prices), model, at)
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not rows:
        fail(f"{model}: unpriced, no price is known for this model; name it in a --prices FILE", ExitCode.FINDINGS)
    if as_json:
        echo_json(report(rows))
    else:
        click.echo(as_text(rows))


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def check(as_json: bool) -> None:
    """Compare our corrections of prices with the package genai-prices that they correct.

    Exits 1 where a price differs that no correction is about, or where a correction corrects nothing any more.
    """
    from auditor.price_check import as_json as report
    from auditor.price_check import as_text
    from auditor.price_check import check as differences

    found = differences(datetime.now(UTC))
    if as_json:
        echo_json(report(found))
    else:
        for line in as_text(found):
            click.echo(line)
    if not all(each.expected for each in found):
        sys.exit(ExitCode.FINDINGS)
