"""What the commands load: start-up stays light, and an audit needs no SDK, no model and no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = "traces/recorded/fourteen/calls.jsonl"
HEAVY = {"torch", "textual", "anthropic", "openai", "mcp", "tiktoken", "genai_prices"}
PROBE = """
import json, pathlib, sys
from tui.cli import main
code = None
try:
    main(sys.argv[2:])
except SystemExit as stop:
    code = stop.code
pathlib.Path(sys.argv[1]).write_text(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["audit", "--help"], ["audit", BUNDLED], ["audit", "--json", BUNDLED]]
)
def test_nothing_heavy_is_loaded(arguments: list[str], tmp_path: Path) -> None:
    dump = tmp_path / "modules.json"
    home = {name: str(tmp_path) for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, str(dump), *arguments],
        cwd=ROOT,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert dump.exists(), done.stderr
    loaded = json.loads(dump.read_text())
    assert loaded["code"] in (0, None), done.stderr
    assert done.stdout
    assert "click" in loaded["modules"]
    assert HEAVY & set(loaded["modules"]) == set()
