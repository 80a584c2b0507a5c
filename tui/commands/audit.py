"""`cachewright audit`: read traces or the store, audit, report."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from auditor.audit import Audit
from auditor.context import BodyOf
from auditor.errors import AuditError
from auditor.gather import Progress
from auditor.records import Audited
from localmodel.rules.errors import RulesError
from localmodel.rules.load import Ruleset
from traces.errors import TraceError
from traces.schema import JsonObject
from tui.cli import ExitCode, fail, warn
from tui.commands.options import LIMIT
from tui.commands.reading import MOST_NAMED

if TYPE_CHECKING:  # loaded where they are used, so that `--help` stays quick
    from auditor.money import Money
    from auditor.store import Store
    from auditor.totals import Totals
    from auditor.whatif import WhatIf

# Replayed requests that the search for the cheapest combination may cost.
SEARCH_BUDGET = 60_000


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="Store to keep calls in, or, without PATH, to audit.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema cachewright.audit/1).")
@click.option("--rules", default="anthropic", show_default=True, metavar="NAME|FILE", help="Ruleset to audit under.")
@click.option("--prices", type=click.Path(path_type=Path), help="Price file of your own; it wins over the built-in.")
@click.option(
    "--what-if", type=click.Choice(["none", "all"]), default="all", show_default=True, help="Replay the fixes too."
)
@click.option("--no-store", is_flag=True, help="Leave the store alone.")
@click.option("--fail-under-hit-ratio", type=LIMIT, metavar="RATIO", help="Exit 1 if less was read than this share.")
@click.option("--fail-on-avoidable", type=LIMIT, metavar="USD", help="Exit 1 if more than this was avoidable.")
def command(
    paths: tuple[Path, ...],
    db: Path | None,
    as_json: bool,
    rules: str,
    prices: Path | None,
    what_if: str,
    no_store: bool,
    fail_under_hit_ratio: float | None,
    fail_on_avoidable: float | None,
) -> None:
    """Say for each call of recorded traces whether the cache worked, why not, and what it cost.

    PATH is a native trace (JSON Lines), a usage table (CSV) or a folder of them; - is standard input. Calls are kept in
    the store, so that `audit --db FILE` without PATH audits all that was recorded.
    """
    from auditor.money import Money
    from auditor.pricing import open_prices
    from auditor.totals import totals
    from localmodel.rules.load import load

    try:
        ruleset, price_list = load(rules), open_prices(prices)
        with contextlib.ExitStack() as stack:
            result, _ = read_and_audit(stack, paths, db, no_store, ruleset)
    except (TraceError, RulesError, AuditError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not result.calls:
        fail("no calls to audit", ExitCode.UNREADABLE)
    money = Money(result.calls, price_list)
    rows = what_if_rows(result, money) if what_if == "all" else []
    sums = totals(result.calls, money)
    _print(result, sums, rows, money, as_json, ", ".join(map(str, paths)) or str(db or "store"))
    ratio, saving = sums.whole.hit_ratio, rows[-1].saving_usd if rows else None
    if fail_under_hit_ratio is not None and (ratio is None or ratio < fail_under_hit_ratio):
        fail(f"hit ratio {ratio} is under {fail_under_hit_ratio}", ExitCode.FINDINGS)
    if fail_on_avoidable is not None and (saving is None or saving > fail_on_avoidable):
        fail(f"avoidable {saving} USD is over {fail_on_avoidable}", ExitCode.FINDINGS)


def read_and_audit(
    stack: contextlib.ExitStack, paths: tuple[Path, ...], db: Path | None, no_store: bool, ruleset: Ruleset
) -> tuple[Audit, BodyOf]:
    """Read, store and audit; bodies can be read again until `stack` closes.

    The store failing is a warning: the audit goes on without it. Raises what reading and the store raise.
    """
    from auditor.audit import audit, judge
    from auditor.store import Store, default_path
    from tui.commands.reading import Reading

    if no_store and not paths:
        raise click.UsageError("--no-store needs a PATH to audit")
    store = None
    if not no_store:
        try:
            store = stack.enter_context(Store.open(db or default_path()))
        except AuditError as error:
            if not paths or db is not None:
                raise
            warn(f"not stored: {error}")
    body_of = _body_reader(None if paths else store)
    with _progress() as bar:
        if not paths:
            assert store is not None
            return audit(store.calls(), ruleset, body_of, progress=bar), body_of
        with Reading(store) as reading:
            result = judge(reading.calls(paths), ruleset, body_of, reading.warnings, progress=bar)
    if store is not None and store.working:
        _save(store, result)
    return result, body_of


def _body_reader(store: "Store | None") -> BodyOf:
    """How a diagnosis gets a body again: from the store where calls came from it, else from the trace file."""
    from traces import io

    def body_of(audited: Audited) -> JsonObject | None:
        call = audited.call
        try:
            if store is not None and call.key is not None:
                return store.request(call.key)
            return io.read_request(call.place) if call.place is not None else None
        except (TraceError, AuditError, OSError):
            return None

    return body_of


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A progress bar on stderr, when that is a terminal and the work is long."""
    if sys.stderr is None or not sys.stderr.isatty():  # None where the caller closed it
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def advance(stage: str, done: int, total: int | None) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield advance


def _save(store: "Store", result: Audit) -> None:
    from auditor.outcomes import outcome_rows

    try:
        store.save_outcomes(result.ruleset.digest, outcome_rows(result))
    except AuditError as error:
        warn(f"outcomes not stored: {error}")


def what_if_rows(result: Audit, money: "Money") -> "list[WhatIf]":
    """The what-if table of an audit, with the search for the cheapest combination within its budget."""
    from auditor.policies import POLICIES
    from auditor.whatif import Trial, table

    return table(Trial(result, money), POLICIES, budget=SEARCH_BUDGET)


def warn_of(result: Audit) -> None:
    """Say on stderr what of the calls could not be used; many are counted."""
    for warning in result.warnings[:MOST_NAMED]:
        warn(warning)
    if len(result.warnings) > MOST_NAMED:
        warn(f"… and {len(result.warnings) - MOST_NAMED:,} more calls with remarks")


def _print(result: Audit, sums: "Totals", rows: "list[WhatIf]", money: "Money", as_json: bool, title: str) -> None:
    warn_of(result)
    if as_json:
        from auditor.report import lines

        for line in lines(result, sums, rows, money):
            click.echo(line)
        return
    from auditor.text import render, shown

    click.echo(shown(render(result, sums, rows, title)))
