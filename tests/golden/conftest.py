"""The command line in process, with caches of its own."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tui.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cachewright(tmp_path: Path) -> Callable[..., str]:
    """`cachewright("audit", file, ...)`: what the command prints, run in the checkout; it must exit with 0."""
    environment = {
        "XDG_DATA_HOME": f"{tmp_path / 'data'}",
        "XDG_CACHE_HOME": f"{tmp_path / 'cache'}",
        "FORCE_COLOR": None,  # some CI systems set it, and rich would then see a terminal
        "TTY_COMPATIBLE": None,
    }

    def run(*arguments: str | Path) -> str:
        with contextlib.chdir(ROOT):
            result = CliRunner().invoke(main, [str(part) for part in arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def audit(cachewright: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """`audit(file, ...)`: the JSON report of `cachewright audit`, without a store."""

    def run(*arguments: str | Path) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(cachewright("audit", "--json", "--no-store", *arguments))
        return report

    return run
