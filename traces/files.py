"""Which files hold calls: those named, and those below a folder that are of a known ending or content."""

import os
from collections.abc import Iterable
from pathlib import Path

from traces.errors import UnreadableInput
from traces.importers.registry import ENDINGS, importer_for

STDIN = "-"

NATIVE = (".jsonl", ".jsonl.gz", ".csv")
"""Endings of files that are read without a look inside."""


def find(paths: Iterable[Path]) -> list[Path]:
    """Files to read: those named, and below each folder named all `*.jsonl`, `*.jsonl.gz`, `*.csv` and what an importer
    knows by content, sorted.

    A file reached twice is listed once. Raises `UnreadableInput` for a missing path and a folder without such files.
    """
    found: dict[object, Path] = {}
    for path in paths:
        try:
            known = is_stdin(path) or path.exists()
            files = _below(path) if path.is_dir() else [path]
            for file in files:
                found.setdefault(STDIN if is_stdin(file) else _identity(file), file)
        except OSError as error:
            raise UnreadableInput(f"{flat(path)}: {(error.strerror or 'cannot be opened').lower()}") from None
        if not known:
            raise UnreadableInput(f"{flat(path)}: no such file or folder")
    return list(found.values())


def below(folder: Path) -> list[str]:
    """Paths of files below a folder that may hold calls, sorted; folders that cannot be listed are passed over.

    A file whose ending promises no calls is looked into. Texts and no `Path`s: there may be many thousands.
    """
    found: list[str] = []
    waiting = [f"{folder}"]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif (entry.name.endswith(NATIVE) and entry.is_file()) or (
                    entry.name.endswith(ENDINGS) and entry.is_file() and _is_known(entry.path)
                ):
                    found.append(entry.path)
    return sorted(found)


def is_stdin(path: Path) -> bool:
    """Whether a path stands for standard input."""
    return f"{path}" == STDIN


def flat(name: str | Path) -> str:
    """A file's name for a message of one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in f"{name}")


def _below(folder: Path) -> list[Path]:
    found = sorted(map(Path, below(folder)))
    if not found:
        endings = ", ".join(f"*{ending}" for ending in NATIVE)
        raise UnreadableInput(f"{flat(folder)}: no {endings} in this folder, and no file of another known format")
    return found


def _identity(file: Path) -> object:
    """What is the same for two names of one file; the name itself where there is no such file."""
    try:
        status = file.stat()
    except OSError:
        return f"{file}"
    return status.st_dev, status.st_ino


def _is_known(path: str) -> bool:
    try:
        return importer_for(Path(path)) is not None
    except OSError:
        return False
