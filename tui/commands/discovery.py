"""Sessions that known tools keep on this machine: where `cachewright audit` looks when nobody names a path."""

import os
from collections.abc import Iterator
from pathlib import Path

from traces.files import below
from traces.importers.registry import importer_for
from traces.places import Place, places


def looked_for() -> list[Place]:
    """The folders of known tools, as this process's environment moves them."""
    return places(os.environ, Path.home())


def sessions(folders: list[Place]) -> Iterator[tuple[Place, list[Path]]]:
    """Each folder that is there, with its files of known formats, sorted. Others' files lie there too, and are none."""
    for place in folders:
        if place.folder.is_dir():
            yield place, sorted(file for file in below(place.folder) if _is_session(file))


def words(folders: list[Place]) -> Iterator[str]:
    """What was looked for and where, for a machine on which nothing was found."""
    yield "No sessions found. Looked for:"
    for place in folders:
        yield f"  {place}, {'no session in it' if place.folder.is_dir() else 'no such folder'}"
    yield "Name a trace, or a folder of traces: cachewright audit PATH"


def _is_session(file: Path) -> bool:
    try:
        return importer_for(file) is not None
    except OSError:
        return False
