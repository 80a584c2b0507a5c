"""Three logs of a megabyte that a test runner wrote: a script finds the same failures with a fiftieth of the tokens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_monty", reason="the extra `codemode` is not installed")

import agents

from harness.dialects.messages import Messages
from harness.opening import Opened
from harness.scripted import Scripted
from localmodel.rules.load import load
from traces.schema import JsonObject

SUITE = """
import json, unittest

class Case(unittest.TestCase):
    pass

def make(n):
    def test(self):
        self.assertEqual(json.loads(json.dumps({{"n": n}}))["n"], n if n not in {broken} else n + 1)
    test.__doc__ = f"Number {{n}} survives being written as JSON and being read again, {name}."
    return test

for n in range(8500):
    setattr(Case, f"test_{name}_{{n:05}}", make(n))
"""
LOGS = {"alpha": (17, 4242), "beta": (6999,), "gamma": (3, 1500, 5000)}
SCRIPT = """
import re
failed, offset = [], 1
while offset:
    text = call_tool("read", path="{path}", offset=offset)
    failed = failed + re.findall(r"FAIL: (test_\\w+)", text)
    more = re.search(r"go on with offset (\\d+)", text)
    offset = int(more.group(1)) if more else 0
emit(sorted(set(failed)), "failed")
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for name, broken in LOGS.items():
        (folder / f"test_{name}.py").write_text(SUITE.format(name=name, broken=broken))
        with (folder / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "unittest", "-v", f"test_{name}"], cwd=folder, stderr=log, check=False
            )
        assert (folder / f"{name}.log").stat().st_size > 1_000_000
    return folder


def results(body: JsonObject) -> list[str]:
    blocks = [block for one in body["messages"] for block in one["content"] if block["type"] == "tool_result"]
    return ["".join(part["text"] for part in block["content"]) for block in blocks]


def call(name: str, number: int, arguments: JsonObject) -> list[JsonObject]:
    return [{"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}]


def asked(body: JsonObject) -> str:
    """The file of the one question."""
    return str(body["messages"][0]["content"][0]["text"]).split()[-1]


def by_reading(body: JsonObject) -> list[JsonObject]:
    """A model that reads the whole log page by page."""
    seen = results(body)
    more = re.search(r"go on with offset (\d+)", seen[-1]) if seen else None
    if not seen or more:
        return call("read", len(seen), {"path": asked(body), "offset": int(more[1]) if more else 1})
    names = sorted({name for text in seen for name in re.findall(r"FAIL: (test_\w+)", text)})
    return [{"type": "text", "text": " ".join(names)}]


def by_script(body: JsonObject) -> list[JsonObject]:
    """A model that sends one script."""
    seen = results(body)
    if not seen:
        return call("run_code", 0, {"code": SCRIPT.replace("{path}", asked(body))})
    found = re.search(r"\[failed\] (\[.*\])", seen[0])
    return [{"type": "text", "text": " ".join(re.findall(r"test_\w+", found[1] if found else ""))}]


def entered(run: Opened) -> int:
    """Tokens that the conversation holds besides the head."""
    first, last = run.ledger.rows[0].call.usage, run.ledger.rows[-1].call.usage
    return (last.input_tokens or 0) - (first.input_tokens or 0)


@pytest.mark.parametrize("name", LOGS)
def test_a_script_brings_a_fiftieth_of_the_tokens(logs: Path, tmp_path: Path, name: str) -> None:
    answers, tokens = {}, {}
    for way, reply in (("read", by_reading), ("script", by_script)):
        clock = agents.ManualClock()
        made = agents.options(tmp_path, "http://127.0.0.1:1", codemode=way == "script", root=tmp_path / "work")
        target = made.root / f"{name}.log"
        if not target.exists():
            target.write_bytes((logs / f"{name}.log").read_bytes())
        provider = Scripted(load("anthropic"), clock, reply)
        with agents.opened(made, provider=provider, dialect=Messages(), clock=clock) as run:
            assert run.agent.compactor is not None
            run.agent.compactor.trigger = None
            answers[way] = run.agent.say(f"Which tests failed in {name}.log")
            tokens[way] = entered(run)
    assert answers["read"] == answers["script"] == " ".join(f"test_{name}_{n:05}" for n in sorted(LOGS[name]))
    assert tokens["read"] > 50 * tokens["script"], tokens
