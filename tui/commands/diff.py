"""`cachewright diff`: two request bodies, or two calls of traces."""

from datetime import datetime
from pathlib import Path

import click

from tui.cli import ExitCode, fail
from tui.commands.options import echo_json, moment_option


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--rules", metavar="NAME|FILE", help="Ruleset to judge by, instead of that of the bodies' API.")
@moment_option
def command(a: str, b: str, as_json: bool, rules: str | None, at: datetime | None) -> None:
    """Show where two prompts first differ, and what that costs the cache.

    A and B are request bodies (JSON files), or calls of a trace written as FILE:NUMBER (the number, counted from 1,
    or the id of a call), such as `cachewright diff run.jsonl:4 run.jsonl:5`.
    """
    from auditor.compare import as_json as report
    from auditor.compare import as_text, compare
    from localmodel.rules.errors import RulesError
    from localmodel.rules.load import load
    from traces.errors import TraceError

    try:
        (one, raw_one), (two, raw_two) = _body(a), _body(b)
        found = compare(one, two, (raw_one, raw_two), load(rules) if rules else None, at)
    except (TraceError, RulesError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if as_json:
        echo_json(report(found))
    else:
        click.echo(as_text(found))


def _body(name: str) -> tuple[dict[str, object], bytes]:
    """A body by file name or FILE:NUMBER, with its raw text where it is a file of its own."""
    from auditor.lint import read_body, read_body_and_text

    path = Path(name)
    if path.exists():
        return read_body_and_text(path)
    file, _, wanted = name.rpartition(":")
    if file and wanted and Path(file).exists():
        return _call(Path(file), wanted)
    return read_body(path), b""


def _call(path: Path, wanted: str) -> tuple[dict[str, object], bytes]:
    from traces import io
    from traces.canonical import dump
    from traces.errors import UnreadableInput

    for number, call in enumerate(io.read(path), 1):
        if wanted == call.id or wanted == f"{number}":
            if call.request is None:
                raise UnreadableInput(f"{path}:{wanted}: this call was recorded without its body")
            return call.request, dump(call.request)
    raise UnreadableInput(f"{path}: no call {wanted!r} in it; give its number, counted from 1, or its id")
