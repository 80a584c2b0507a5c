"""The command in this process: as a user starts it, without the seconds that an interpreter and an SDK take to load."""

import os
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import TypeAlias

from click.testing import CliRunner

from tui.cli import main

Done: TypeAlias = subprocess.CompletedProcess[str]


def cachewright(folder: Path, environment: dict[str, str], *arguments: object, stdin: str = "") -> Done:
    """Run in `folder` with exactly this environment; stdin is no terminal. What escapes `main` fails the test."""
    names = {*os.environ, *environment}
    with chdir(folder):
        result = CliRunner().invoke(
            main, [f"{one}" for one in arguments], input=stdin, env={name: environment.get(name) for name in names},
            prog_name="cachewright",
        )  # fmt: skip
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(list(arguments), result.exit_code, result.stdout, result.stderr)  # type: ignore[arg-type]
