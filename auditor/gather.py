"""The first half of an audit: calls stream in, are canonicalised, and lose their bodies."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from traces.canonical import Interner, canonical
from traces.errors import MalformedRow
from traces.schema import Call, Prompt
from traces.tokens import estimate
from traces.wire.labels import label_of

Progress = Callable[[str, int, int | None], None]
"""Told the stage, how many calls are done, and of how many (`None`: not known yet)."""

Gathered: TypeAlias = tuple[Call, Prompt | None]
"""A call without its bodies, and the prompt that its request was (`None`: no body of a known format)."""

EVERY = 256


def gather(calls: Iterable[Call], warn: Callable[[str], None], interner: Interner | None = None) -> Iterator[Gathered]:
    """Canonicalise calls as they stream in and drop their bodies. A broken body leaves a usage-only call."""
    interner = interner or Interner(estimate)
    for call in calls:
        try:
            prompt = canonical(call, interner)
        except MalformedRow as error:
            prompt = None
            warn(f"{call.place or call.id}: {error}; the call is judged by its usage alone")
        if call.request is not None or call.response is not None or call.tokens is not None:
            label = call.label or label_of(call.request, call.response)
            call = replace(call, request=None, response=None, tokens=None, label=label)
        yield call, prompt


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
