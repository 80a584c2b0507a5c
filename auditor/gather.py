"""The first half of an audit: calls stream in, are canonicalised, and lose their bodies."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from traces.canonical import Interner, canonical
from traces.errors import MalformedRow
from traces.schema import Call, Prompt
from traces.tokens import estimate

Progress = Callable[[str, int, int | None], None]
"""Told the stage, how many calls are done, and of how many (`None`: not known yet)."""

EVERY = 256


def gather(
    calls: Iterable[Call], warnings: list[str], progress: Progress | None = None
) -> list[tuple[Call, Prompt | None]]:
    """Canonicalise calls as they stream in and drop their bodies. A broken body leaves a usage-only call."""
    interner, gathered = Interner(estimate), []
    for call in calls:
        try:
            prompt = canonical(call, interner)
        except MalformedRow as error:
            prompt = None
            warnings.append(f"{call.place or call.id}: {error}; the call is judged by its usage alone")
        if call.request is not None or call.response is not None or call.tokens is not None:
            call = replace(call, request=None, response=None, tokens=None)
        gathered.append((call, prompt))
        if progress is not None and len(gathered) % EVERY == 0:
            progress("reading", len(gathered), None)
    return gathered


@contextmanager
def no_cycles() -> Iterator[None]:
    """Without the cycle collector: JSON bodies have no cycles, and looking for some costs a third of the time.

    What is alive at the end stays for long and is not looked through later either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
