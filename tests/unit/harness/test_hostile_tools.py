"""What a folder, a command or a model may do to the built-in tools: none of it may hang, leak or break a session."""

import os
import resource
import time
from pathlib import Path
from typing import Any

import agents
import pytest

from harness.errors import ToolFailed
from harness.spill import Spill
from harness.tools.base import Tool
from harness.tools.files import file_tools
from harness.tools.permissions import permissions
from harness.tools.shell import Kept, shell_tool
from harness.tools.toolbox import Toolbox
from harness.wire import ToolCall, sound


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def tools(work: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in [*file_tools(work), shell_tool(work)]}


def test_a_pipe_in_the_folder_holds_nobody_up(tools: dict[str, Tool], work: Path) -> None:
    os.mkfifo(work / "pipe")
    for name, more in (("read", {}), ("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"})):
        with pytest.raises(ToolFailed, match="pipe: is no regular file"):
            tools[name].run({"path": "pipe", **more})
    assert tools["search"].run({"pattern": "x"}) == "nothing found"
    with pytest.raises(ToolFailed, match="is a folder"):
        tools["read"].run({"path": "."})
    with pytest.raises(ToolFailed, match="is no path"):
        tools["read"].run({"path": "a\0b"})


@pytest.mark.parametrize("glob", ["../*", "../../*/secret", "link/*", "sub/../../*", "link/../*"])
def test_a_glob_leads_nowhere_else(tools: dict[str, Tool], work: Path, tmp_path: Path, glob: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (work / "sub").mkdir()
    (work / "link").symlink_to(tmp_path)
    assert "secret" not in tools["search"].run({"pattern": "secret", "glob": glob})
    assert "secret" not in tools["search"].run({"pattern": "", "glob": glob})


def test_a_pattern_that_never_ends_is_ended(work: Path) -> None:
    (work / "a.txt").write_text("a" * 60 + "b\n")
    search = {tool.name: tool for tool in file_tools(work, search_s=1)}["search"]
    with pytest.raises(ToolFailed, match="took more than 1 s; use a simpler pattern"):
        search.run({"pattern": "(a+)+$"})


def test_binary_files_long_lines_and_large_ones(tools: dict[str, Tool], work: Path) -> None:
    (work / "binary").write_bytes(bytes(range(256)))
    (work / "line").write_text("x" * 1_000_000)
    with (work / "huge").open("wb") as file:
        file.truncate(100 * 2**30)  # sparse
    with pytest.raises(ToolFailed, match="is no UTF-8 text"):
        tools["read"].run({"path": "binary"})
    assert len(tools["read"].run({"path": "line"})) <= 80_000
    with pytest.raises(ToolFailed, match="larger than 64 MiB"):
        tools["read"].run({"path": "huge"})
    assert tools["search"].run({"pattern": "x{20}"}).startswith("huge: larger than 2 MiB, not searched\nline:1: xxx")


def test_a_hundred_megabytes_of_output_cost_little_memory(tools: dict[str, Tool]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = tools["shell"].run({"command": "echo first; head -c 100000000 /dev/zero | tr '\\0' 'x'; echo; echo last"})
    assert text.startswith("exit status 0\nfirst\nxxx") and text.endswith("xxx\nlast")
    assert "bytes left out" in text and len(text) < 26 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 * 1024


def test_what_is_kept_is_the_beginning_and_the_end() -> None:
    for size in (0, 10, 99, 100, 101, 149, 150, 400):
        kept, data = Kept(100), bytes(n % 90 + 33 for n in range(size))
        for start in range(0, size, 7):
            kept.add(data[start : start + 7])
        text = kept.text().encode()
        assert text == data or (text[:50] == data[:50] and text[-50:] == data[-50:] and size > 100)


@pytest.mark.parametrize(
    "command",
    ["sleep 97 &", "sleep 97 & disown; true", "setsid sleep 5 & true", "yes > /dev/null & true", "(yes &) ; true"],
)
def test_children_in_the_background_hold_nothing_up(tools: dict[str, Tool], command: str) -> None:
    start = time.monotonic()
    assert tools["shell"].run({"command": f"echo hi; {command}", "timeout_s": 30}).startswith("exit status")
    assert time.monotonic() - start < 4


def test_a_command_that_closes_its_output_is_waited_for(tools: dict[str, Tool], work: Path) -> None:
    assert tools["shell"].run({"command": "exec >&- 2>&-; sleep 0.4; touch done; exit 7"}) == "exit status 7"
    assert (work / "done").exists()


def test_a_fork_bomb_ends_with_its_time(tools: dict[str, Tool]) -> None:
    """A small one: each child starts one more and sleeps."""
    bomb = "f() { sleep 60 & [ $1 -gt 0 ] && f $(($1 - 1)) & f2; }; f2() { sleep 60; }; f 20"
    with pytest.raises(ToolFailed, match="ended after 1 s"):
        tools["shell"].run({"command": bomb, "timeout_s": 1})


ODD = "a\x1b[2Jb\x00\x07\x9b31m\u202e\ud800c"


def test_odd_characters_in_results_survive_a_resume(tmp_path: Path) -> None:
    """Control characters, half a surrogate pair, and a file name that is no UTF-8."""
    opening, _ = agents.scripted(tmp_path)
    with opening as run:
        run.agent.tools.others = {"odd": agents.tool("odd", answer=ODD)}
        (tmp_path / "work" / os.fsdecode(b"caf\xe9.txt")).write_text("x")
        run.agent.say(f"go on {ODD}")
        session = run.agent.session
        big = {"role": "assistant", "content": [{"type": "tool_use", "id": "z", "name": "odd", "input": {"n": 2**80}}]}
        session.append(session.dialect.user(ODD))
        session.append(session.dialect.answer(big))
        run.agent._run_all(session.open_calls())
        chain, name = session.chain, run.shared.name
    opening, provider = agents.scripted(tmp_path, resume=name)
    with opening as run:
        assert run.agent.session.chain == chain
        assert run.agent.say("still there?")
    assert b"caf\xef\xbf\xbd.txt" in provider.bodies[0] and b"\\u001b[2J" in provider.bodies[0]
    assert b"\\ud800" not in provider.bodies[0]


def test_sound_changes_nothing_that_is_so() -> None:
    value: Any = {"a": ["ü", "😀", 1, None, 2**63]}
    assert sound(value) is value
    assert sound({"\ud83d": ["\ud83d\ude00", "\udc00", 2**70]}) == {"\ufffd": ["😀", "\ufffd", float(2**70)]}


def test_a_question_shows_the_whole_command() -> None:
    from harness.opening import _whole

    assert _whole("x" * 1_500 + "; rm -rf /").endswith("; rm -rf /'")
    assert _whole("x" * 3_000).endswith("and 1000 more")
    assert "\x1b" not in _whole("\x1b[2K\u202e")


def test_a_spill_of_binary_output_can_be_read_on(tools: dict[str, Tool], tmp_path: Path) -> None:
    box = Toolbox(tools, {}, "fixed", permissions({"run": "allow"}, None), Spill(tmp_path / "spill"))
    text = box.call(ToolCall("1", "shell", {"command": "head -c 3000000 /dev/urandom"})).text
    assert len(text) < 3_000 and '"file": "' in text
    assert len(box.spill.read(text.split('"file": "')[1].split('"')[0])) <= 40_000
