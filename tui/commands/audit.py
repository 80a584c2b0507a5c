"""`cachewright audit`: read traces or the store, audit, report."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from auditor.audit import Audit, audit
from auditor.context import BodyOf
from auditor.errors import AuditError
from auditor.gather import Progress
from auditor.records import Audited
from localmodel.rules.errors import RulesError
from traces.errors import TraceError
from traces.schema import Call, JsonObject
from tui.cli import ExitCode, fail

# Rejected rows are named one by one up to here; the rest are counted.
MOST_REJECTED = 20
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
@click.option("--fail-under-hit-ratio", type=float, metavar="RATIO", help="Exit 1 if less was read than this share.")
@click.option("--fail-on-avoidable", type=float, metavar="USD", help="Exit 1 if more than this was avoidable.")
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
        result = _audited(paths, db, no_store, ruleset)
    except (TraceError, RulesError, AuditError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not result.calls:
        fail("no calls to audit", ExitCode.UNREADABLE)
    money = Money(result.calls, price_list)
    rows = _what_if(result, money) if what_if == "all" else []
    sums = totals(result.calls, money)
    _print(result, sums, rows, money, as_json, ", ".join(map(str, paths)) or str(db or "store"))
    ratio, saving = sums.whole.hit_ratio, rows[-1].saving_usd if rows else None
    if fail_under_hit_ratio is not None and (ratio is None or ratio < fail_under_hit_ratio):
        fail(f"hit ratio {ratio} is under {fail_under_hit_ratio}", ExitCode.FINDINGS)
    if fail_on_avoidable is not None and (saving is None or saving > fail_on_avoidable):
        fail(f"avoidable {saving} USD is over {fail_on_avoidable}", ExitCode.FINDINGS)


def _audited(paths: tuple[Path, ...], db: Path | None, no_store: bool, ruleset: Any) -> Audit:
    """Read, store and audit. The store failing is a warning: the audit goes on without it."""
    from auditor.store import Store, default_path

    if no_store and not paths:
        raise click.UsageError("--no-store needs a PATH to audit")
    with contextlib.ExitStack() as stack:
        store = None
        if not no_store:
            try:
                store = stack.enter_context(Store.open(db or default_path()))
            except AuditError as error:
                if not paths or db is not None:
                    raise
                click.echo(f"not stored: {error}", err=True)
        if not paths:
            assert store is not None
            calls = store.calls()
        else:
            calls = _read(paths)
            if store is not None:
                calls = store.through(calls, lambda error: click.echo(f"not stored: {error}", err=True))
        with _progress() as bar:
            result = audit(calls, ruleset, _body_reader(store if not paths else None), progress=bar)
        if store is not None:
            _save(store, result)
        return result


def _read(paths: tuple[Path, ...]) -> Iterator[Call]:
    """Calls of all files, with every row that had to be left out named on stderr."""
    from traces import io

    rejected = 0

    def on_reject(row: io.Rejected) -> None:
        nonlocal rejected
        rejected += 1
        if rejected <= MOST_REJECTED:
            click.echo(f"{row}{' (may still be written)' if row.pending else ''}", err=True)

    read, unreadable = 0, []
    for path in io.find(paths):
        try:
            for call in io.read(path, on_reject=on_reject):
                read += 1
                yield call
        except TraceError as error:
            unreadable.append(str(error))
    for message in unreadable if read else unreadable[:-1]:
        click.echo(message, err=True)
    if rejected > MOST_REJECTED:
        click.echo(f"… and {rejected - MOST_REJECTED:,} more rows with remarks", err=True)
    if unreadable and not read:
        raise TraceError(unreadable[-1])


def _body_reader(store: Any) -> BodyOf:
    """How a diagnosis gets a body again: from the store where calls came from it, else from the trace file."""
    from traces import io

    def body_of(audited: Audited) -> JsonObject | None:
        call = audited.call
        try:
            if store is not None and call.key is not None:
                body: JsonObject | None = store.request(call.key)
                return body
            return io.read_request(call.place) if call.place is not None else None
        except (TraceError, AuditError, OSError):
            return None

    return body_of


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A progress bar on stderr, when that is a terminal and the work is long."""
    if not sys.stderr.isatty():
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


def _save(store: Any, result: Audit) -> None:
    from auditor.outcomes import outcome_rows

    try:
        store.save_outcomes(result.ruleset.digest, outcome_rows(result))
    except AuditError as error:
        click.echo(f"outcomes not stored: {error}", err=True)


def _what_if(result: Audit, money: Any) -> Any:
    from auditor.policies import POLICIES
    from auditor.whatif import Trial, table

    return table(Trial(result, money), POLICIES, budget=SEARCH_BUDGET)


def _print(result: Audit, sums: Any, rows: Any, money: Any, as_json: bool, title: str) -> None:
    for warning in result.warnings[:MOST_REJECTED]:
        click.echo(warning, err=True)
    if as_json:
        import orjson

        from auditor.report import as_json as report

        data = orjson.dumps(report(result, sums, rows, money), option=orjson.OPT_INDENT_2)
        click.echo(data)
        return
    from auditor.text import render, shown

    click.echo(shown(render(result, sums, rows, title)))
