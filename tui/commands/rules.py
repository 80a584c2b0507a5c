"""`cachewright rules show`: the rule data, each value with its status, date and source."""

from datetime import datetime

import click

from tui.cli import ExitCode, fail
from tui.commands.options import moment_option


@click.group()
def command() -> None:
    """Show the providers' cache rules with status, date and source."""


@command.command()
@click.argument("provider", metavar="PROVIDER")
@click.option("--model", help="Only what is in force for this model.")
@moment_option
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON.")
def show(provider: str, model: str | None, at: datetime | None, as_json: bool) -> None:
    """Print each rule value of PROVIDER (a built-in ruleset such as anthropic, or a rule file).

    Without --model and --at all dated values are listed; with one of them, those in force.
    """
    from localmodel.rules.errors import RulesError
    from localmodel.rules.load import load
    from localmodel.rules.show import as_json as report
    from localmodel.rules.show import as_text
    from localmodel.rules.show import show as rows_of

    try:
        rows = rows_of(load(provider), model=model, moment=at)
    except RulesError as error:
        fail(str(error), ExitCode.UNREADABLE)
    click.echo((report(rows) if as_json else as_text(rows)).rstrip("\n"))
