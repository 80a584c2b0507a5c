"""`cachewright audit` on other tools' files, by folder and where the tools keep them."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Done = Callable[..., subprocess.CompletedProcess[str]]
RECORDED = Path(__file__).resolve().parents[2] / "traces" / "recorded" / "other_tools"


def test_a_folder_of_many_formats_is_audited_in_one_go(cachewright: Done) -> None:
    done = cachewright("audit", "--no-store", "--json", RECORDED)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["totals"]["calls"] == 3 + 1 + 1 + 92
    assert report["totals"]["read_tokens"] == 3_479_512
    assert {call["basis"] for call in report["calls"]} == {"bodies", "usage"}, "one file holds bodies as sent"


def test_sessions_of_other_tools_are_found_where_they_keep_them(
    cachewright: Done, shared: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    home = tmp_path / "home"
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        environment.pop(name, None)
    environment["HOME"] = f"{home}"
    kept = {
        "pi/pi-mono-large-session.jsonl": ".pi/agent/sessions/--p--/1_2.jsonl",
        "gemini_cli/gm-79-session.json": ".gemini/tmp/h/chats/session-1.json",
        "copilot/cp-av-d8-events.jsonl": ".copilot/session-state/x/events.jsonl",
    }
    for source, target in kept.items():
        (home / target).parent.mkdir(parents=True)
        shutil.copy(shared / "traces" / source, home / target)
    (home / ".gemini/tmp/h/logs.json").write_text('[{"sessionId": "s", "type": "user", "message": "x"}]')
    done = cachewright("audit", "--json")
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)["totals"]
    assert (totals["calls"], totals["unknown_calls"]) == (453 + 4 + 56, 14 + 56)
    assert "logs.json" not in done.stderr


@pytest.mark.parametrize("text", ['{"resourceSpans": [', '{"log": {"version": "1.2", "creator": {}, "entries": [{"a":'])
def test_a_file_that_breaks_off_is_one_clear_line(cachewright: Done, tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    done = cachewright("audit", "--no-store", path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr and f"{path}" in done.stderr
