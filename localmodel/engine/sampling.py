"""Choosing the next token, and stop sequences that may lie across the borders of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MAX_SEED = (1 << 63) - 1
COLDEST = 1e-30
"""Sampling below this temperature is sampling at it: logits over less are infinite, and nothing else could differ."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """temperature 0 is greedy. top_p 1 and top_k 0 leave every token in. seed `None`: another result each time."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class Sampler:
    """The sampling of one request. It has its own generator: what others draw beside it changes nothing."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = torch.Generator()
        if params.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(params.seed & MAX_SEED)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, the lowest number among equals."""
        return self.params.temperature <= 0 or self.params.top_k == 1

    def draw(self, logits: torch.Tensor) -> int:
        """A token for logits [vocab]. The filters apply in the usual order: temperature, top_k, top_p."""
        if self.greedy:
            return int(logits.argmax())
        scaled = logits.cpu().float() / max(self.params.temperature, COLDEST)
        ordered, tokens = scaled.sort(descending=True, stable=True)
        if 0 < self.params.top_k < len(ordered):
            ordered = ordered[: self.params.top_k]
        shares = ordered.softmax(-1)
        before = shares.cumsum(-1) - shares
        # The first token always stays in; others while those before them have not yet filled top_p.
        kept = max(1, int((before < self.params.top_p).sum()))
        choice = torch.multinomial(shares[:kept], 1, generator=self._random)
        return int(tokens[choice])


def draw(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """One token for each row of logits [n, vocab]; all greedy rows in one operation."""
    best = logits.argmax(-1).tolist()
    return [best[row] if sampler.greedy else sampler.draw(logits[row]) for row, sampler in enumerate(samplers)]


class StopScanner:
    """Cuts text at the first stop sequence and holds back what might still become one.

    Once one was complete, `found` is the sequence and `rest` the text behind it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None
        self.rest = ""

    def feed(self, text: str) -> str:
        """Text that may go out now. Afterwards `found` is the stop sequence, if one was complete; feed no more then."""
        self._held += text
        places = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if places:
            # The one that begins first wins; of two that begin together, the longer.
            place, self.found = min(places, key=lambda one: (one[0], -len(one[1])))
            self.rest = self._held[place + len(self.found) :]
            return self._release(place, drop=True)
        return self._release(len(self._held) - self._pending())

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        return self._release(len(self._held))

    def _release(self, length: int, *, drop: bool = False) -> str:
        out, self._held = self._held[:length], "" if drop else self._held[length:]
        return out

    def _pending(self) -> int:
        """Length of the longest end of the held text that begins a stop sequence."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
