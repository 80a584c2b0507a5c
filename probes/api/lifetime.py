"""Lifetime: how long an entry lives, from when the clock counts, and whether reading restarts it.

Each gap is tried on an entry of its own (a hit restarts the clock, so an entry can be asked only once). All entries
are written at the beginning and read one after the other, so the whole schedule takes as long as its longest gap.
What a schedule proves is an interval: the lifetime is more than the longest gap that hit and at most the shortest that
missed. The server's own moments are only known to lie between a request's leaving and its response's begin, so the
lower bound counts from the begin of the writing response, the upper one from the sending of the writing request.
"""

from typing import NamedTuple

from probes.api import bodies
from probes.api.claim import Claim, between, finding_of
from probes.api.exchange import Exchange, gap_between
from probes.api.lab import Lab, Plan
from traces.schema import Ttl

RULES: dict[Ttl, str] = {"5m": "ttl_seconds_5m", "1h": "ttl_seconds_1h"}
CLAIM = "An entry of lifetime {ttl} lives {expected} s from the start of the request that last used it."
CANNOT = (
    "An interval, not a figure; more gaps inside it would narrow it.",
    "Entries may be evicted early: a miss bounds the lifetime only if the entry was not dropped for another reason.",
)
FINE = 1.25
"""The search ends when the interval's ends differ by no more than this factor."""
WIDE = 2.0
"""An interval whose ends differ by more than this factor confirms nothing."""
SHORTEST_S = 0.25
ROUNDS = 5


class Tried(NamedTuple):
    """One gap: between `least` and `most` seconds at the server, and whether the entry was still read."""

    least: float
    most: float
    hit: bool
    requests: tuple[int, int]


class Bounds(NamedTuple):
    """The lifetime in seconds: more than `above`, at most `at_most` (`None`: no gap has missed)."""

    above: float
    at_most: float | None


def plan(lab: Lab, ttl: Ttl = "5m") -> Plan:
    """A write and a read for each gap of the first round."""
    gaps = first_gaps(_expected(lab, ttl), lab.max_wait_s)
    count = 2 * len(gaps)
    return Plan(count, count * lab.words * 2, count * bodies.SHORT_ANSWER, gaps[-1] if gaps else 0)


def run(lab: Lab, ttl: Ttl = "5m") -> list[Claim]:
    """Bound the lifetime."""
    expected = _expected(lab, ttl)
    lab.engage()
    tried: list[Tried] = []
    bounds = bound(lab, ttl, expected, tried)
    if ttl == "5m":
        lab.bounds = bounds
    told = lab.foretell()
    value = between(bounds.above, bounds.at_most)
    return [
        Claim(
            f"lifetime_{ttl}", RULES[ttl], CLAIM.format(ttl=ttl, expected=expected),
            tuple(seq for one in tried for seq in one.requests),
            prediction={"hit": [told[one.requests[1]].hit for one in tried if one.requests[1] in told]},
            observation={
                "gap_s": [[round(one.least, 3), round(one.most, 3)] for one in tried],
                "hit": [one.hit for one in tried],
            },
            finding=finding_of(agrees(tried, expected)),
            value=value if bounds.above else None,
            expected=expected,
            why=sentence(bounds, tried, lab.max_wait_s),
            cannot=CANNOT,
        )
    ]  # fmt: skip


def agrees(tried: list[Tried], expected: float) -> bool | None:
    """Whether the tries agree with a lifetime of `expected` seconds; `None` where they leave it open.

    They do so where nothing was ever read, where a single miss stands against it (it may be an eviction), and where the
    interval is so wide that many a lifetime would fit.
    """
    bounds = bounds_of(tried)
    if expected <= bounds.above:
        return False
    if bounds.at_most is None or not bounds.above:
        return None
    against = [one for one in tried if not one.hit and bounds.above < one.most < expected]
    if against:
        return None if len(against) == 1 else False
    return True if bounds.at_most <= bounds.above * WIDE else None


def _expected(lab: Lab, ttl: Ttl) -> int:
    assert lab.rules is not None
    return lab.rules.ttl_s[ttl]


def first_gaps(expected: float, longest: float) -> list[float]:
    """Gaps of the first round: halves of the expected lifetime down to a quarter second, and just around it."""
    gaps = [expected * 0.9, expected * 1.1]
    if longest < expected * 0.9:
        gaps.append(longest)  # no proof of the expected lifetime, but of a shorter one
    half = expected / 2
    while half >= SHORTEST_S:
        gaps.append(half)
        half /= 2
    return sorted(gap for gap in gaps if gap <= longest)


def bound(lab: Lab, ttl: Ttl, expected: float, tried: list[Tried]) -> Bounds:
    """Rounds of gaps until the interval is narrow; every try goes into `tried`."""
    gaps = first_gaps(expected, lab.max_wait_s)
    bounds = Bounds(0, None)
    for _ in range(ROUNDS):
        if not gaps:
            break
        tried += _round(lab, ttl, gaps)
        bounds = bounds_of(tried)
        gaps = _next_gaps(bounds, max(expected, 1.0), lab.max_wait_s)
    return bounds


def bounds_of(tried: list[Tried]) -> Bounds:
    """The interval that hits and misses leave. A miss after less than a gap that hit is an early loss, no bound."""
    above = max((one.least for one in tried if one.hit), default=0.0)
    return Bounds(above, min((one.most for one in tried if not one.hit and one.most > above), default=None))


def early(tried: list[Tried]) -> list[Tried]:
    """Misses that contradict a hit after a longer gap."""
    above = bounds_of(tried).above
    return [one for one in tried if not one.hit and one.most <= above]


def _next_gaps(bounds: Bounds, expected: float, longest: float) -> list[float]:
    if bounds.at_most is None:
        doubled = max(bounds.above, expected) * 2
        gaps = [gap for gap in (doubled, doubled * 2) if gap <= longest]
        return gaps or ([longest] if longest > bounds.above * 1.1 else [])
    if bounds.at_most <= bounds.above * FINE or bounds.at_most < SHORTEST_S:
        return []
    width = bounds.at_most - bounds.above
    return [bounds.above + width * part for part in (0.25, 0.5, 0.75)]


def _round(lab: Lab, ttl: Ttl, gaps: list[float]) -> list[Tried]:
    """Write an entry for each gap, the longest first, and read each when it is due; stop after two misses in a row."""
    waiting = sorted(gaps)
    open_entries: list[tuple[float, Exchange]] = []
    tried: list[Tried] = []
    while waiting or open_entries:
        due = min(open_entries, key=lambda one: one[0], default=None)
        if waiting and (due is None or due[0] > lab.clock.steady()):
            gap = waiting.pop()
            entry = lab.send("lifetime_write", bodies.about(lab.model, lab.document(), mark=ttl))
            open_entries.append((entry.sent_s + gap, entry))
            continue
        assert due is not None
        if len(tried) > 1 and not tried[-1].hit and not tried[-2].hit and not waiting:
            break
        lab.pause(due[0] - lab.clock.steady(), f"for an entry to be {due[0] - due[1].sent_s:.3g} s old")
        open_entries.remove(due)
        tried.append(_read(lab, due[1]))
    return tried


def _read(lab: Lab, entry: Exchange) -> Tried:
    again = lab.send("lifetime_read", entry.body)
    return Tried(*gap_between(entry, again), bool(again.hit), (entry.seq, again.seq))


def sentence(bounds: Bounds, tried: list[Tried], longest: float) -> str:
    """The interval in words."""
    lost = f"; {len(early(tried))} entries were gone earlier than others" if early(tried) else ""
    if not tried:
        return f"--max-wait {longest:g} leaves no time for any gap"
    if not bounds.above:
        return "no entry was read again, not even the first after its writing: nothing can be said of lifetimes"
    above, at_most = between(*bounds).values()
    if at_most is None:
        return f"entries lived more than {above:g} s; longer gaps need --max-wait above {longest:g}{lost}"
    return f"the lifetime is more than {above:g} s and at most {at_most:g} s{lost}"
