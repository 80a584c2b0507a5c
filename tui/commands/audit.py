"""`cachewright audit`: read traces or the store, audit, report."""

import contextlib
import sys
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from auditor.errors import AuditError
from localmodel.rules.errors import RulesError
from traces.errors import TraceError
from tui.cli import ExitCode, fail, warn
from tui.commands.options import LIMIT, MOST_NAMED, Moment, echo_table, form_options, zone_option

if TYPE_CHECKING:  # loaded where they are used, so that `--help` stays quick
    from auditor.breakdown import By
    from auditor.context import BodyOf
    from auditor.digests import Seen
    from auditor.gather import Progress
    from auditor.money import Money
    from auditor.pricing import PriceList
    from auditor.records import Audit, Audited
    from auditor.savings import WhatIf
    from auditor.selection import Selection
    from auditor.store import Store
    from auditor.tables import Table
    from auditor.totals import Totals
    from localmodel.rules.book import Rulebook
    from traces.schema import JsonObject

# Replayed requests that the search for the cheapest combination may cost.
SEARCH_BUDGET = 60_000
# As `auditor.breakdown.BY`, which is loaded where it is used.
BY = ("day", "hour", "session", "model", "agent", "kind", "cause", "project")


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="Store to keep calls in, or, without PATH, to audit.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema cachewright.audit/1).")
@click.option("--rules", metavar="NAME|FILE", help="Audit every call under this ruleset, not under its provider's own.")
@click.option("--prices", type=click.Path(path_type=Path), help="Price file of your own; it wins over the built-in.")
@click.option(
    "--prices-as-of", type=Moment(utc=True), metavar="DATE", help="Leave out prices that came into force later."
)
@click.option(
    "--what-if", type=click.Choice(["none", "all"]), default="all", show_default=True, help="Replay the fixes too."
)
@click.option("--no-store", is_flag=True, help="Leave the store alone.")
@click.option("--since", type=Moment(), metavar="DATE", help="Report calls from that moment on only.")
@click.option("--until", type=Moment(), metavar="DATE", help="Report calls before that moment only.")
@click.option("--model", metavar="TEXT", help="Report calls only of models with this text in their name.")
@click.option("--project", metavar="TEXT", help="Report calls only of clients that worked in a folder with this text.")
@click.option("--by", type=click.Choice(BY), help="Print sums by this as one table instead of the report.")
@zone_option
@form_options
@click.option("--fail-under-hit-ratio", type=LIMIT, metavar="RATIO", help="Exit 1 if less was read than this share.")
@click.option("--fail-on-avoidable", type=LIMIT, metavar="USD", help="Exit 1 if more than this was avoidable.")
def command(
    paths: tuple[Path, ...],
    db: Path | None,
    as_json: bool,
    rules: str | None,
    prices: Path | None,
    prices_as_of: datetime | None,
    what_if: str,
    no_store: bool,
    since: datetime | None,
    until: datetime | None,
    model: str | None,
    project: str | None,
    by: "By | None",
    tz: tzinfo,
    as_csv: bool,
    as_markdown: bool,
    fail_under_hit_ratio: float | None,
    fail_on_avoidable: float | None,
) -> None:
    """Say for each call of recorded traces whether the cache worked, why not, and what it cost.

    PATH is a native trace (JSON Lines), a usage table (CSV), a file of another tool, or a folder of them; - is standard
    input. Calls are kept in the store, so that `audit --db FILE` without PATH audits all that was recorded. Without
    either, the sessions that known tools keep in their own folders are audited where they are.
    """
    if (as_csv or as_markdown) and by is None:
        raise click.UsageError("--csv and --markdown print a table; say which one with --by")
    from auditor.pricing import open_prices
    from auditor.selection import Selection
    from localmodel.rules.book import Rulebook
    from localmodel.rules.load import load

    title = ", ".join(map(str, paths)) or str(db or "sessions of this machine")
    chosen = Selection(since, until, model, project)
    try:
        book, price_list = Rulebook(load(rules) if rules else None), open_prices(prices, as_of=prices_as_of)
        shown = None
        if not paths and db is None:
            ways = {"whole": as_json and by is None, "any_size": by is not None, "what_if": what_if == "all"}
            shown, paths = of_machine(
                book, price_list, chosen, quiet=as_json or as_csv or as_markdown, keep=not no_store, **ways
            )
            no_store = True
        if shown is None:
            result = audited(paths, db, no_store, book)
            shown = _summed(result, price_list, chosen, what_if == "all")
    except (TraceError, RulesError, AuditError) as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not shown.sums.whole.calls and not shown.sums.failed_calls:
        left = "" if chosen == Selection() else " that --since, --until, --model and --project leave"
        fail(f"no calls to audit{left}", ExitCode.UNREADABLE)
    if by is None:
        _print(shown, as_json, title, tz)
    else:
        echo_table(_table(shown, by, price_list, tz), json=as_json, csv=as_csv, markdown=as_markdown)
    _hold_to_limits(shown, fail_under_hit_ratio, fail_on_avoidable)


def _hold_to_limits(shown: "Shown", least_ratio: float | None, most_avoidable: float | None) -> None:
    """End with findings where the report is beyond a limit asked for; an unknown figure is beyond any."""
    ratio, saving = shown.sums.whole.hit_ratio, shown.rows[-1].saving_usd if shown.rows else None
    if least_ratio is not None and (ratio is None or ratio < least_ratio):
        fail(f"hit ratio {ratio} is under {least_ratio}", ExitCode.FINDINGS)
    if most_avoidable is not None and (saving is None or saving > most_avoidable):
        fail(f"avoidable {saving} USD is over {most_avoidable}", ExitCode.FINDINGS)


class Shown(NamedTuple):
    """What a report is made of. `money` is `None` where only sums are known; `seen` is then all calls."""

    result: "Audit"
    sums: "Totals"
    rows: "list[WhatIf]"
    money: "Money | None"
    seen: "list[Seen]"


def of_machine(
    book: "Rulebook",
    prices: "PriceList",
    chosen: "Selection",
    *,
    whole: bool,
    quiet: bool,
    keep: bool,
    any_size: bool,
    what_if: bool = False,
) -> tuple[Shown | None, tuple[Path, ...]]:
    """The sessions on this machine by their digests; where these do not suffice, the files to read in full.

    They do not for a `whole` report, nor, unless `any_size`, for few calls, which a text lists one by one.
    """
    from auditor.savings import nothing
    from auditor.text import LONGEST_TABLE
    from tui.commands.machine import digested, found, known, reported

    files = found(quiet=quiet)
    digests = None if whole else digested(files, book, keep=keep)
    few = not any_size and digests is not None and sum(len(digest.calls) for digest in digests) <= LONGEST_TABLE
    if digests is None or few:
        return None, known(files)
    result, sums, seen = reported(digests, book, prices, chosen)
    return Shown(result, sums, [nothing(sums.whole)] if what_if else [], None, seen), ()


def _table(shown: Shown, by: "By", prices: "PriceList", zone: tzinfo) -> "Table":
    from auditor.breakdown import breakdown, causes
    from auditor.digests import seen_of

    if by == "cause":
        return causes(shown.sums.by_cause)
    if shown.money is None:
        return breakdown(by, shown.seen, prices, zone)
    calls = [audited for audited in shown.result.calls if not audited.call.failed]
    found = ((place, audited.diagnosis) for place, audited in enumerate(calls))
    proved = {
        place: diagnosis.avoidable_usd
        for place, diagnosis in found
        if diagnosis is not None and diagnosis.avoidable_usd is not None
    }
    return breakdown(by, [*map(seen_of, calls)], prices, zone, proved)


def _summed(result: "Audit", prices: "PriceList", chosen: "Selection", what_if: bool) -> Shown:
    from auditor.money import Money
    from auditor.selection import selected
    from auditor.totals import totals

    result = selected(result, chosen)
    money = Money(result.calls, prices)
    rows = what_if_rows(result, money) if what_if else []
    return Shown(result, totals(result.calls, money), rows, money, [])


def audited(paths: tuple[Path, ...], db: Path | None, no_store: bool, book: "Rulebook") -> "Audit":
    """`read_and_audit` for those who need no bodies afterwards."""
    with contextlib.ExitStack() as stack:
        return read_and_audit(stack, paths, db, no_store, book)[0]


def read_and_audit(
    stack: contextlib.ExitStack, paths: tuple[Path, ...], db: Path | None, no_store: bool, book: "Rulebook"
) -> "tuple[Audit, BodyOf]":
    """Read, store and audit; bodies can be read again until `stack` closes.

    The store failing is a warning: the audit goes on without it. Raises what reading and the store raise.
    """
    from auditor.audit import audit, judge
    from auditor.store import Store, default_path
    from traces import io
    from tui.commands.reading import Reading

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
        if paths:
            with Reading(store) as reading:
                result = judge(reading.calls(paths), book, body_of, reading.warnings, progress=bar)
                result.rejected = reading.rejected
        else:
            assert store is not None
            result = audit(io.distinct(store.calls()), book, body_of, progress=bar)
    if store is not None and store.working:
        _save(store, result)
    return result, body_of


def _body_reader(store: "Store | None") -> "BodyOf":
    """How a diagnosis gets a body again: from the store where calls came from it, else from the trace file."""
    from traces import io

    def body_of(one: "Audited") -> "JsonObject | None":
        call = one.call
        try:
            if store is not None and call.key is not None:
                return store.request(call.key)
            return io.read_request(call.place) if call.place is not None else None
        except (TraceError, AuditError, OSError):
            return None

    return body_of


@contextlib.contextmanager
def _progress() -> "Iterator[Progress | None]":
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


def _save(store: "Store", result: "Audit") -> None:
    from auditor.outcomes import outcome_rows

    try:
        store.save_outcomes(result.ruleset.basis, outcome_rows(result))
    except AuditError as error:
        warn(f"outcomes not stored: {error}")


def what_if_rows(result: "Audit", money: "Money") -> "list[WhatIf]":
    """The what-if table of an audit, with the search for the cheapest combination within its budget."""
    from auditor.policies import POLICIES
    from auditor.whatif import Trial, table

    return table(Trial(result, money), POLICIES, budget=SEARCH_BUDGET)


def warn_of(result: "Audit") -> None:
    """Say on stderr what of the calls could not be used; many are counted."""
    for warning in result.warnings[:MOST_NAMED]:
        warn(warning)
    if len(result.warnings) > MOST_NAMED:
        warn(f"… and {len(result.warnings) - MOST_NAMED:,} more calls with remarks")


def _print(report: Shown, as_json: bool, title: str, zone: tzinfo) -> None:
    result, sums, rows, money, _ = report
    warn_of(result)
    if as_json and money is not None:
        from auditor.report import lines

        for line in lines(result, sums, rows, money):
            click.echo(line)
        return
    from auditor.text import render, shown

    click.echo(shown(render(result, sums, rows, title, zone)))
