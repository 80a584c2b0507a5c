"""From options to a working agent: the one place where the harness's parts are put together.

Prices and the store come from outside (`Wiring`): they belong to the auditor, which the harness does not know.
"""

import sys
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from threading import Lock
from uuid import uuid4

from harness.attempt import Emit, silent
from harness.breakpoints import Forecast
from harness.clock import Clock, SystemClock
from harness.compaction import Compactor
from harness.errors import BadSetting
from harness.journal import read
from harness.keepalive import BasePrice, Warmer
from harness.keepalive import Mode as KeepAlive
from harness.ledger import Ledger, Price, Sink
from harness.loop import Agent, delegate_tool
from harness.prompt import system_text
from harness.providers.base import Provider
from harness.providers.sdk import SdkProvider
from harness.providers.targets import target
from harness.session import Session, Shared, begin, fork, resume
from harness.spill import Spill
from harness.tools.base import Tool
from harness.tools.files import file_tools
from harness.tools.permissions import Ask, permissions
from harness.tools.shell import shell_tool
from harness.tools.toolbox import Mode, Toolbox, check_mode, read_output_tool
from harness.wire import Dialect
from localmodel.rules.step import DatedRules
from traces.schema import JsonObject, Ttl

WINDOW = 200_000
SETTINGS = "cachewright.toml"
_ASKING = Lock()  # sub-agents may want consent at the same time


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked for. `root`: working folder; `home`: where sessions are kept."""

    model: str
    root: Path
    home: Path
    target: str = "anthropic"
    resume: str | None = None
    fork: str | None = None
    tools: Mode = "fixed"
    codemode: bool = False
    keepalive: KeepAlive = "off"
    budget: Decimal | None = None
    salt: str = ""
    window: int = WINDOW
    compact_how: str | None = None
    stagger: bool = True
    breakpoints: bool = True
    ttl: Ttl = "5m"


def _no_price(*_: object) -> Decimal | None:
    return None


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the harness is given by whoever starts it."""

    rules: DatedRules
    price: Price = _no_price
    base: BasePrice = _no_price
    sink: Sink | None = None
    emit: Emit = silent
    ask: Ask | None = None
    text: Callable[[str], None] | None = None
    clock: Clock = field(default_factory=SystemClock)
    provider: Provider | None = None
    dialect: Dialect | None = None


@dataclass(slots=True)
class Opened:
    """A running agent and what must be closed after it."""

    agent: Agent
    ledger: Ledger
    shared: Shared
    _closing: ExitStack

    def close(self) -> None:
        """End keep-alive, tool servers and files."""
        if self.agent.warmer is not None:
            self.agent.warmer.pause()
        self.agent.session.journal.close()
        self.ledger.close()
        self._closing.close()

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_run(options: Options, wiring: Wiring) -> Opened:
    """Begin, resume or fork a session. Raises `HarnessError` before anything is sent."""
    goal = target(options.target)
    dialect = wiring.dialect or goal.dialect
    provider = wiring.provider or SdkProvider(goal)
    check_mode(options.tools, dialect.api, provider.name, provider.host, options.model)
    name = options.resume or uuid4().hex[:12]
    folder = options.home / "sessions" / name
    if options.resume and not (folder / "main.jsonl").is_file():
        raise BadSetting(f"--resume {name}: no such session in {options.home / 'sessions'}")
    settings = read_settings(options.root)
    ledger = Ledger(folder / "ledger.jsonl", wiring.price, wiring.sink, budget=options.budget)
    shared = Shared(
        folder, name, provider, dialect, ledger, Forecast(wiring.rules), wiring.clock, emit=wiring.emit,
        ttl=options.ttl, breakpoints=options.breakpoints,
    )  # fmt: skip
    with ExitStack() as stack:
        tools = _tools(options, wiring, folder, settings, stack)
        session = _session(options, shared, tools)
        how = options.compact_how
        compactor = Compactor(options.window, "fresh" if how == "fresh" else "prefix" if how == "prefix" else None)
        warmer = Warmer(options.keepalive, wiring.base)
        agent = Agent(session, tools, compactor, warmer, options.stagger, wiring.text)
        return Opened(agent, ledger, shared, stack.pop_all())


def _session(options: Options, shared: Shared, tools: Toolbox) -> Session:
    if options.resume:
        session = resume(shared)
        _same_model(options, session.head.fields)
        return session
    if options.fork:
        source = options.home / "sessions" / options.fork / "main.jsonl"
        _same_model(options, read(source).fields)
        return fork(source, shared)
    text = system_text(options.root, options.salt)
    fields = shared.dialect.head(options.model, text, tools.specs(), shared.name)
    return begin(shared, fields, target=options.target, tools=options.tools)


def _same_model(options: Options, fields: JsonObject) -> None:
    if fields.get("model") != options.model:
        raise BadSetting(
            f"--model {options.model}: the session was held with {fields.get('model')}; another model shares no cache "
            "with it, so begin a new session"
        )


def read_settings(root: Path) -> JsonObject:
    """`cachewright.toml` of the working folder: tables `permissions` and `mcp`. Raises `BadSetting`."""
    path = root / SETTINGS
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSetting(f"{path}: {error}") from None
    for name, table in found.items():
        if name not in ("permissions", "mcp") or not isinstance(table, dict):
            raise BadSetting(f"{path}: {name}: want the tables permissions and mcp")
    return found


def _tools(options: Options, wiring: Wiring, folder: Path, settings: JsonObject, stack: ExitStack) -> Toolbox:
    spill = Spill(folder / "spill")
    builtin = [*file_tools(options.root), shell_tool(options.root), read_output_tool(spill), delegate_tool()]
    gate = permissions(settings.get("permissions", {}), wiring.ask)
    box = Toolbox(_named(builtin), {}, options.tools, gate, spill)
    if settings.get("mcp"):
        from harness.tools.mcp import servers

        servers(settings["mcp"], folder, stack, wiring.emit, box.relist)
        box.news.clear()
    if options.codemode:
        from harness.codemode import code_tool

        box.builtin["run_code"] = code_tool(box, folder, wiring.emit)
    return box


def _named(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


def terminal_ask(name: str, arguments: JsonObject) -> bool:
    """Ask the person at the terminal."""
    shown = ", ".join(f"{key}={str(value)[:200]!r}" for key, value in arguments.items())
    with _ASKING:
        sys.stderr.write(f"allow {name}({shown})? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
