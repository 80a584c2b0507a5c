"""The command as a user starts it: a process of its own, with a home of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "from tui.cli import main; main(prog_name='cachewright')"
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of prices for all tests: filling it takes a second."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def environment(tmp_path: Path, caches: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    own = {"PYTHONPATH": f"{ROOT}", "XDG_DATA_HOME": f"{tmp_path / 'data'}", "XDG_CACHE_HOME": f"{caches}"}
    return inherited | own


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-c", PROGRAM]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A text long enough to be cached by any provider."""
    path = tmp_path / "notes.txt"
    path.write_text("The lake is cold in winter and warm in summer. " * 200)
    return path


@pytest.fixture
def cachewright(tmp_path: Path, command: list[str], environment: dict[str, str]) -> Callable[..., Done]:
    """`cachewright("audit", file, stdin=...)`, run in the test's folder; no traceback may ever be seen."""

    def run(*arguments: str | Path, stdin: str | None = None) -> Done:
        done = subprocess.run(
            [*command, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run
