"""docs/cli.md repeats the program's own --help, word for word."""

import re
import subprocess
import sys
from pathlib import Path

import click

from tui.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_cli_page_is_what_the_program_says() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py"], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    page = (ROOT / "docs" / "cli.md").read_bytes()
    assert page.decode() == done.stdout.decode(), "docs/cli.md is out of date: run `make docs`"


def test_cli_page_has_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = main.list_commands(click.Context(main))
    assert "audit" in commands
    assert [name for name in commands if f"\n## cachewright {name}\n" not in page] == []


def test_the_list_of_make_targets_has_room_in_80_columns() -> None:
    targets = re.findall(r"^([a-z-]+):.*?## (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 10
    assert [name for name, words in targets if 14 + len(words) > 80 or len(name) > 12] == []
