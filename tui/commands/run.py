"""`cachewright run`: the agent. Here the harness gets its prices, its store and its terminal."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tui.cli import ExitCode, fail, warn
from tui.commands.options import Dollars

if TYPE_CHECKING:  # loaded where they are used, so that `--help` stays quick
    from auditor.pricing import PriceList
    from harness.errors import HarnessError
    from harness.ledger import Ledger
    from harness.opening import Opened, Options, Wiring
    from localmodel.rules.load import Ruleset
    from traces.schema import Call

_EPILOG = (
    "Without -p it is a conversation: /cost, /compact [FOCUS] and /exit are commands. Permissions and MCP servers "
    "stand in cachewright.toml of the working folder; see docs/run.md."
)


@click.command(epilog=_EPILOG)
@click.option("-p", "prompt", metavar="TEXT", help="Do this task and stop; the answer goes to stdout.")
@click.option(
    "--target",
    default="anthropic",
    show_default=True,
    metavar="anthropic|openai|deepseek|URL",
    help="Who is asked. A URL speaks Messages, unless it ends in /chat/completions or /responses.",
)
@click.option("--model", required=True, help="Model to ask for.")
@click.option("--db", type=click.Path(path_type=Path), help="Store for the ledger; sessions are kept beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")
@click.option("--resume", metavar="ID", help="Continue a session; what was sent is sent again byte for byte.")
@click.option("--fork", metavar="ID", help="Begin a new session with the conversation of another.")
@click.option(
    "--tools",
    type=click.Choice(["fixed", "native", "eager"]),
    show_default="fixed, or as resumed",
    help="How the model gets to know further tools: by two fixed entries, deferred, or all up front.",
)
@click.option(
    "--thinking",
    metavar="adaptive|TOKENS",
    help="Let the model think (Messages API): as it sees fit, or within a budget. The same for the whole session.",
)
@click.option("--codemode", is_flag=True, help="Offer a tool that runs scripts which arrange tool calls.")
@click.option(
    "--keepalive",
    type=click.Choice(["off", "running", "idle"]),
    default="off",
    show_default=True,
    help="Refresh the cache before it expires while tools run, or also while you are away, where that pays.",
)
@click.option("--budget", type=Dollars(), metavar="USD", help="Send nothing more once this is spent.")
def command(
    prompt: str | None,
    target: str,
    model: str,
    db: Path | None,
    as_json: bool,
    resume: str | None,
    fork: str | None,
    tools: Literal["fixed", "native", "eager"] | None,
    thinking: str | None,
    codemode: bool,
    keepalive: Literal["off", "running", "idle"],
    budget: Decimal | None,
) -> None:
    """Run a coding agent whose prompt prefix stays cached, with every attempt on one ledger.

    `cachewright audit --db FILE` reads that ledger.
    """
    from auditor.store import default_path
    from harness.errors import HarnessError
    from harness.opening import Options, open_run

    if resume and fork:
        raise click.UsageError("--resume continues a session, --fork begins another: name one of them")
    store = db or default_path()
    options = Options(
        model=model, root=Path.cwd(), home=store.parent, target=target, resume=resume, fork=fork, tools=tools,
        thinking=thinking, codemode=codemode, keepalive=keepalive, budget=budget,
    )  # fmt: skip
    try:
        wiring = _wiring(store, options, as_json, interactive=prompt is None)
        with open_run(options, wiring) as run:
            _hold(run, options, prompt)
    except HarnessError as error:
        fail(str(error), _code(error))


def _code(error: "HarnessError") -> ExitCode:
    from harness.errors import BadSetting, JournalDamaged, ProviderFailed

    codes = {BadSetting: ExitCode.USAGE, JournalDamaged: ExitCode.UNREADABLE, ProviderFailed: ExitCode.PROVIDER}
    return codes.get(type(error), ExitCode.FINDINGS)


def _wiring(store: Path, options: "Options", as_json: bool, *, interactive: bool) -> "Wiring":
    from auditor.pricing import open_prices
    from harness.errors import BadSetting
    from harness.opening import Wiring, terminal_ask

    prices = open_prices()
    price, base = priced(prices), base_price(prices)
    if options.budget is not None and not _is_priced(prices, options):
        raise BadSetting(f"--budget: {options.model} has no price, so nothing can be counted against it")
    ask = terminal_ask if interactive and sys.stdin.isatty() else None
    screen = _Screen()
    shown = None if as_json else screen.show
    emit = _json_event if as_json else screen.tell
    return Wiring(_rules(options), price, base, sink_to(store), emit, ask, shown)


def _rules(options: "Options") -> "Ruleset":
    """The rules of the API that is asked, and Anthropic's for the local server, which follows them unless told else."""
    from harness.providers.targets import hosted, target
    from localmodel.rules.book import Rulebook
    from localmodel.rules.load import load

    owner = hosted(target(options.target).host)
    own = None if owner is None else Rulebook().of(owner.name, options.model)
    return own or load("anthropic")


def priced(prices: "PriceList") -> "Callable[[Call], Decimal | None]":
    """The price of a call, `None` where model or usage is unknown."""
    from auditor.pricing import cost

    def price(call: "Call") -> Decimal | None:
        row = prices.rate(call.provider, call.model, call.started_at)
        if row is None or call.usage.input_tokens is None or call.usage.read_tokens is None:
            return None
        return cost(call.usage, row, tier="5m").usd

    return price


def base_price(prices: "PriceList") -> Callable[[str, str, datetime], Decimal | None]:
    """US dollars for one token of ordinary input."""
    from auditor.price_rows import at

    def base(provider: str, model: str, moment: datetime) -> Decimal | None:
        row = prices.rate(provider, model, moment)
        price = None if row is None else at(row.input, 0)
        return None if price is None else price / 1_000_000

    return base


def _is_priced(prices: "PriceList", options: "Options") -> bool:
    from harness.providers.targets import target

    return prices.rate(target(options.target).name, options.model, None) is not None


def sink_to(store: Path) -> "Callable[[Call], None]":
    """Puts calls into the store; opened for each, since they come from several threads. Failing is a warning, once."""
    from auditor.errors import AuditError
    from auditor.store import Store

    failed = False

    def sink(call: "Call") -> None:
        nonlocal failed
        try:
            with Store.open(store) as opened:
                opened.add([call])
        except AuditError as error:
            if not failed:
                warn(f"not stored: {error}; the session's ledger file has every call")
            failed = True

    return sink


def _hold(run: "Opened", options: "Options", prompt: str | None) -> None:
    """One task, or a conversation."""
    from harness.errors import HarnessError
    from harness.report import cost_json

    run.shared.emit("session", id=run.shared.name, model=options.model, folder=str(run.shared.folder))
    if prompt is not None:
        try:
            text = _answer(run, options, prompt)
        except HarnessError as error:
            run.shared.emit("failed", reason=str(error), cost=cost_json(run.agent))
            raise
        run.shared.emit("done", text=text, cost=cost_json(run.agent))
        return
    for line in _lines():
        if not line.strip():
            continue
        if line.startswith("/"):
            if not _command(run, line.strip()):
                return
            continue
        with _stoppable():
            _answer(run, options, line)
        if run.agent.warmer is not None:
            run.agent.warmer.idle(run.agent.session)


def _answer(run: "Opened", options: "Options", text: str) -> str:
    from harness.prompt import first_words
    from harness.report import cache_line

    fresh = not run.agent.session.turns
    answer = run.agent.say(first_words(options.root, text) if fresh else text)
    run.shared.emit("answer", text=answer)
    run.shared.emit("cache", line=cache_line(run.agent, partial(why, run.ledger, _rules(options))))
    return answer


def why(ledger: "Ledger", rules: "Ruleset", call: "Call") -> str | None:
    """The auditor's word on why a call on this ledger missed."""
    from auditor.audit import audit

    calls = [row.call for row in ledger.rows]
    bodies = {one.id: one.request for one in calls}
    found = audit(calls, rules, lambda one: bodies[one.call.id]).calls
    diagnosis = next((one.diagnosis for one in found if one.call.id == call.id), None)
    return None if diagnosis is None else diagnosis.primary.cause.replace("_", " ")


def _command(run: "Opened", line: str) -> bool:
    """A line that begins with a slash; whether the conversation goes on."""
    from harness.errors import HarnessError
    from harness.report import cost_text

    word, _, rest = line.partition(" ")
    if word in ("/exit", "/quit"):
        return False
    if word == "/cost":
        click.echo(cost_text(run.agent), err=True)
    elif word == "/compact" and run.agent.compactor is not None:
        try:
            run.agent.compactor.compact(run.agent.session, rest)
        except HarnessError as error:
            warn(str(error))
    else:
        warn(f"no command {word}; there are /cost, /compact [FOCUS] and /exit")
    return True


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """In a conversation Ctrl-C ends the answer under way, and failures end it too; the session goes on."""
    from harness.errors import BudgetSpent, HarnessError

    try:
        yield
    except KeyboardInterrupt:
        warn("stopped; say what to do next, or /exit")
    except BudgetSpent:
        raise
    except HarnessError as error:
        warn(str(error))


def _lines() -> Iterator[str]:
    """Lines that the user types, until the end of input or a Ctrl-C at the prompt."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield line


class _Screen:
    """The answer on stdout as it comes, all else as words on stderr; each answer ends with a line end."""

    def __init__(self) -> None:
        self._open = False

    def show(self, piece: str) -> None:
        """A piece of the answer."""
        from auditor.visible import visible

        self._open = not piece.endswith("\n")
        click.echo("\n".join(visible(part) for part in piece.split("\n")), nl=False)

    def tell(self, event: str, **members: Any) -> None:
        """What happens."""
        if self._open:
            click.echo()
            self._open = False
        text = _words(event, members)
        if text:
            warn(text)


def _words(event: str, members: dict[str, Any]) -> str:
    """An event for people; "" where there is nothing to say."""
    if event == "tool":
        return f"· {members['name']} {json.dumps(members['arguments'], ensure_ascii=False)[:160]}"
    if event == "tool_result":
        return f"  failed: {members['text'][:160]}" if members["failed"] else ""
    if event in ("retry", "compaction_failed", "mcp_failed"):
        return f"{event.replace('_', ' ')}: {members['reason']}"
    if event == "keepalive":
        return f"keep-alive: {members['reason']}"
    if event == "mcp_changed":
        return f"MCP server {members['server']} has further tools: {', '.join(members['new'])}"
    said = {"session": ("id", "session {}"), "cache": ("line", "{}"), "remark": ("text", "{}"),
            "sandbox": ("words", "scripts run in {}"), "compacted": ("how", "compacted ({})")}  # fmt: skip
    name, form = said.get(event, ("", ""))
    return form.format(members[name]) if name else ""


def _json_event(event: str, **members: Any) -> None:
    click.echo(json.dumps({"event": event, **members}, ensure_ascii=False, default=str))
