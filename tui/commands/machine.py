"""`cachewright audit` without a path: sessions that known tools keep on this machine; only changed ones are read."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from auditor.digest_totals import totals_of
from auditor.digests import Digest, Seen, audited_of
from auditor.errors import AuditError
from auditor.pricing import PriceList
from auditor.records import Audit
from auditor.selection import Selection
from auditor.sessions import basis_of, read, sessions_of
from auditor.store import Store, default_path
from auditor.totals import Totals
from localmodel.rules.book import Rulebook
from traces.files import below
from traces.importers.registry import importer_for
from traces.places import Place, places
from tui.cli import ExitCode, warn


def found(*, quiet: bool) -> list[str]:
    """Files below the folders of known tools, as this process's environment moves them.

    Ends the process where there are none, after saying where it looked: on stdout, or with `quiet` on stderr.
    """
    looked, files = places(os.environ, Path.home()), list[str]()
    for place in looked:
        if place.folder.is_dir():
            here = below(place.folder)
            warn(f"{place}: {len(here):,} files")
            files += here
    if not files:
        for line in _nothing(looked):
            click.echo(line, err=quiet)
        sys.exit(ExitCode.DONE)
    return files


def known(files: list[str]) -> tuple[Path, ...]:
    """Those of the files that an importer knows: others lie in the same folders and are no sessions."""
    return tuple(file for file in map(Path, files) if _importer(file))


def digested(files: list[str], book: Rulebook, *, keep: bool) -> list[Digest] | None:
    """Digests of all sessions; `None` where some hold bodies, of which a digest keeps too little.

    With `keep` the store gives those of sessions that did not change, and takes the others.
    """
    sessions = sessions_of(files, basis_of(book))
    with contextlib.ExitStack() as stack:
        store = _store(stack) if keep else None
        kept = store.sessions() if store is not None else {}
        made = read(sessions, kept, book)
        here = {one.name for one in sessions}
        gone = [name for name in kept if name not in here and not Path(f"{name}.jsonl").exists()]
        if store is not None and (made.fresh or gone):
            try:
                store.save_sessions(made.fresh, gone)
            except AuditError as error:
                warn(f"sessions not stored: {error}")
    return None if made.bodies else made.digests


def reported(
    digests: list[Digest], book: Rulebook, prices: PriceList, chosen: Selection
) -> tuple[Audit, Totals, list[Seen]]:
    """What a text report shows of digests: the misses in time order, the sums over all calls, and the calls."""
    calls, misses = [], []
    every = chosen == Selection()
    for digest in digests:
        calls += [seen for seen in digest.calls if every or _covers(chosen, seen)]
        found = [(miss, digest.calls[miss.seen]) for miss in digest.misses]
        misses += [pair for pair in found if every or _covers(chosen, pair[1])]
    misses.sort(key=lambda pair: pair[1].at or 0)
    audited = [audited_of(miss, seen, index) for index, (miss, seen) in enumerate(misses)]
    remarks = [remark for digest in digests for remark in digest.remarks]
    return Audit(book, audited, remarks), totals_of(calls, prices), calls


def _covers(chosen: Selection, seen: Seen) -> bool:
    return chosen.covers(seen.at, seen.model, seen.project)


def _store(stack: contextlib.ExitStack) -> Store | None:
    try:
        return stack.enter_context(Store.open(default_path()))
    except AuditError as error:
        warn(f"not stored: {error}")
        return None


def _importer(file: Path) -> bool:
    try:
        return importer_for(file) is not None
    except OSError:
        return False


def _nothing(looked: list[Place]) -> Iterator[str]:
    yield "No sessions found. Looked for:"
    for place in looked:
        yield f"  {place}, {'no session in it' if place.folder.is_dir() else 'no such folder'}"
    yield "Name a trace, or a folder of traces: cachewright audit PATH"
