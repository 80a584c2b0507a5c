"""From options to a working agent: the one place where the harness's parts are put together.

Prices and the store come from outside (`Wiring`): they belong to the auditor, which the harness does not know.
"""

import sys
import tomllib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from threading import Lock
from time import time
from uuid import uuid4

from harness.attempt import Emit, silent
from harness.breakpoints import Forecast
from harness.clock import Clock, SystemClock
from harness.compaction import Compactor, How
from harness.errors import BadSetting
from harness.journal import State, read
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
from harness.thinking import room, thinking
from harness.tools.base import Tool
from harness.tools.files import file_tools
from harness.tools.permissions import Ask, permissions
from harness.tools.shell import shell_tool
from harness.tools.toolbox import Mode, Toolbox, check_mode, read_output_tool
from harness.wire import Dialect, offered
from localmodel.rules.step import DatedRules
from traces import io
from traces.errors import UnreadableInput
from traces.schema import Call, JsonObject, Ttl

ANSWER_TOKENS = 8_192
SHOWN_CHARS = 2_000
SETTINGS = "cachewright.toml"
RECALLED_S = 3600
"""Older calls of other sessions are not looked at: no entry of the Messages API outlives it unused."""

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
    tools: Mode | None = None
    """`None`: as the stored session has it, `fixed` for a new one."""

    thinking: str | None = None
    codemode: bool = False
    keepalive: KeepAlive = "off"
    budget: Decimal | None = None
    salt: str = ""
    compact_how: How | None = None
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
        self._closing.close()

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_run(options: Options, wiring: Wiring) -> Opened:
    """Begin, resume or fork a session. Raises `HarnessError` before anything is sent."""
    goal = target(options.target)
    dialect = wiring.dialect or goal.dialect
    source = options.resume or options.fork
    stored = None if source is None else _stored(options, source)
    if stored is not None:
        options = _as_held(options, stored, dialect)
    mode = options.tools or "fixed"
    parameters = _parameters(options, dialect, stored)
    provider = wiring.provider or SdkProvider(goal)
    check_mode(mode, dialect.api, provider.name, provider.host, options.model)
    name = options.resume or uuid4().hex[:12]
    folder = options.home / "sessions" / name
    settings = read_settings(options.root)
    with ExitStack() as stack:
        ledger = Ledger(folder / "ledger.jsonl", wiring.price, wiring.sink, budget=options.budget)
        stack.callback(ledger.close)
        forecast = Forecast(wiring.rules)
        _recall(forecast, folder, wiring.clock.now())
        shared = Shared(
            folder, name, provider, dialect, ledger, forecast, wiring.clock, emit=wiring.emit,
            max_tokens=ANSWER_TOKENS + room(parameters), ttl=options.ttl, breakpoints=options.breakpoints,
        )  # fmt: skip
        tools = _tools(options, mode, wiring, folder, settings, stack)
        session = _session(options, mode, shared, tools, parameters)
        stack.callback(session.journal.close)
        warmer = Warmer(options.keepalive, wiring.base)
        stack.callback(warmer.pause)
        agent = Agent(session, tools, Compactor(options.compact_how), warmer, options.stagger, wiring.text)
        return Opened(agent, ledger, shared, stack.pop_all())


def _recall(forecast: Forecast, own: Path, now: datetime) -> None:
    """What other sessions sent of late can be read here: a fork's prefix, and the head that all share."""
    calls: list[Call] = []
    for ledger in own.parent.glob("*/ledger.jsonl"):
        with suppress(OSError, UnreadableInput):
            if ledger.parent != own and ledger.stat().st_mtime > time() - RECALLED_S:
                calls += io.read(ledger)
    dated = [(call.started_at, call) for call in calls if call.started_at is not None]
    for at, call in sorted(dated, key=lambda one: one[0]):
        if (now - at).total_seconds() < RECALLED_S:
            forecast.settle(call)


def _stored(options: Options, name: str) -> State:
    """The journal of a session that is to be continued. Raises `BadSetting`, `JournalDamaged`."""
    option = "--resume" if options.resume else "--fork"
    place = options.home / "sessions"
    if "/" in name or name.startswith(".") or not (place / name / "main.jsonl").is_file():
        raise BadSetting(f"{option} {name}: no such session in {place}")
    return read(place / name / "main.jsonl")


def _as_held(options: Options, stored: State, dialect: Dialect) -> Options:
    """The options of a stored session: all that stands in its head is as it was. Raises `BadSetting` for other ones."""
    fields, head = stored.fields, stored.head
    again = "it is part of the prefix, so begin a new session for that"
    if fields.get("model") != options.model:
        raise BadSetting(f"--model {options.model}: the session was held with {fields.get('model')}; {again}")
    held_at = head.get("target")
    if isinstance(held_at, str) and target(held_at).dialect != dialect:
        raise BadSetting(f"--target {options.target}: the session was held with {held_at}, another API; {again}")
    if options.tools not in (None, head.get("tools")):
        raise BadSetting(f"--tools {options.tools}: the session was held with {head.get('tools')}; {again}")
    if options.codemode and "run_code" not in offered(fields):
        raise BadSetting(f"--codemode: the session was held without; {again}")
    return replace(options, tools=head.get("tools"), codemode="run_code" in offered(fields))


def _parameters(options: Options, dialect: Dialect, stored: State | None) -> JsonObject:
    """Members of the head besides those of the dialect. Raises `BadSetting` where a stored session has others."""
    asked = {} if options.thinking is None else {"thinking": thinking(options.thinking, dialect.api)}
    if stored is None:
        return asked
    held = {"thinking": stored.fields["thinking"]} if "thinking" in stored.fields else {}
    if asked and asked != held:
        was = held["thinking"] if held else "no thinking"
        raise BadSetting(
            f"--thinking {options.thinking}: the session was held with {was}; a change would cost its cached messages"
        )
    return held


def _session(options: Options, mode: Mode, shared: Shared, tools: Toolbox, parameters: JsonObject) -> Session:
    if not (options.resume or options.fork):
        text = system_text(options.root, options.salt)
        fields = shared.dialect.head(options.model, text, tools.specs(), shared.name)
        return begin(shared, {**fields, **parameters}, target=options.target, tools=mode)
    if options.resume:
        session = resume(shared)
    else:
        session = fork(options.home / "sessions" / str(options.fork) / "main.jsonl", shared)
    gone = sorted(offered(session.head.fields) - tools.known())
    if gone:
        shared.emit("remark", text=f"the session offers tools that are not there now: {', '.join(gone)}")
    return session


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


def _tools(
    options: Options, mode: Mode, wiring: Wiring, folder: Path, settings: JsonObject, stack: ExitStack
) -> Toolbox:
    spill = Spill(folder / "spill")
    builtin = [*file_tools(options.root), shell_tool(options.root), read_output_tool(spill), delegate_tool()]
    gate = permissions(settings.get("permissions", {}), wiring.ask)
    box = Toolbox(_named(builtin), {}, mode, gate, spill)
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


def _whole(value: object) -> str:
    """A value for people who decide about it: nothing acts on the terminal, and what is left out is said."""
    text = str(value)
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r} and {len(text) - SHOWN_CHARS} more"


def terminal_ask(name: str, arguments: JsonObject) -> bool:
    """Ask the person at the terminal."""
    shown = ", ".join(f"{key}={_whole(value)}" for key, value in arguments.items())
    with _ASKING:
        sys.stderr.write(f"allow {name}({shown})? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
