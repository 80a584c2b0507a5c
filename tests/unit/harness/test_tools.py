"""Built-in tools, the three ways to offer tools, permissions, search, and outputs that go to files."""

import stat
from pathlib import Path
from typing import Any

import agents
import pytest

from harness.errors import BadSetting, ToolFailed
from harness.spill import Spill
from harness.tools.base import Tool
from harness.tools.files import file_tools
from harness.tools.index import find, words
from harness.tools.permissions import Permissions, permissions
from harness.tools.shell import shell_tool
from harness.tools.toolbox import Mode, Toolbox, check_mode, read_output_tool, unwrapped
from harness.wire import ToolCall, ToolSpec


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("one\ntwo\nthree\n")
    return folder


@pytest.fixture
def tools(work: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in [*file_tools(work), shell_tool(work)]}


def box(tools: dict[str, Tool], tmp_path: Path, mode: Mode = "fixed", **rules: Any) -> Toolbox:
    found = [
        agents.tool(
            "mcp__maps__route", "Finds a way between two places.", start=("string", "From."), end=("string", "To.")
        ),
        agents.tool("mcp__mail__sendMessage", "Sends mail.", answer="sent"),
        agents.tool("mcp__big__dump", "Much.", answer="line\n" * 10_000),
    ]
    allowed = permissions({"run": "allow", "write": "allow", **rules}, None)
    return Toolbox(dict(tools), {tool.name: tool for tool in found}, mode, allowed, Spill(tmp_path / "spill"))


def test_read_write_edit_search(tools: dict[str, Tool], work: Path) -> None:
    assert tools["read"].run({"path": "a.py", "offset": 2, "limit": 1}) == "2\ttwo\n… 1 more lines, go on with offset 3"
    tools["write"].run({"path": "sub/b.py", "content": "two\ntwo\n"})
    with pytest.raises(ToolFailed, match="occurs 2 times"):
        tools["edit"].run({"path": "sub/b.py", "old": "two", "new": "2"})
    with pytest.raises(ToolFailed, match="does not occur"):
        tools["edit"].run({"path": "a.py", "old": "four", "new": "4"})
    tools["edit"].run({"path": "sub/b.py", "old": "two", "new": "2", "all": True})
    assert (work / "sub/b.py").read_text() == "2\n2\n"
    assert tools["search"].run({"pattern": "t.o"}) == "a.py:2: two"
    assert tools["search"].run({"pattern": "", "glob": "*.py"}) == "a.py\nsub/b.py"
    with pytest.raises(ToolFailed, match="pattern: "):
        tools["search"].run({"pattern": "("})


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "sub/../../x"])
def test_files_stay_in_the_working_folder(tools: dict[str, Tool], path: str) -> None:
    for name, more in (("read", {}), ("write", {"content": ""}), ("edit", {"old": "a", "new": "b"})):
        with pytest.raises(ToolFailed, match="outside the working folder"):
            tools[name].run({"path": path, **more})


def test_a_link_out_of_the_folder_is_not_followed(tools: dict[str, Tool], work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (work / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolFailed, match="outside"):
        tools["read"].run({"path": "link"})
    assert "secret" not in tools["search"].run({"pattern": "secret"})


def test_shell_tells_the_status_and_ends_children_in_time(tools: dict[str, Tool]) -> None:
    assert tools["shell"].run({"command": "echo hi; exit 3"}) == "exit status 3\nhi"
    with pytest.raises(ToolFailed, match="ended after 1 s; output so far:\nbefore"):
        tools["shell"].run({"command": "echo before; sleep 60 & sleep 60", "timeout_s": 1})


def test_the_offered_list_is_sorted_and_the_same_whatever_comes(tools: dict[str, Tool], tmp_path: Path) -> None:
    fixed, eager, native = (box(tools, tmp_path, mode) for mode in ("fixed", "eager", "native"))
    before = [spec.name for spec in fixed.specs()]
    assert before == sorted(before)
    assert {"search_tools", "call_tool"} < set(before) and not any(name.startswith("mcp") for name in before)
    fixed.add([agents.tool("a_late_one")])
    assert [spec.name for spec in fixed.specs()] == before
    names = [spec.name for spec in eager.specs()]
    assert names == sorted(names) and "mcp__maps__route" in names and "search_tools" not in names
    deferred = [spec.name for spec in native.specs() if spec.deferred]
    assert deferred[0] == "deferred_tools" and deferred[1:] == sorted(native.others)


def call(box: Toolbox, name: str, arguments: Any, raw: str = "") -> str:
    result = box.call(ToolCall("1", name, arguments, raw))
    return ("failed: " if result.failed else "") + result.text


def test_search_and_call_with_the_mistakes_models_make(tools: dict[str, Tool], tmp_path: Path) -> None:
    one = box(tools, tmp_path)
    found = call(one, "search_tools", {"query": "way between places", "limit": 1})
    assert found.startswith("mcp__maps__route: Finds") and '"start"' in found
    assert call(one, "call_tool", {"name": "mcp__maps__route", "arguments": {"start": "a", "end": "b"}}) == "done"
    twice = {"name": "mcp__maps__route", "arguments": {"name": "mcp__maps__route", "arguments": {"start": "a"}}}
    assert unwrapped(twice) == ("mcp__maps__route", {"start": "a"})
    assert unwrapped({"name": "x", "arguments": '{"a": 1}'}) == ("x", {"a": 1})
    assert "that is no JSON" in call(one, "call_tool", {"name": "x", "arguments": "{"})
    unknown = call(one, "call_tool", {"name": "mcp__mail__send", "arguments": {}})
    assert unknown.startswith("failed: there is no tool 'mcp__mail__send'. Nearest:\nmcp__mail__sendMessage")
    assert "no argument 'from'" in call(one, "call_tool", {"name": "mcp__maps__route", "arguments": {"from": "a"}})
    assert "'path' is missing; wanted: {path: string" in call(one, "read", {})
    assert "the arguments are no JSON object: {broken" in call(one, "read", None, "{broken")


def test_a_tools_own_fault_is_a_result(tools: dict[str, Tool], tmp_path: Path) -> None:
    def broken(arguments: dict[str, Any]) -> str:
        raise ZeroDivisionError("by zero")

    one = box({"bad": Tool(ToolSpec("bad", "", {"type": "object"}), "read", broken)}, tmp_path)
    assert call(one, "bad", {}) == "failed: ZeroDivisionError: by zero"


def test_permissions_by_name_and_risk_hold_through_the_entry(tools: dict[str, Tool], tmp_path: Path) -> None:
    one = box(tools, tmp_path, shell="deny", write="allow")
    assert "denied" in call(one, "shell", {"command": "true"})
    assert "denied" in call(one, "call_tool", {"name": "shell", "arguments": {"command": "true"}})
    asked: list[str] = []

    def ask(name: str, arguments: dict[str, Any]) -> bool:
        asked.append(name)
        return False

    one.permissions = Permissions({"mcp__mail__sendMessage": "allow", "read": "ask"}, ask)
    assert call(one, "call_tool", {"name": "mcp__mail__sendMessage", "arguments": {}}) in ("sent",)
    assert "the user refused" in call(one, "read", {"path": "a.py"})
    assert asked == ["read"]
    one.permissions = Permissions({})
    assert "nobody can be asked" in call(one, "write", {"path": "a", "content": ""})
    with pytest.raises(BadSetting, match=r"permissions\.shell: want allow, ask or deny, got 'yes'"):
        permissions({"shell": "yes"}, None)


def test_long_outputs_go_to_private_files_and_are_read_back_whole(tools: dict[str, Tool], tmp_path: Path) -> None:
    one = box(tools, tmp_path)
    one.builtin["read_output"] = read_output_tool(one.spill)
    text = call(one, "call_tool", {"name": "mcp__big__dump", "arguments": {}})
    assert len(text) < 2_000
    assert "50,000 characters, 10,001 lines" in text
    name = text.split('"file": "')[1].split('"')[0]
    place = one.spill.folder / name
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(one.spill.folder.stat().st_mode) == 0o700
    page = call(one, "read_output", {"file": name, "offset": 100, "limit": 400})
    assert page.startswith("100: line\n") and page.endswith("go on with offset 500")
    assert len(list(one.spill.folder.iterdir())) == 1
    assert call(one, "read_output", {"file": name, "find": "other"}) == "(no such lines)"
    assert "no output named" in call(one, "read_output", {"file": "../../etc/passwd"})


def test_a_spill_that_fails_is_no_failure_of_the_tool(tools: dict[str, Tool], tmp_path: Path) -> None:
    (tmp_path / "spill").write_text("a file in the way")
    text = call(box(tools, tmp_path), "call_tool", {"name": "mcp__big__dump", "arguments": {}})
    assert not text.startswith("failed") and "the middle is lost" in text


def test_words_and_ranking() -> None:
    assert words("sendMessage mcp__mail 東京") == ["send", "message", "mcp", "mail", "東", "京"]
    specs = [ToolSpec(f"t{n}", "filler words here", {}) for n in range(20)]
    specs += [ToolSpec("deploy_site", "Ships.", {}), ToolSpec("other", "Can deploy a site.", {})]
    assert [spec.name for spec in find(specs, "deploy a site")][:2] == ["deploy_site", "other"]
    assert find(specs, "t7")[0].name == "t7"
    assert find(specs, "zebra") == []
    inner = {"$defs": {"Place": {"properties": {"longitude": {}}}}, "properties": {"at": {"$ref": "#/$defs/Place"}}}
    assert find([*specs, ToolSpec("geo", "x", inner)], "longitude")[0].name == "geo"


@pytest.mark.parametrize(
    ("api", "host", "model", "fine"),
    [
        ("messages", "api.anthropic.com", "claude-opus-5", True),
        ("messages", "api.anthropic.com", "claude-sonnet-4-5", False),
        ("messages", "127.0.0.1:1", "anything", True),
        ("responses", "api.openai.com", "gpt-6", False),
    ],
)
def test_native_only_where_the_model_has_it(api: str, host: str, model: str, fine: bool) -> None:
    if fine:
        check_mode("native", api, "x", host, model)
    else:
        with pytest.raises(BadSetting, match="use --tools fixed"):
            check_mode("native", api, "x", host, model)
