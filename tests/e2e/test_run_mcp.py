"""MCP servers in the middle of a session: lists that change touch the search only, and rude servers end no session."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import agents
import orjson

from harness.dialects.messages import Messages
from harness.errors import BadSetting
from harness.opening import Opened
from harness.scripted import Scripted
from harness.tools.mcp import tool_name
from harness.tools.toolbox import Mode
from harness.wire import Result, ToolCall
from localmodel.rules.load import load
from traces.canonical import dump
from traces.schema import JsonObject

ORACLE = Path(__file__).parents[1] / "oracle"
SDK = f"{sys.executable} {ORACLE / 'mcp_server.py'}"
RUDE = f"{sys.executable} {ORACLE / 'mcp_rude.py'}"


class Script:
    """A model that makes the calls it is given, one after the other, and then answers."""

    def __init__(self, *calls: tuple[str, JsonObject]) -> None:
        self.calls = list(calls)
        self.made = 0

    def __call__(self, body: JsonObject) -> list[JsonObject]:
        if not self.calls:
            return [{"type": "text", "text": "Done."}]
        name, arguments = self.calls.pop(0)
        self.made += 1
        return [{"type": "tool_use", "id": f"t{self.made}", "name": name, "input": arguments}]


@contextmanager
def held(
    folder: Path, script: Script, heard: agents.Heard, tools: Mode = "fixed", name: str = "", **servers: str
) -> Iterator[tuple[Opened, Scripted]]:
    clock = agents.ManualClock()
    provider = Scripted(load("anthropic"), clock, script)
    made = agents.options(folder, "http://127.0.0.1:1", tools=tools, resume=name or None)
    lines = "".join(f"{key} = {dump(value).decode()}\n" for key, value in servers.items())
    (made.root / "cachewright.toml").write_text(f"{agents.ALL}[mcp]\n{lines}")
    with agents.opened(made, heard, provider=provider, dialect=Messages(), clock=clock) as run:
        yield run, provider


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def heads(provider: Scripted) -> set[bytes]:
    """All that stands in front of the messages of each request, without markers and without deferred tools."""
    found = set()
    for raw in provider.bodies:
        body = orjson.loads(raw.replace(b',"cache_control":{"type":"ephemeral"}', b""))
        body["tools"] = [tool for tool in body["tools"] if not tool.get("defer_loading")]
        found.add(dump({name: body[name] for name in ("model", "tools", "system")}))
    return found


def call(run: Opened, name: str, arguments: JsonObject) -> Result:
    return run.agent.tools.call(ToolCall("x", name, arguments))


@pytest.mark.parametrize("tools", ["fixed", "native", "eager"])
def test_a_list_that_changes_touches_the_search_and_no_prefix(tmp_path: Path, tools: Mode) -> None:
    """The official SDK on both sides, over standard input and output, in mid-session."""
    heard = agents.Heard()
    grow = ("call_tool", {"name": "mcp__sums__grow", "arguments": {}}) if tools == "fixed" else ("mcp__sums__grow", {})
    script = Script(grow)
    with held(tmp_path, script, heard, tools, sums=SDK) as (run, provider):
        digest, listed = run.agent.session.head.digest, dump(run.agent.session.head.fields["tools"])
        run.agent.say("grow " * 400)
        until(lambda: heard.named("mcp_changed"))
        assert heard.named("mcp_changed") == [{"server": "sums", "new": ["mcp__sums__multiply"]}]
        numbers = {"a": 6, "b": 7}
        multiply: JsonObject = {"name": "mcp__sums__multiply", "arguments": numbers}
        script.calls += [
            ("search_tools", {"query": "multiply"}),
            ("call_tool", multiply) if tools == "fixed" else ("mcp__sums__multiply", numbers),
        ]
        run.agent.say("and now?")
        turns = [dump(list(turn.items)) for turn in run.agent.session.turns]
        gone = call(run, "mcp__sums__fail", {})
        after = run.agent.session.head
        calls = [row.call.usage for row in run.ledger.rows]
        result = agents.audited(run, load("anthropic"))
    assert after.digest == digest and len(heads(provider)) == 1
    assert (dump(after.fields["tools"]) == listed) == (tools != "native")  # deferred ones are no part of the prefix
    assert b"42" in turns[-2]
    assert gone.failed and "there is no tool 'mcp__sums__fail'" in gone.text
    told = b"(Further tools can be searched for now: mcp__sums__multiply.)" in turns[4]
    assert told == (tools != "eager")
    if tools != "eager":
        assert b"mcp__sums__multiply" in turns[6]
    assert all((one.read_tokens or 0) > 0 and one.uncached_tokens == 0 for one in calls[1:])
    assert {one.diagnosis for one in result.calls} == {None}


def test_older_servers_send_changes_unasked(tmp_path: Path) -> None:
    heard = agents.Heard()
    with held(tmp_path, Script(), heard, old=f"{RUDE} grows") as (run, _):
        assert call(run, "mcp__old__alpha", {}).text == "did it"
        until(lambda: heard.named("mcp_changed"))
        assert call(run, "mcp__old__late", {}).text == "did it"


def test_a_server_that_shuffles_its_list_changes_no_byte(tmp_path: Path) -> None:
    seen = set()
    for number in range(4):
        with held(tmp_path, Script(), agents.Heard(), "eager", f=f"{RUDE} shuffled") as (run, _):
            seen.add(run.agent.session.head.digest)
            run.agent.say(f"turn {number}")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (f"{RUDE} dead", "bad: "),
        ("/no/such/program", "bad: FileNotFoundError"),
        ("http://127.0.0.1:9/mcp", "bad: "),
    ],
)
def test_a_server_that_cannot_be_started_is_told_and_left_out(tmp_path: Path, where: str, words: str) -> None:
    heard = agents.Heard()
    with held(tmp_path, Script(), heard, bad=where, good=RUDE) as (run, _):
        assert run.agent.say("hello") == "Done."
        assert sorted(run.agent.tools.others) == [f"mcp__good__{name}" for name in ("alpha", "beta", "gamma")]
    (failed,) = heard.named("mcp_failed")
    assert failed["reason"].startswith(words) and "\n" not in failed["reason"]


@pytest.mark.slow
def test_a_server_that_never_answers_holds_nobody_up_for_long(tmp_path: Path) -> None:
    heard, start = agents.Heard(), time.monotonic()
    with held(tmp_path, Script(), heard, bad=f"{RUDE} silent") as (run, _):
        assert run.agent.say("hello") == "Done."
    assert time.monotonic() - start < 100
    assert heard.named("mcp_failed")


def test_a_server_that_dies_in_a_call_fails_that_call_only(tmp_path: Path) -> None:
    heard = agents.Heard()
    with held(tmp_path, Script(), heard, bad=f"{RUDE} dies", good=RUDE) as (run, _):
        died = call(run, "mcp__bad__alpha", {})
        again = call(run, "mcp__bad__alpha", {})
        assert call(run, "mcp__good__alpha", {}).text == "did it"
        assert run.agent.say("hello") == "Done."
    assert died.failed and "MCP server bad: " in died.text and "may have had an effect" in died.text
    assert again.failed


def test_ctrl_c_in_a_call_that_never_ends(tmp_path: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    script = Script(("call_tool", {"name": "mcp__bad__alpha", "arguments": {}}))
    with held(tmp_path, script, agents.Heard(), bad=f"{RUDE} stuck") as (run, _):
        timer = threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run.agent.say("go")
        assert run.agent.session.turns[-1].role == "results"
        assert run.agent.say("again") == "Done."


def test_a_name_listed_twice_counts_once(tmp_path: Path) -> None:
    heard = agents.Heard()
    with held(tmp_path, Script(), heard, "eager", two=f"{RUDE} twice") as (run, _):
        names = [tool["name"] for tool in run.agent.session.head.fields["tools"]]
    assert names.count("mcp__two__alpha") == 1 and names == sorted(names)
    assert heard.named("remark")[0]["text"] == "MCP server two lists 'alpha' twice; the first counts"


def test_names_fit_all_apis_and_stay_apart() -> None:
    assert tool_name("docs", "look_up") == "mcp__docs__look_up"
    made = {tool_name("my server", f"{'long' * 20}{end}") for end in ("a", "b", "ü")}
    assert len(made) == 3
    assert all(len(name) == 64 and name.isascii() and name.replace("_", "").replace("-", "").isalnum() for name in made)


@pytest.mark.parametrize("value", ["5", '""', '"unclosed \'quote"'])
def test_a_setting_that_is_no_server_is_refused(tmp_path: Path, value: str) -> None:
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    (made.root / "cachewright.toml").write_text(f"[mcp]\nodd = {value}\n")
    provider: Any = Scripted(load("anthropic"), agents.ManualClock())
    with (
        pytest.raises(BadSetting, match=r"mcp\.odd: want a command line or a URL"),
        agents.opened(made, provider=provider, dialect=Messages()),
    ):
        pass
