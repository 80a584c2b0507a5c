"""`cachewright compare`: tasks under several strategies. Here the harness gets its server, its prices and its judge."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli import ExitCode, fail, warn

if TYPE_CHECKING:  # loaded where they are used, so that `--help` stays quick
    from auditor.pricing import PriceList
    from harness.compare import Judge, TaskFile
    from localmodel.rules.load import Ruleset

_EPILOG = "TASKS.toml may be the word bundled: three tasks with real checks against a local server. See docs/run.md."


@click.command(epilog=_EPILOG)
@click.argument("tasks", metavar="TASKS.toml", type=click.Path(path_type=Path))
@click.option("--arm", "arms", metavar="NAME", multiple=True, required=True, help="Strategy to run; + joins several.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each task and arm.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema cachewright.compare/1).")
def command(tasks: Path, arms: tuple[str, ...], repeat: int, as_json: bool) -> None:
    """Run the same tasks under several strategies and compare results, cost and time.

    Runs are interleaved and share no cache. Each saving is shown as measured and as the auditor's what-if replay of the
    costlier arm predicts it.
    """
    from auditor.pricing import open_prices
    from harness import compare
    from harness.errors import HarnessError
    from harness.opening import Wiring
    from localmodel.rules.load import load
    from tui.commands.run import base_price, priced

    prices, rules = open_prices(), load("anthropic")
    try:
        found = compare.read_tasks(compare.BUNDLED if str(tasks) == "bundled" else tasks)
        wiring = Wiring(rules, priced(prices), base_price(prices))
        with _target(found) as target:
            done = compare.compare(found, list(arms), repeat, target, wiring, judge(rules, prices), warn)
    except HarnessError as error:
        fail(str(error), ExitCode.USAGE)
    report = compare.summary(done)
    click.echo(compare.as_json(report) if as_json else compare.as_text(report))


def judge(rules: "Ruleset", prices: "PriceList") -> "Judge":
    """The auditor's word on a ledger: what was spent, what the fixes would have saved, misses by cause."""
    from auditor.audit import audit
    from auditor.money import Money
    from auditor.policies import POLICIES
    from auditor.whatif import Policy, Trial, run
    from harness.compare import Verdict
    from harness.policies import POLICIES as OWN
    from traces import io

    def verdict(ledger: Path) -> Verdict:
        calls = list(io.read(ledger)) if ledger.stat().st_size else []
        bodies = {call.id: call.request for call in calls}
        result = audit(calls, rules, lambda one: bodies[one.call.id])
        money = Money(result.calls, prices)
        trial = Trial(result, money)
        fixes: list[Policy] = [policy for policy in POLICIES if policy.remedy and trial.diagnosed(policy)]
        saving = run(trial, [*fixes, *OWN], "arm")
        lost = [one.diagnosis.primary.cause for one in result.calls if one.diagnosis and one.diagnosis.lost_tokens]
        return Verdict(money.total.equivalents, saving.saving_equivalents or Decimal(0), dict(Counter(lost)))

    return verdict


@contextlib.contextmanager
def _target(tasks: "TaskFile") -> Iterator[str]:
    """The target itself, or for "scripted" the URL of a local server that lives as long as the comparison."""
    if tasks.target != "scripted":
        yield tasks.target
        return
    with tempfile.TemporaryDirectory(prefix="cachewright-") as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"reply": tasks.reply}))
        with _served({"port": 0, "model": "scripted", "script": str(script)}) as url:
            yield url


@contextlib.contextmanager
def _served(settings: dict[str, object]) -> Iterator[str]:
    environment = {**os.environ, "CACHEWRIGHT_SERVE": json.dumps(settings)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "localmodel.server"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            fail("the local server did not start; pip install 'cachewright[local]'", ExitCode.PROVIDER)
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait(20)
