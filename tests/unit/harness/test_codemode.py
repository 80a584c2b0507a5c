"""Scripts arrange tool calls, and nothing they try gets out: files, network, forks, memory, time, output."""

import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic_monty", reason="the extra `codemode` is not installed")

import agents

from harness.codemode import Script
from harness.sandbox import Sandbox, sandbox
from harness.spill import Spill
from harness.tools.files import file_tools
from harness.tools.permissions import Permissions
from harness.tools.shell import shell_tool
from harness.tools.toolbox import Toolbox


@pytest.fixture(params=["found here", "monty alone"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    if request.param == "monty alone":
        return Sandbox(None, "", False)
    found = sandbox(tmp_path)
    if not found.isolated:
        pytest.skip(found.words)
    return found


@pytest.fixture
def box(tmp_path: Path) -> Toolbox:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.log").write_text("ok\nFAILED test_one\nok\n")
    tools = {tool.name: tool for tool in [*file_tools(work), shell_tool(work)]}
    late = agents.tool("late", answer="x" * 50_000)
    return Toolbox(tools, {"late": late}, "fixed", Permissions(), Spill(tmp_path / "spill"))


def run(box: Toolbox, place: Sandbox, code: str, seconds: float = 5, memory: int = 64 * 2**20) -> str:
    return Script(box, place, {}, seconds, memory).run(code)


def test_only_evidence_value_and_files_come_back(box: Toolbox, place: Sandbox) -> None:
    code = """
text = call_tool("read", path="a.log")
bad = [line for line in text.split("\\n") if "FAILED" in line]
emit(bad, "failures")
whole = call_tool("late")
print("seen", len(whole))
len(bad)
"""
    report = run(box, place, code)
    assert report.startswith("status ok, ")
    assert '[failures] ["2\\tFAILED test_one"]' in report
    assert "value: 1" in report
    assert "seen 50000" in report
    assert "2 tool calls (0 failed)" in report
    assert len(report) < 500
    name = report.split("file ")[1].split(":")[0]
    assert "x" * 1000 in (box.spill.folder / name).read_text()


def test_nested_calls_pass_the_same_permissions(box: Toolbox, place: Sandbox) -> None:
    report = run(box, place, 'call_tool("shell", command="touch escaped")')
    assert "status error" in report
    assert "shell needs a person's consent" in report
    assert not list(box.spill.folder.parent.rglob("escaped"))


@pytest.mark.parametrize("rule", ["shell", "run"])
def test_what_is_denied_is_denied_in_a_script_too(box: Toolbox, place: Sandbox, rule: str) -> None:
    asked: list[str] = []

    def refuse(name: str, arguments: object) -> bool:
        asked.append(name)
        return False

    box.permissions = Permissions({rule: "deny", "write": "ask"}, refuse)
    for name, arguments in (("shell", "command='touch escaped'"), ("write", "path='escaped', content=''")):
        report = run(box, place, f"call_tool({name!r}, {arguments})")
        assert "status error" in report and ("is denied by" in report or "the user refused" in report)
    assert asked == ["write"]  # what is denied is not asked for
    assert not list(box.spill.folder.parent.rglob("escaped"))


def test_a_failing_call_can_be_caught_and_partial_output_survives(box: Toolbox, place: Sandbox) -> None:
    code = """
try:
    call_tool("read", path="missing")
except RuntimeError as error:
    emit(str(error), "caught")
print("before")
1 / 0
"""
    report = run(box, place, code)
    assert "[caught] missing: no such file" in report
    assert "before" in report
    assert "ZeroDivisionError" in report
    assert "Calls made before it are not undone" in report


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
        ("import os\nos.listdir('/')", "Error"),
        ("import socket", "ModuleNotFoundError"),
        ("import urllib.request", "ModuleNotFoundError"),
        ("import os\nos.fork()", "AttributeError"),
        ("import os\nos.system('true')", "AttributeError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("().__class__.__base__.__subclasses__()", "AttributeError"),
        ("__import__('os').system('true')", "Error"),
        ("call_tool.__globals__", "AttributeError"),
        ("call_tool('read', path='../../../etc/passwd')", "outside the working folder"),
        ("eval(\"__import__('os').system('true')\")", "Error"),
    ],
)
def test_escapes_are_denied(box: Toolbox, place: Sandbox, code: str, word: str) -> None:
    report = run(box, place, code)
    assert report.startswith("status error")
    assert word in report
    assert "root:" not in report


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True:\n    pass", "timeout"),
        ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", None),
        ("x = [0] * 10**9", "memory"),
        ("x = 'a'\nwhile True:\n    x = x + x", "memory"),
        ("def f():\n    f()\nf()", "error"),
        ("while True:\n    print('y' * 10000)", "memory"),
        ("while True:\n    call_tool('read', path='a.log')", "limit"),
        ("import time\nwhile True:\n    time.sleep(5)", None),
    ],
)
def test_bombs_are_contained(box: Toolbox, place: Sandbox, code: str, status: str | None) -> None:
    start = time.monotonic()
    report = run(box, place, code, seconds=2)
    assert time.monotonic() - start < 60
    assert status is None or report.startswith(f"status {status}"), report[:300]
    assert len(report) < 8_000


def test_huge_evidence_is_cut(box: Toolbox, place: Sandbox) -> None:
    report = run(box, place, "for n in range(100):\n    emit('z' * 20000)\n'w' * 10**6")
    assert len(report) < 50_000
    assert "more pieces of evidence left out" in report


def test_stored_values_outlive_a_good_script_only(box: Toolbox, place: Sandbox) -> None:
    stored: dict[str, object] = {}
    Script(box, place, stored).run("store('a', 1)")
    Script(box, place, stored).run("store('b', 2)\n1/0")
    assert stored == {"a": 1}
    assert "value: 1" in Script(box, place, stored).run("load('a')")


def test_a_script_that_gives_without_end_fills_no_memory_of_ours(box: Toolbox, place: Sandbox) -> None:
    script = Script(box, place, {}, 20)
    report = script.run("piece = 'z' * 1000000\nwhile True:\n    emit(piece)")
    assert report.startswith("status limit") and len(report) < 50_000
    assert sum(map(len, script.evidence)) < 10 * 2**20
    stored: dict[str, object] = {}
    report = Script(box, place, stored).run("for n in range(100):\n    store(str(n), 'z' * 200000)")
    assert "all stored values may have 1048576 bytes together" in report and not stored
