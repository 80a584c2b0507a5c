"""Start-up proof that this machine, this torch and this model give a token the same bits however it is computed.

That sums do not depend on what is computed beside them holds by no contract of torch: it is tried out, with the model's
own weights in its first layers, before anyone relies on it. If it fails the engine goes on, and says "not exact".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch

from localmodel.engine.attention import Span
from localmodel.engine.cache.identity import PAGE_TOKENS
from localmodel.engine.kv import PagedKV
from localmodel.engine.model import PagedModel

LAYERS = 3
TOKENS = 150
CUTS = (0, 1, 18, 67, 68, 70, 141, TOKENS)
DECODED = (17, 63, 64, 129, TOKENS - 1)
LONG = 520
LONG_DECODED = (130, 200, 256, 300, 384, 500)
"""One layer of a text in which keys are summed in several blocks of each size (`attention.SUM_BLOCKS`). The cold run,
these tokens alone and all of them together have other numbers of keys beside them: that must change no bit."""


Way: TypeAlias = tuple[str, torch.Tensor, torch.Tensor]
"""Its name, the rows found, the rows wanted."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether cached, chunked, batched and decoded runs are bit-equal to the cold one, and what that rests on."""

    exact: bool
    reason: str


def prove(model: PagedModel) -> Exactness:
    """Run the same tokens in ten ways through the first layers and the head.

    A third of a second on two cores for the default model in float32.
    """
    few = model.first_layers(min(LAYERS, model.config.layers))
    tokens = _text(model, TOKENS)
    pages = -(-len(tokens) // PAGE_TOKENS)
    kv = few.new_kv(3 * pages)
    tables = [list(range(first, first + pages)) for first in range(0, 3 * pages, pages)]
    cold, logits = _cold(few, kv, tokens, tables[0])
    for page in tables[0]:
        kv.write(pages + page, kv.read(page))
    ways = *_ways(few, kv, tokens, tables, cold, logits), *_long_ways(model.first_layers(1))
    for name, found, wanted in ways:
        if not torch.equal(found, wanted):
            odd = int((found != wanted).any(-1).sum())
            return Exactness(False, f"{name}: {odd} of {len(found)} rows differ from the cold run ({_machine(model)})")
    return Exactness(True, f"chunked, decoded, batched, verified and restored rows are bit-equal ({_machine(model)})")


def _text(model: PagedModel, count: int) -> list[int]:
    """The first tokens of the vocabulary are control tokens and rare bytes, whose embeddings are odd in many models."""
    return [(7919 * (place + 1)) % model.config.vocab for place in range(min(count, model.config.context))]


def _cold(
    model: PagedModel, kv: PagedKV, tokens: Sequence[int], table: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    states = model.hidden([Span(tokens, 0, table)], kv)
    return states, model.forward([Span(tokens, 0, table, logits=2)], kv)


def _ways(
    model: PagedModel,
    kv: PagedKV,
    tokens: Sequence[int],
    tables: Sequence[Sequence[int]],
    cold: torch.Tensor,
    logits: torch.Tensor,
) -> Sequence[Way]:
    """Each way; the second table holds restored pages, the third is empty."""
    count = len(tokens)
    cuts = sorted({min(cut, count) for cut in CUTS})
    places = [place for place in DECODED if place < count] or [count - 1]
    one = [Span([tokens[place]], place, tables[1]) for place in places]
    # Spans of one batch may read each other's pages here: each writes what is there already.
    chunks = [model.hidden([Span(tokens[start:end], start, tables[2])], kv) for start, end in pairwise(cuts)]
    last = max(0, count - 5)
    mixed = model.hidden([*one[:2], Span(tokens[last:], last, tables[1])], kv)
    return [
        ("chunked", torch.cat(chunks), cold),
        ("decoded alone", model.hidden(one[-1:], kv), cold[places[-1:]]),
        ("decoded by one thread", _by_one_thread(lambda: model.hidden(one[-1:], kv)), cold[places[-1:]]),
        ("decoded in a batch", model.hidden(one, kv), cold[places]),
        ("decoded beside a verification", mixed, torch.cat((cold[places[:2]], cold[last:]))),
        ("logits of a decoded token", model.forward([Span(tokens[-1:], count - 1, tables[1])], kv), logits[-1:]),
    ]


def _long_ways(model: PagedModel) -> Sequence[Way]:
    """Of one layer, so that tokens computed again write the keys and values that are there already."""
    tokens = _text(model, LONG)
    places = [place for place in LONG_DECODED if place < len(tokens)]
    if not places:
        return []
    table = range(-(-len(tokens) // PAGE_TOKENS))
    kv = model.new_kv(len(table))
    cold = model.hidden([Span(tokens, 0, table)], kv)
    spans = [Span([tokens[place]], place, table) for place in places]
    first = places[-1] - 6
    checked = model.hidden([Span(tokens[first : places[-1]], first, table)], kv)
    return [
        ("decoded alone after many", torch.cat([model.hidden([span], kv) for span in spans]), cold[places]),
        ("decoded in a batch after many", model.hidden(spans, kv), cold[places]),
        ("verified after many", checked, cold[first : places[-1]]),
    ]


def _by_one_thread(act: Callable[[], torch.Tensor]) -> torch.Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return act()
    finally:
        torch.set_num_threads(threads)


def _machine(model: PagedModel) -> str:
    kind = "cpu" if model.device == "cpu" else torch.cuda.get_device_name(model.device)
    return f"torch {torch.__version__}, {kind}, {model.dtype_name}"
