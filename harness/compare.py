"""The same tasks under several strategies: interleaved, apart from each other's caches, with real checks.

A task file is TOML: `target`, `model`, for the target "scripted" a list `reply` (the script of `cachewright serve`),
and a list `task` of

    name            in reports
    steps           what the user says, one after the other
    check           shell command in the task's folder; exit status 0 accepts the result
    files           table of files to begin with
    late_before     in front of this step (from 1) `late_tools` further tools join, as if a server came late
    compact_before  in front of this step the conversation is compacted

An arm is a strategy by name; `+` joins several. Each run has a folder, a session and a salt of its own in front of the
system text, so that runs cannot read each other's entries. Tools may do anything in the task's folder.
"""

import json
import math
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeAlias
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import BadSetting, HarnessError
from harness.opening import Opened, Options, Wiring, open_run
from harness.report import stages
from harness.tools.base import Tool, schema
from harness.wire import ToolSpec
from traces.schema import JsonObject

ARMS: dict[str, dict[str, Any]] = {
    "fixed": {"tools": "fixed"},
    "native": {"tools": "native"},
    "eager": {"tools": "eager"},
    "codemode": {"codemode": True},
    "prefix-summary": {"compact_how": "prefix"},
    "fresh-summary": {"compact_how": "fresh"},
    "staggered": {"stagger": True},
    "simultaneous": {"stagger": False},
    "no-breakpoints": {"breakpoints": False},
    "one-hour": {"ttl": "1h"},
    "keep-alive": {"keepalive": "running"},
}
CHECK_S = 120
BUNDLED = Path(__file__).parent / "tasks" / "cache.toml"


class Task(BaseModel):
    """One task of a file."""

    model_config = ConfigDict(extra="forbid")
    name: str
    steps: list[str] = Field(min_length=1)
    check: str
    files: dict[str, str] = Field(default_factory=dict)
    late_before: int = 0
    late_tools: int = 1
    compact_before: int = 0


class TaskFile(BaseModel):
    """A whole file. `target` "scripted" is a local server with the scripted model, started for the comparison."""

    model_config = ConfigDict(extra="forbid")
    target: str = "scripted"
    model: str
    task: list[Task] = Field(min_length=1)
    reply: list[JsonObject] = Field(default_factory=list)


def read_tasks(path: Path) -> TaskFile:
    """The tasks in a file. Raises `BadSetting`, one line: file, place, fact."""
    try:
        return TaskFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadSetting(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        raise BadSetting(f"{path}: {error}") from None


def settings_of(arm: str) -> dict[str, Any]:
    """Settings of an arm such as `eager` or `fixed+fresh-summary`. Raises `BadSetting`."""
    made: dict[str, Any] = {}
    for part in arm.split("+"):
        if part not in ARMS:
            raise BadSetting(f"--arm {arm}: no strategy {part!r}; there are {', '.join(ARMS)}")
        made |= ARMS[part]
    return made


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the auditor says of one run's ledger: input-token equivalents spent, avoidable ones, misses by cause."""

    equivalents: Decimal
    avoidable: Decimal
    causes: dict[str, int]


Judge: TypeAlias = Callable[[Path], Verdict]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one task under one arm."""

    arm: str
    task: str
    passed: bool
    seconds: float
    usd: Decimal | None
    input_tokens: int
    read_tokens: int
    stages: JsonObject
    verdict: Verdict
    error: str | None = None


@dataclass(slots=True)
class Comparison:
    """All runs."""

    arms: list[str]
    outcomes: list[Outcome] = field(default_factory=list)

    def of(self, arm: str) -> list[Outcome]:
        """Runs of one arm."""
        return [one for one in self.outcomes if one.arm == arm]


def plan(tasks: TaskFile, arms: list[str], repeat: int) -> Iterator[tuple[Task, str]]:
    """Interleaved: every arm has a turn before any has its next, and who goes first changes."""
    turn = 0
    for _ in range(repeat):
        for task in tasks.task:
            for place in range(len(arms)):
                yield task, arms[(place + turn) % len(arms)]
            turn += 1


def compare(
    tasks: TaskFile, arms: list[str], repeat: int, target: str, wiring: Wiring, judge: Judge,
    progress: Callable[[str], None],
) -> Comparison:  # fmt: skip
    """Run everything, one run after the other. Raises `BadSetting` before the first."""
    settings = {arm: settings_of(arm) for arm in arms}
    result = Comparison(arms)
    for task, arm in plan(tasks, arms, repeat):
        folder = Path(tempfile.mkdtemp(prefix="cachewright-"))
        try:
            outcome = one_run(task, arm, settings[arm], tasks.model, target, folder, wiring, judge)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        result.outcomes.append(outcome)
        progress(f"{arm} {task.name}: {'passed' if outcome.passed else outcome.error or 'not accepted'}")
    return result


def one_run(
    task: Task, arm: str, settings: dict[str, Any], model: str, target: str, folder: Path, wiring: Wiring, judge: Judge
) -> Outcome:
    """One task in a folder of its own."""
    work = folder / "work"
    for name, text in task.files.items():
        place = work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    work.mkdir(exist_ok=True)
    (work / "cachewright.toml").write_text('[permissions]\nread = "allow"\nwrite = "allow"\nrun = "allow"\n')
    options = Options(model=model, root=work, home=folder, target=target, salt=_salt(), **settings)
    start, error = time.monotonic(), None
    with open_run(options, replace(wiring, sink=None)) as run:
        try:
            _steps(run, task)
        except HarnessError as failure:
            error = str(failure)
        seconds = time.monotonic() - start
        rows, spent = list(run.ledger.rows), stages(run.ledger)
        ledger = run.shared.folder / "ledger.jsonl"
    known = [row.usd for row in rows if row.usd is not None]
    return Outcome(
        arm=arm,
        task=task.name,
        passed=error is None and _accepted(task.check, work),
        seconds=seconds,
        usd=sum(known, Decimal(0)) if len(known) == len(rows) else None,
        input_tokens=sum(row.call.usage.input_tokens or 0 for row in rows),
        read_tokens=sum(row.call.usage.read_tokens or 0 for row in rows),
        stages=spent,
        verdict=judge(ledger),
        error=error,
    )


def _salt() -> str:
    """Letters only: digits would make the count of tokens differ from run to run."""
    return uuid4().hex.translate(str.maketrans("0123456789", "ghijklmnop"))


def _steps(run: Opened, task: Task) -> None:
    for number, step in enumerate(task.steps, 1):
        if number == task.late_before:
            run.agent.add_tools([_late(index) for index in range(1, task.late_tools + 1)])
        if number == task.compact_before and run.agent.compactor is not None:
            run.agent.compactor.compact(run.agent.session)
        run.agent.say(step)


def _late(number: int) -> Tool:
    """A tool of a server that comes late; its name sorts into the middle of the list."""
    text = ("string", "What is looked for.")
    spec = ToolSpec(f"mcp__late__look_up_{number}", "Looks something up.", schema("what", what=text))
    return Tool(spec, "read", lambda arguments: f"nothing known of {arguments['what']}")


def _accepted(check: str, work: Path) -> bool:
    try:
        done = subprocess.run(["/bin/sh", "-c", check], cwd=work, capture_output=True, timeout=CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def wilson(passed: int, runs: int) -> tuple[float, float]:
    """95 % interval of a pass rate (Wilson 1927), which stays inside 0…1 for few runs."""
    z, share = 1.96, passed / runs
    middle = share + z * z / (2 * runs)
    spread = z * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    scale = 1 + z * z / runs
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def summary(comparison: Comparison) -> JsonObject:
    """The report: one row an arm, and each arm's saving against the first as measured and as the what-if says."""
    rows = [_row(arm, comparison.of(arm)) for arm in comparison.arms]
    for row in rows[1:]:
        row["against"] = _against(comparison, comparison.arms[0], row["arm"])
    return {"schema": "cachewright.compare/1", "arms": rows}


def _against(comparison: Comparison, base: str, arm: str) -> JsonObject:
    """What an arm spent more than `base`, in all and by task, as measured and as the what-if predicts."""
    tasks = list(dict.fromkeys(one.task for one in comparison.outcomes))
    found = {task: _apart(comparison, base, arm, {task}) for task in tasks}
    return {"arm": base, **_apart(comparison, base, arm, set(tasks)), "by_task": found}


def _apart(comparison: Comparison, base: str, arm: str, tasks: set[str]) -> JsonObject:
    ours = [one.verdict for one in comparison.of(arm) if one.task in tasks]
    theirs = [one.verdict for one in comparison.of(base) if one.task in tasks]
    none = Decimal(0)
    measured = sum((one.equivalents for one in ours), none) - sum((one.equivalents for one in theirs), none)
    predicted = sum((one.avoidable for one in ours), none) - sum((one.avoidable for one in theirs), none)
    share = float(abs(predicted - measured) / abs(measured)) if measured else None
    return {"measured_equivalents": measured, "predicted_equivalents": predicted, "difference": share}


def _row(arm: str, runs: list[Outcome]) -> JsonObject:
    passed = sum(one.passed for one in runs)
    low, high = wilson(passed, len(runs))
    usd = [one.usd for one in runs]
    cost = None if None in usd else sum((one for one in usd if one is not None), Decimal(0))
    seconds = [one.seconds for one in runs]
    causes: dict[str, int] = {}
    for one in runs:
        for cause, count in one.verdict.causes.items():
            causes[cause] = causes.get(cause, 0) + count
    inputs = sum(one.input_tokens for one in runs)
    return {
        "arm": arm,
        "runs": len(runs),
        "passed": passed,
        "pass_rate": passed / len(runs),
        "pass_interval": [low, high],
        "usd": cost,
        "usd_per_accepted": None if cost is None or not passed else cost / passed,
        "seconds_median": median(seconds),
        "seconds_p90": quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else seconds[0],
        "stages": {name: round(sum(one.stages[name] for one in runs), 3) for name in runs[0].stages},
        "hit_ratio": sum(one.read_tokens for one in runs) / inputs if inputs else None,
        "misses": causes,
        "input_equivalents": sum((one.verdict.equivalents for one in runs), Decimal(0)),
        "avoidable_equivalents": sum((one.verdict.avoidable for one in runs), Decimal(0)),
        "errors": [one.error for one in runs if one.error],
    }


def as_json(report: JsonObject) -> str:
    """One JSON document; money and equivalents as decimal strings."""
    return json.dumps(report, default=str, indent=1)


def as_text(report: JsonObject) -> str:
    """A table for people."""
    heads = ("arm", "passed", "95 %", "USD", "USD/accepted", "median s", "p90 s", "read", "equivalents", "misses")
    lines = [heads, *(_cells(row) for row in report["arms"])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    for row in report["arms"][1:]:
        found = row["against"]
        text.append(f"{row['arm']} against {found['arm']}, input-token equivalents more: measured, by what-if replay")
        named = [*found["by_task"].items(), ("in all", found)]
        text += [f"  {name:16} {_pair(one)}" for name, one in named if one["measured_equivalents"]]
    return "\n".join(text)


def _pair(one: JsonObject) -> str:
    measured, predicted = one["measured_equivalents"], one["predicted_equivalents"]
    apart = f"apart by {one['difference']:.1%}" if predicted else "no miss to mend: requests of another size"
    return f"{measured:>12,.1f} {predicted:>12,.1f}   {apart}"


def _cells(row: JsonObject) -> tuple[str, ...]:
    low, high = row["pass_interval"]
    misses = ", ".join(f"{cause} {count}" for cause, count in row["misses"].items()) or "none"
    return (
        row["arm"], f"{row['passed']}/{row['runs']}", f"{low:.0%}–{high:.0%}", _usd(row["usd"]),
        _usd(row["usd_per_accepted"]), f"{row['seconds_median']:.2f}", f"{row['seconds_p90']:.2f}",
        "?" if row["hit_ratio"] is None else f"{row['hit_ratio']:.1%}", f"{row['input_equivalents']:,.0f}", misses,
    )  # fmt: skip


def _usd(amount: Decimal | None) -> str:
    return "unpriced" if amount is None else f"${amount:.4f}"
