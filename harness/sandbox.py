"""Where scripts of Codemode run: Monty's own worker process, inside bubblewrap where that works on this machine.

Monty interprets a subset of Python that has no files, no network and no processes; bubblewrap takes those away from
the worker as well, should the interpreter have a hole. Whether bubblewrap works is tried, never assumed (containers and
some distributions forbid user namespaces), and said aloud where it does not.
"""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROBE_S = 10
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """`binary`: program to start workers with, `None` for Monty's own. `words`: what protects, for people."""

    binary: Path | None
    words: str
    isolated: bool


def sandbox(folder: Path) -> Sandbox:
    """The best that works here. A wrapper script is left in `folder`. Needs the package `pydantic-monty`."""
    from pydantic_monty._binary import find_monty_binary

    monty = find_monty_binary()
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Sandbox(None, "Monty alone: bubblewrap is not installed", False)
    command = [bwrap, *_arguments(monty), "/monty"]
    try:
        probe = subprocess.run([*command, "--version"], capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Sandbox(None, f"Monty alone: bubblewrap does not work here ({error})", False)
    if probe.returncode:
        reason = " ".join(probe.stderr.decode(errors="replace").split())[:200]
        return Sandbox(None, f"Monty alone: bubblewrap does not work here ({reason})", False)
    return Sandbox(_wrapper(folder, command), "Monty in bubblewrap: no network, no files, own processes", True)


def _arguments(monty: str) -> Iterator[str]:
    """Nothing of the machine but the interpreter and the libraries it is linked to."""
    yield from ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL")
    for folder in _LIBRARIES:
        if Path(folder).exists():
            yield from ("--ro-bind", folder, folder)
    yield from ("--ro-bind", monty, "/monty")


def _wrapper(folder: Path, command: list[str]) -> Path:
    import shlex

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "monty.sh"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    return path
