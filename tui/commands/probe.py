"""`cachewright probe`: controlled experiments against an endpoint, and what they prove."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import click

from tui.cli import ExitCode, fail
from tui.commands.options import Dollars


class Seconds(click.ParamType[float]):
    """A time of 0 or more seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time."""
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < inf:
            self.fail(f"{value!r} is no number of seconds from 0 on", param, ctx)
        return found


class ModelName(click.ParamType[str]):
    """A name that can stand in a request and on a screen."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name."""
        text = str(value)
        if not text.strip() or not text.isprintable():
            self.fail(f"{value!r} is no name of a model", param, ctx)
        return text


_FILE = click.Path(path_type=Path)
_SHARED = (
    click.option("--target", required=True, metavar="NAME|URL", help="anthropic, openai, deepseek, or a server's URL."),
    click.option("--model", required=True, type=ModelName(), metavar="MODEL", help="Model to ask for."),
    click.option("--api", type=click.Choice(["messages", "chat", "responses"]), help="API to speak at a URL."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: requests as they end, then the results."),
    click.option("--yes", is_flag=True, help="Do not ask before spending money."),
    click.option("--out", type=_FILE, metavar="FILE", help="Write the JSON Lines here, the calls to FILE.trace.jsonl."),
    click.option("--budget", type=Dollars(), metavar="USD", help="Send nothing that could cost more than this in all."),
    click.option("--prices", type=_FILE, metavar="FILE", help="Price file of your own; it wins over the built-in."),
    click.option("--rules", metavar="NAME|FILE", help="Ruleset to predict by; default: the target's own."),
)


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that sends requests, handed over as one `Options`."""
    from functools import wraps

    @wraps(command)
    def with_options(**found: Any) -> None:
        from tui.commands.probe_setup import Options

        names = ("target", "model", "api", "as_json", "yes", "out", "budget", "prices", "rules")
        command(Options(**{name: found.pop(name) for name in names}), **found)

    made: Callable[..., None] = with_options
    for option in reversed(_SHARED):
        made = option(made)
    return made


@click.group()
def command() -> None:
    """Measure what a provider's prompt cache really does.

    Keys come from ANTHROPIC_API_KEY, OPENAI_API_KEY or DEEPSEEK_API_KEY (for a URL: CACHEWRIGHT_PROBE_KEY), else from a
    hidden prompt. The cost is shown first. A URL on this machine costs nothing.
    """


@command.command()
@click.argument("document", type=_FILE)
@shared
def four(options: Any, document: Path) -> None:
    """Ask four times about DOCUMENT: prepare, confirm the hit, another question, another beginning.

    Exits 1 when the hit was not confirmed, 4 when a request did not come to its end.
    """
    from probes.api import four as probe
    from probes.api.report import row_of
    from probes.errors import ProbeError
    from tui.commands.probe_live import aligned, cells
    from tui.commands.probe_setup import guarded, run_of, spent, stopped

    text = _document(document)
    with run_of(options, lambda lab: probe.plan(text)) as run:
        failures: list[ProbeError] = []
        with guarded(failures):
            probe.run(run.lab, text)
        verdict = probe.verdict(run.lab)
        run.row({**verdict, "spent": spent(run)})
    for line in aligned([cells(row_of(one, run.lab.budget.cost(one))) for one in run.lab.exchanges]):
        run.say(line)
    for step in verdict["steps"]:
        run.say(f"{step['case']}: {step['text']}")
    run.say(f"verdict: {verdict['verdict']} ({spent(run)})")
    _say_limits(run, verdict["cannot_establish"])
    if failures:
        stopped(failures[0], run)
    if verdict["verdict"] != "confirmed":
        raise SystemExit(ExitCode.FINDINGS)


@command.command()
@shared
def fanout(options: Any) -> None:
    """Send pairs that share a beginning: with and without a marker at its end, at once and one after the other began.

    Exits 1 when the table is not as the rules predict.
    """
    from probes.api import fanout as probe
    from probes.errors import ProbeError
    from tui.commands.probe_setup import guarded, run_of, spent, stopped

    with run_of(options, lambda lab: probe.plan(lab.words)) as run:
        failures: list[ProbeError] = []
        found: Any = {"verdict": "incomplete", "table": [], "cannot_establish": list(probe.CANNOT)}
        with guarded(failures):
            found = probe.run(run.lab)
        run.row({**found, "spent": spent(run)})
    for row in found["table"]:
        run.say(f"{row['marker']:8}{row['timing']:14}{row['finding']:14}{row['question']} {row['answer']}")
    run.say(f"verdict: {found['verdict']} ({spent(run)})")
    _say_limits(run, found["cannot_establish"])
    if failures:
        stopped(failures[0], run)
    if found["verdict"] == "refuted":
        raise SystemExit(ExitCode.FINDINGS)


@command.command()
@click.option("--only", multiple=True, metavar="PROBE", help="Probe to run; repeatable. Default: the usual ones.")
@click.option("--max-wait", type=Seconds(), default=600.0, show_default=True, metavar="SECONDS",
              help="Longest gap to wait for when measuring a lifetime.")  # fmt: skip
@shared
def rules(options: Any, only: tuple[str, ...], max_wait: float) -> None:
    """Test the rules of a cache claim by claim, and find the true values.

    PROBE is one of minimum, lookback, breakpoints, invalidation, readable, isolation, prewarm, lifetime, refresh,
    clock, lifetime_1h, granularity (OpenAI), units (DeepSeek). Needs --budget where it costs money. isolation takes a
    key of another workspace from CACHEWRIGHT_PROBE_SECOND_KEY. Exits 1 when a claim is refuted.
    """
    from probes.api import suite
    from probes.api.report import claim_row
    from probes.api.target import target_of
    from probes.errors import ProbeError
    from tui.commands.probe_setup import guarded, run_of, spent, stopped

    try:
        target = target_of(options.target, options.api)
        chosen = suite.chosen(target, only)
    except ProbeError as error:
        fail(str(error), ExitCode.USAGE)
    if options.budget is None and not target.local:
        fail("rule probes cost money: give --budget USD", ExitCode.USAGE)

    def plan(lab: Any) -> Any:
        if lab.rules is None:
            fail(f"there are no rules named {target.rules} to test; name some with --rules", ExitCode.USAGE)
        lab.max_wait_s = max_wait
        return suite.total(probe.plan(lab) for probe in chosen)

    failures: list[ProbeError] = []
    claims: list[Any] = []
    with run_of(options, plan, keys=2 if any(probe.name == "isolation" for probe in chosen) else 1) as run:
        with guarded(failures):
            for claim in suite.run(run.lab, chosen):
                claims.append(claim)
                run.row(claim_row(claim, run.lab))
        findings = [claim.finding for claim in claims]
        run.row({"summary": {word: findings.count(word) for word in sorted(set(findings))}, "spent": spent(run)})
    for claim in claims:
        run.say(f"{claim.finding:13} {claim.probe}: {claim.why or claim.claim}")
    run.say(spent(run))
    if failures:
        stopped(failures[0], run)
    if "refuted" in findings:
        raise SystemExit(ExitCode.FINDINGS)


@command.command()
@click.argument("findings", type=_FILE)
@click.option("--rules", metavar="NAME|FILE", help="Ruleset to compare with; default: the one of the provider probed.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def diff(findings: Path, rules: str | None, as_json: bool) -> None:
    """Compare FINDINGS (the record of `probe rules`) with rule data, and say which value to change to what.

    Exits 1 when a value should change.
    """
    from auditor.visible import visible
    from localmodel.rules.errors import RulesError
    from localmodel.rules.load import load
    from probes.api.compare import compare, read_findings
    from probes.errors import BadFindings
    from tui.commands.options import echo_json

    try:
        rows = read_findings(findings)
        compared = [compare(row, load(rules or str(row.get("provider", "anthropic")))) for row in rows]
    except (BadFindings, RulesError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if as_json:
        echo_json([one._asdict() for one in compared])
    else:
        for one in compared:
            click.echo(visible(f"{one.word:8} {one.rule or one.probe}: {one.text}"))
            for line in one.suggestion.splitlines():
                click.echo(visible(f"    {line}"))
    if any(one.word == "change" for one in compared):
        raise SystemExit(ExitCode.FINDINGS)


def _document(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {(error.strerror or 'cannot be read').lower()}", ExitCode.UNREADABLE)
    except UnicodeDecodeError as error:
        fail(f"{path}: not UTF-8 (byte {error.start}); convert it", ExitCode.UNREADABLE)
    if not text.strip():
        fail(f"{path}: empty; give a document long enough to be cached", ExitCode.UNREADABLE)
    return text


def _say_limits(run: Any, limits: list[str]) -> None:
    run.say("What this run cannot establish:")
    for limit in limits:
        run.say(f"  {limit}")
