"""The README's first screen is what the program prints, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACE = "traces/recorded/fourteen/calls.jsonl"


def _screen() -> list[str]:
    fence = re.search(r"```console\n\$ make audit\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert fence is not None
    return fence.group(1).split("…\n")


def test_first_screen_is_real_output() -> None:
    command = [sys.executable, "-c", "from tui.cli import main; main()", "audit", TRACE, "--no-store"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rest = done.stdout
    for part in _screen():
        assert part in rest, part
        rest = rest.split(part, 1)[1]


def test_make_audit_runs_the_command_shown() -> None:
    assert f"cachewright audit {TRACE}" in (ROOT / "Makefile").read_text()


def test_every_file_named_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/method.md", "docs/format.md", "docs/proxy.md"):
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"
