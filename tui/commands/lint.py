"""`cachewright lint`: request bodies checked before they are sent."""

from datetime import datetime
from pathlib import Path

import click

from tui.cli import ExitCode, fail, warn
from tui.commands.options import echo_json, moment_option


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", default="anthropic", show_default=True, metavar="NAME|FILE", help="Ruleset to judge by.")
@click.option("--platform", default="claude_api", show_default=True, help="Where the requests will be sent.")
@moment_option
def command(files: tuple[Path, ...], as_json: bool, rules: str, platform: str, at: datetime | None) -> None:
    """Check request bodies for cache mistakes before they are sent.

    FILE is a request body (JSON) or a native trace, whose requests are all checked. Exits 1 if the provider would
    refuse a request.
    """
    from auditor.lint import as_json as report
    from auditor.lint import as_text, lint_file
    from localmodel.rules.errors import RulesError
    from localmodel.rules.load import load
    from traces.errors import TraceError

    refused, reports, unreadable = False, [], 0
    try:
        ruleset = load(rules)
    except RulesError as error:
        fail(str(error), ExitCode.UNREADABLE)

    def reject(error: TraceError) -> None:
        warn(f"cachewright: {error}")

    for file in files:
        try:
            for place, findings in lint_file(file, ruleset, moment=at, platform=platform, on_reject=reject):
                refused = refused or any(finding.severity == "error" for finding in findings)
                reports.append(report(place, findings))
                if not as_json and findings:
                    click.echo(as_text(place, findings), nl=False)
        except TraceError as error:
            unreadable += 1
            reject(error)
    if as_json:
        echo_json(reports)
    elif not any(each["findings"] for each in reports) and not unreadable:
        click.echo(f"{len(reports)} requests checked, nothing found")
    if unreadable == len(files):
        raise SystemExit(ExitCode.UNREADABLE)
    if refused:
        raise SystemExit(ExitCode.FINDINGS)
