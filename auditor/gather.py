"""The first half of an audit: calls stream in, are canonicalised, and lose their bodies."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from msgspec.structs import replace

from traces.canonical import Interner, canonical
from traces.errors import MalformedRow
from traces.schema import Call, JsonObject, Prompt
from traces.tokens import estimate
from traces.wire.labels import label_of
from traces.wire.terms import KEPT, beside, terms

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
            label, response = call.label or label_of(call.request, call.response), call.response
            facts, found = call.facts, terms(response)
            if found:
                facts = ({"native": True} if facts is None else facts) | found
            call = replace(call, request=None, response=None, tokens=None, label=label, facts=facts)
            yield call, prompt
            yield from ((each, None) for each in _beside(call, response, warn))
        else:
            yield call, prompt


def _beside(call: Call, response: JsonObject | None, warn: Callable[[str], None]) -> Iterator[Call]:
    """What a response was charged beside its own usage, as calls of their own."""
    try:
        for number, kind, model, usage in beside(response):
            facts = {"native": True} if call.facts is None else call.facts
            kept = {name: value for name, value in facts.items() if name in KEPT}
            yield replace(
                call,
                id=f"{call.id}/{number}",
                kind="summary" if kind == "compaction" else "side",
                model=model or call.model,
                usage=usage,
                facts=kept | {"beside": kind},
                label=None,
                key=None,
            )
    except MalformedRow as error:
        warn(f"{call.place or call.id}: usage.iterations: {error}; what was charged beside the call is left out")
