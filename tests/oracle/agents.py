"""The harness for tests: sessions against the local server of `serving`, with everything it says kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

from auditor.audit import audit
from auditor.records import Audit
from harness.opening import Opened, Options, Wiring, open_run
from harness.session import Shared
from harness.tools.base import Tool, schema
from harness.wire import ToolSpec
from localmodel.rules.load import load
from traces import io

MODEL = "claude-opus-5"
ALL = '[permissions]\nread = "allow"\nwrite = "allow"\nrun = "allow"\n'


@dataclass
class Heard:
    """Events of a run."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, event: str, **members: Any) -> None:
        self.events.append((event, members))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [members for event, members in self.events if event == name]


@dataclass
class ManualClock:
    """Time that passes only when somebody sleeps or a test says so."""

    moment: datetime = field(default_factory=lambda: datetime(2026, 11, 20, 10, tzinfo=UTC))

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)

    def wait(self, event: Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()


def options(folder: Path, url: str, **rest: Any) -> Options:
    root = folder / "work"
    root.mkdir(exist_ok=True)
    if not (root / "cachewright.toml").exists():
        (root / "cachewright.toml").write_text(ALL)
    return Options(**{"model": MODEL, "root": root, "home": folder, "target": url, **rest})


@contextmanager
def opened(made: Options, heard: Heard | None = None, **wiring: Any) -> Iterator[Opened]:
    rules = wiring.pop("rules", None) or load("anthropic")
    with open_run(made, Wiring(rules=rules, emit=heard or Heard(), **wiring)) as run:
        yield run


def rules_like(server: Any) -> Any:
    """The very rules that a test's server follows, `--set` included."""
    return server.service.ledger.rules


def audited(run: Opened, ruleset: Any) -> Audit:
    """The auditor's word on a run's ledger."""
    calls = list(io.read(run.shared.folder / "ledger.jsonl"))
    bodies = {call.id: call.request for call in calls}
    return audit(calls, ruleset, lambda one: bodies[one.call.id])


def tool(name: str, text: str = "Does something.", answer: str = "done", **properties: Any) -> Tool:
    """A tool that always answers the same."""
    return Tool(ToolSpec(name, text, schema(**properties)), "read", lambda arguments: answer)


def with_resume(made: Options, name: str) -> Options:
    return replace(made, resume=name)


def with_emit(shared: Shared, heard: Heard) -> Shared:
    return replace(shared, emit=heard)
