"""What the rules say of the requests that were sent: `localmodel.rules.step` folded over them in the order of sending.

The fold sees bodies, keys, times and token counts (the reported totals, shared out over the blocks), never what was
read from the cache: that is what it predicts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from localmodel.rules.step import DatedRules, step
from localmodel.rules.types import CacheState, Outcome, Rules
from probes.api.exchange import Exchange, call_of
from traces.canonical import Interner, canonical
from traces.errors import MalformedRow
from traces.tokens import Meter, estimate


@dataclass(frozen=True, slots=True)
class Foretold:
    """Predicted for one exchange. `level` is the last level read in full ("" for none); `refused` why it is refused."""

    read_tokens: int
    hit: bool
    level: str
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WithMinimum:
    """Rules with the minimum length that was measured, so that a wrong one spoils no other claim's prediction."""

    rules: DatedRules
    tokens: int

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """Rules in force, but for the minimum."""
        return replace(self.rules.at(model, platform, moment), min_tokens=self.tokens)


def foretell(exchanges: Iterable[Exchange], rules: DatedRules) -> dict[int, Foretold]:
    """A prediction by `seq` for each exchange whose body the rules understand."""
    state, meter, interner = CacheState(), Meter(), Interner(estimate)
    found: dict[int, Foretold] = {}
    for exchange in sorted(exchanges, key=lambda one: one.sent_s):
        call = call_of(exchange, "probe")
        try:
            prompt = canonical(call, interner)
        except MalformedRow:
            continue
        if prompt is None:
            continue
        after, outcome = step(
            state, meter.measure(prompt, call), rules, at=exchange.sent_at, first_token_at=call.first_token_at
        )
        if not outcome.rejected and exchange.began_s is not None:
            state = after
        found[exchange.seq] = _told(outcome, prompt.blocks[outcome.read_index].level.name.lower())
    return found


def _told(outcome: Outcome, level: str) -> Foretold:
    hit = outcome.read_index >= 0
    return Foretold(outcome.read_tokens, hit, level if hit else "", outcome.rejected)
