"""What the probes need before the first request: target, rules, price, consent, keys, and where the record goes."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import click

from localmodel.rules.step import DatedRules
from probes.api.budget import ADDED_TOKENS, Budget
from probes.api.exchange import Clock, Exchange
from probes.api.lab import Lab, Plan, Watch
from probes.api.report import Record, line, row_of
from probes.api.secret import Scrubber
from probes.api.target import Api, Target, fingerprint, key_of, second_key_of, target_of
from probes.errors import BadTarget, BudgetReached, NoCaching, ProbeError, Stopped
from traces.schema import JsonObject
from tui.cli import ExitCode, fail, warn
from tui.commands.probe_live import Live

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all probing commands share."""

    target: str
    model: str
    api: Api | None
    as_json: bool
    yes: bool
    out: Path | None
    budget: Decimal | None
    prices: Path | None
    rules: str | None


@dataclass(slots=True)
class Run:
    """A run under way: the lab, and where rows and words go."""

    lab: Lab
    live: Live
    record: Record | None
    scrub: Scrubber
    as_json: bool

    def row(self, row: JsonObject) -> None:
        """Write one row to the record, and to stdout where JSON was asked for."""
        if self.record is not None:
            self.record.row(row)
        if self.as_json:
            click.echo(line(row, self.scrub), nl=False)

    def say(self, text: str = "") -> None:
        """One line of the plain report."""
        if not self.as_json:
            from auditor.visible import visible

            click.echo(visible(self.scrub(text)))

    def ended(self, exchange: Exchange) -> None:
        """A request has ended: into the record and the trace, and onto the screen."""
        cost = self.lab.budget.cost(exchange)
        row = row_of(exchange, cost)
        self.row(row)
        if self.record is not None:
            self.record.call(exchange)
        self.live.ended(row)


@contextmanager
def run_of(options: Options, plan: Callable[[Lab], Plan], keys: int = 1) -> Iterator[Run]:
    """A run whose cost was shown and agreed to. Ends the process where it may not begin."""
    try:
        run = _opened(options, plan, keys)
    except ProbeError as error:
        fail(str(error), ExitCode.USAGE)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with run.live:
            yield run
    finally:
        signal.signal(signal.SIGTERM, before)
        run.lab.sender.close()
        if run.record is not None:
            run.record.close()


@contextmanager
def guarded(failures: list[ProbeError]) -> Iterator[None]:
    """What ends a run early goes into `failures`, an interrupt too, so that the record still gets its last row."""
    try:
        yield
    except ProbeError as error:
        failures.append(error)
    except KeyboardInterrupt:
        failures.append(Stopped("stopped by the user"))


def stopped(error: ProbeError, run: Run) -> NoReturn:
    """End the process after a run that broke off, its record complete as far as it came."""
    codes: dict[type[ProbeError], ExitCode] = {
        Stopped: ExitCode.STOPPED,
        BudgetReached: ExitCode.FINDINGS,
        NoCaching: ExitCode.FINDINGS,
    }
    fail(run.scrub.message(str(error)), codes.get(type(error), ExitCode.PROVIDER))


def spent(run: Run) -> str:
    """What the run cost, in words."""
    budget = run.lab.budget
    count = f"{len(run.lab.exchanges)} requests"
    if budget.free:
        return f"{count} to this machine, no cost"
    most = "at most " if budget.uncertain else ""
    return f"{count}, {most}${budget.spent:.4f} at the price table's prices; the provider's bill decides"


def _opened(options: Options, plan: Callable[[Lab], Plan], count: int) -> Run:
    target = target_of(options.target, options.api)
    budget, clock, live = _budget(options, target), Clock(), Live()
    ruleset = _ruleset(options, target)
    rules = None if ruleset is None else ruleset.at(options.model, "claude_api", clock.now())
    lab = Lab(target, options.model, _Nobody(), (), budget, ruleset=ruleset, rules=rules, clock=clock)
    _agree(options, lab, plan(lab))
    keys = _keys(target, count)
    scrub = Scrubber(keys)
    lab.key_fps = tuple(map(fingerprint, keys))
    lab.sender = _sender(target, keys, clock)
    trace = f"probe-{uuid4().hex[:12]}"
    record = None if options.out is None else Record(options.out, trace, scrub)
    run = Run(lab, live, record, scrub, options.as_json)
    lab.watch = Watch(live.started, run.ended, live.note)
    return run


class _Nobody:
    """Stands where the sender will be until the user has agreed to the cost."""

    def send(self, exchange: Exchange) -> None:
        raise AssertionError("nothing may be sent yet")

    def close(self) -> None:
        return


def _sender(target: Target, keys: list[str], clock: Clock) -> Any:
    from probes.api.send_messages import MessagesSender
    from probes.api.send_openai import OpenAISender

    return (MessagesSender if target.api == "messages" else OpenAISender)(target, keys, clock)


def _keys(target: Target, count: int) -> list[str]:
    keys = [key_of(target, os.environ, _ask if _is_terminal(sys.stdin) else None)]
    if count > 1 and (second := second_key_of(target, os.environ)) is not None:
        keys.append(second)
    return keys


def _ask(text: str) -> str:
    try:
        return str(click.prompt(text, hide_input=True, err=True))
    except click.Abort:
        fail("stopped before anything was sent", ExitCode.STOPPED)


def _ruleset(options: Options, target: Target) -> DatedRules | None:
    """The rules to predict by; where no built-in ones exist for a target there are no predictions, and it is said."""
    from localmodel.rules.errors import RulesError
    from localmodel.rules.load import load

    try:
        return load(options.rules or target.rules)
    except RulesError as error:
        if options.rules is not None:
            fail(str(error), ExitCode.UNREADABLE)
        warn(f"no predictions: {error}")
        return None


def _budget(options: Options, target: Target) -> Budget:
    if target.local:
        warn(f"{target.host} is this machine: counted as free; if it forwards to a paid API, that API charges")
        return Budget(None, free=True)
    from auditor.errors import AuditError
    from auditor.pricing import open_prices, show

    try:
        prices = open_prices(options.prices)
        hosted = not target.name.startswith("http")
        name = f"{target.provider}/{options.model}" if hosted and not prices.own(options.model) else options.model
        rows = show(prices, name, Clock().now())
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)
    if not rows or rows[0].input is None or rows[0].output is None:
        raise BadTarget(f"{options.model}: no price is known, so no budget can be kept; name it in a --prices FILE")
    return Budget(rows[0], free=False, limit=options.budget)


def _agree(options: Options, lab: Lab, plan: Plan) -> None:
    """Show the cost, set the limit, and ask. Raises `BadTarget` where nobody can be asked and nobody said --yes."""
    budget, wait = lab.budget, f", about {plan.wait_s / 60:.0f} min of waiting" if plan.wait_s >= 60 else ""
    size = f"about {plan.requests} requests, {plan.input_tokens:,} input and {plan.output_tokens:,} output tokens{wait}"
    if budget.free:
        warn(f"{lab.model} at {lab.target.host}: {size}")
        return
    about = budget.about(plan.requests, plan.input_tokens, plan.output_tokens)
    if budget.limit is None:
        added = plan.input_tokens * BYTES_PER_TOKEN + plan.requests * ADDED_TOKENS
        budget.limit = budget.about(plan.requests, added, plan.output_tokens).quantize(Decimal("0.0001"), ROUND_UP)
    assert budget.row is not None
    source = f"prices of {lab.clock.now():%Y-%m-%d}: {budget.row.source or 'your file'}"
    warn(f"{lab.model} at {lab.target.host}: {size}; about ${about:.4f}, never more than ${budget.limit} ({source})")
    if options.yes:
        return
    if not _is_terminal(sys.stdin):
        raise BadTarget("this costs money and nobody can be asked (no terminal); say --yes")
    try:
        agreed = click.confirm("Send these requests?", err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        fail("stopped before anything was sent", ExitCode.STOPPED)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not stream.closed and bool(stream.isatty())


def _interrupt(number: int, frame: Any) -> NoReturn:
    """A request to end is an interrupt: what was measured is kept."""
    raise KeyboardInterrupt
