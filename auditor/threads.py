"""Threads: the earlier calls that a call without a body is held against, and which of them it goes on from.

Without more, a thread is one agent of one trace under one model, and a call goes on from the latest one before it.
Where a transcript names the call that each one continues, that decides: it leads across files (a fork, a resumed
session), back over branches that were given up, and past calls of other models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from auditor.history import REACH
from auditor.records import Audited
from auditor.transcript import Told, told
from traces.facts import facts_of


@dataclass(slots=True)
class Thread:
    """Earlier calls of one thread, and the regularities that later ones are held against.

    All is kept up to date call by call: looking through the calls again at each one would cost their square.

    left     calls with a start that left a prefix readable, or may have
    ends     calls by the tokens of the prefix that they left
    smallest the smallest full input
    growths  how often the input grew by how many tokens from call to call
    usual_growth  the growth that was seen most often, if it was seen twice
    extra    the first growth beyond the usual one at a complete miss: the call, and the tokens beyond
    floor    a read below every full input, in tokens
    """

    calls: list[Audited] = field(default_factory=list)
    left: list[Audited] = field(default_factory=list)
    ends: dict[int | None, list[Audited]] = field(default_factory=dict)
    smallest: int = 0
    growths: dict[int, int] = field(default_factory=dict)
    usual_growth: int | None = None
    extra: tuple[Audited, int] | None = None
    floor: int | None = None

    def add(self, audited: Audited) -> None:
        """Count a call among the earlier ones."""
        end, total = endpoint(audited), total_of(audited)
        self.smallest = min(self.smallest, total) if self.calls else total
        self.calls.append(audited)
        self.ends.setdefault(end, []).append(audited)
        if end != 0 and audited.call.started_at is not None:
            self.left.append(audited)

    def grew(self, tokens: int) -> None:
        """Count a growth of the input; of growths seen equally often, the one that reached that first is usual."""
        often = self.growths[tokens] = self.growths.get(tokens, 0) + 1
        if often > 1 and (self.usual_growth is None or often > self.growths[self.usual_growth]):
            self.usual_growth = tokens


def total_of(call: Audited) -> int:
    """The whole input of a call in tokens, 0 where unknown."""
    return call.call.usage.input_tokens or 0


def endpoint(call: Audited) -> int | None:
    """Tokens up to the last boundary that the call left readable: read + write, or its input where writes are free."""
    usage = call.call.usage
    if usage.read_tokens is None:
        return None
    if usage.write_tokens is None or not call.writes:
        return usage.input_tokens
    return usage.read_tokens + usage.write_tokens


class Continued(NamedTuple):
    """The call that a transcript says this one continues, its thread, and the call right before, of whatever model."""

    before: Audited | None
    thread: Thread | None
    told: Told
    latest: Audited | None


def _same_cache(one: Audited, other: Audited) -> bool:
    """Whether two calls of a conversation can read each other's entries at all."""
    key, another = one.call, other.call
    return (
        key.model == another.model
        and key.provider == another.provider
        and key.host == another.host
        and facts_of(key).get("speed") == facts_of(another).get("speed")
    )


def continued(audited: Audited, known: Mapping[str, tuple[Audited, Thread]]) -> Continued:
    """What a call goes on from, as its transcript says: the nearest earlier call with the same model and speed."""
    between: list[Audited] = []
    name = facts_of(audited.call).get("previous")
    while isinstance(name, str) and name in known and len(between) < REACH:
        call, thread = known[name]
        if call.at < audited.at and _same_cache(call, audited) and endpoint(call) != 0:
            return Continued(call, thread, told(audited, between[::-1]), between[0] if between else call)
        between.append(call)
        name = facts_of(call.call).get("previous")
    return Continued(None, None, told(audited, between[::-1]), between[0] if between else None)


def before_of(audited: Audited, thread: Thread) -> Audited | None:
    """The latest call of the thread that had ended when this one started (a sibling in flight is no predecessor).

    Calls that left nothing cached (side questions, refused prefixes) are passed over.
    """
    if audited.call.started_at is None:
        return None
    for call in reversed(thread.left):
        if (call.call.ended_at or call.at) <= audited.at and call.at < audited.at:
            return call
    return None


def latest_use(before: Audited, thread: Thread, audited: Audited) -> Audited:
    """The latest call that read or wrote all that `before` left, and so kept it alive (a branch since given up)."""
    end = endpoint(before)
    if end is not None and "previous" in facts_of(audited.call):
        for call in islice(reversed(thread.left), REACH):
            if call is before:
                break
            if call.at < audited.at and (endpoint(call) or 0) >= end:
                return call
    return before


def kept_for_an_hour(user: Audited, thread: Thread) -> int:
    """Tokens of the longest prefix that was written for an hour and that all calls since, up to `user`, have read.

    Where a call writes for both lifetimes, the hour's part comes first: the API takes no other order.
    """
    least: int | None = None
    for call in islice(reversed(thread.calls), REACH):
        usage = call.call.usage
        if call.at > user.at or usage.read_tokens is None:
            continue
        end = usage.read_tokens + (usage.write_1h_tokens or 0)
        if usage.write_1h_tokens and (least is None or end <= least):
            return end
        least = usage.read_tokens if least is None else min(least, usage.read_tokens)
    return 0


def writer_of(user: Audited, thread: Thread) -> Audited:
    """The call of the latest write up to `user`: its lifetime is the one in use."""
    for call in islice(reversed(thread.calls), REACH):
        if call.call.usage.write_tokens and call.at <= user.at:
            return call
    return user
