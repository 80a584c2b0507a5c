"""The lifetime's clock: whether a read restarts it, and whether it counts from a request's start or its response's end.

Both need the lifetime's bounds first; they are measured as in `lifetime` where no probe before has done so.
Refresh: an entry is read within its lifetime, and read again when it would be dead had the first read not counted.
Start or end: an entry is written by a request with a long answer and read when it is dead if the clock began with the
request, alive if it began with the answer's end.
"""

from math import ceil

from probes.api import bodies, lifetime
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.exchange import gap_between
from probes.api.lab import Lab, Plan
from probes.api.lifetime import Bounds

REFRESH, START = "refresh", "clock"
REFRESH_RULE, CLOCK_RULE = "refresh_on_read", "ttl_clock"
REFRESH_CLAIM = "Reading an entry restarts its lifetime."
CLOCK_CLAIM = "The lifetime counts from the start of the request, not from the end of its response."
CANNOT = ("An entry evicted for another reason would look like one whose time ran out.",)
LONG_ANSWER = 8000


def plan_refresh(lab: Lab) -> Plan:
    """The lifetime's schedule, one write and two reads."""
    first = lifetime.plan(lab)
    return Plan(first.requests + 3, first.input_tokens + 3 * lab.words * 2, first.output_tokens, first.wait_s * 2.4)


def plan_clock(lab: Lab) -> Plan:
    """The lifetime's schedule, a long answer and a read."""
    first = lifetime.plan(lab)
    return Plan(
        first.requests + 2, first.input_tokens + 2 * lab.words * 2, first.output_tokens + LONG_ANSWER, first.wait_s * 2
    )


def run_refresh(lab: Lab) -> list[Claim]:
    """Whether a read restarts the clock."""
    bounds = _bounds(lab)
    if bounds.at_most is None or bounds.at_most >= bounds.above * 1.9:
        return [open_claim(REFRESH, REFRESH_RULE, REFRESH_CLAIM, _vague(bounds))]
    # Less than the lifetime for certain, twice as long more than it for certain: the middle of what is left.
    gap = (bounds.above + bounds.at_most / 2) / 2
    body = bodies.about(lab.model, lab.document())
    entry = lab.send("refresh_write", body)
    lab.pause(entry.sent_s + gap - lab.clock.steady(), "to read an entry within its lifetime")
    first = lab.send("refresh_read_1", body)
    lab.pause(first.sent_s + gap - lab.clock.steady(), "to read it when it would be dead without the first read")
    second = lab.send("refresh_read_2", body)
    requests = (entry.seq, first.seq, second.seq)
    if not first.hit or gap_between(entry, second)[0] <= bounds.at_most:
        why = "the first read missed" if not first.hit else "the second read came too early to tell"
        return [open_claim(REFRESH, REFRESH_RULE, REFRESH_CLAIM, why, requests, again=True)]
    if not second.hit and gap_between(first, second)[1] >= bounds.above:
        why = "the second read came later than the lifetime's lower bound; run it on a calmer line"
        return [open_claim(REFRESH, REFRESH_RULE, REFRESH_CLAIM, why, requests, again=True)]
    told = lab.foretell()
    total = gap_between(entry, second)[0]
    expected = bool(lab.value(REFRESH_RULE, True))
    state = "still read" if second.hit else "gone"
    return [
        Claim(
            REFRESH, REFRESH_RULE, REFRESH_CLAIM, requests,
            prediction={"hit": [told[seq].hit for seq in requests if seq in told]},
            observation={"hit": [entry.hit, first.hit, second.hit], "gap_s": round(gap, 3)},
            finding=finding_of(bool(second.hit) == expected),
            value=bool(second.hit),
            expected=expected,
            why=f"{total:.4g} s after its writing and {gap:.4g} s after a read the entry was {state}",
            cannot=CANNOT,
        )
    ]  # fmt: skip


def run_clock(lab: Lab) -> list[Claim]:
    """Whether the clock counts from the start or the end."""
    bounds = _bounds(lab)
    if bounds.at_most is None:
        return [open_claim(START, CLOCK_RULE, CLOCK_CLAIM, _vague(bounds))]
    document, tokens = lab.document(), _answer_tokens(lab, bounds.at_most)
    entry = lab.send("clock_write", bodies.about(lab.model, document, bodies.LONG_QUESTION, max_tokens=tokens))
    # Counted from the response's begin, before which the server must have begun with the request.
    due = (entry.began_s or entry.sent_s) + bounds.at_most * 1.02 + 0.02
    lab.pause(due - lab.clock.steady(), "past the lifetime from the start")
    again = lab.send("clock_read", bodies.about(lab.model, document))
    requests = (entry.seq, again.seq)
    from_start, from_end = gap_between(entry, again)[0], (again.began_s or again.sent_s) - (entry.ended_s or 0)
    if from_start <= bounds.at_most or from_end >= bounds.above:
        answer = (entry.ended_s or entry.sent_s) - entry.sent_s
        why = (
            f"the long answer took {answer:.3g} s and was read {from_end:.3g} s after its end; telling start from end "
            f"needs less than {bounds.above:.3g} s there and more than {bounds.at_most:.3g} s since its start"
        )
        return [open_claim(START, CLOCK_RULE, CLOCK_CLAIM, why, requests, again=from_start > bounds.at_most)]
    told = lab.foretell().get(again.seq)
    value = "response_end" if again.hit else "request_start"
    expected = lab.value(CLOCK_RULE, "request_start")
    return [
        Claim(
            START, CLOCK_RULE, CLOCK_CLAIM, requests,
            prediction={"hit": told.hit if told else None},
            observation={"hit": again.hit, "from_start_s": round(from_start, 3), "from_end_s": round(from_end, 3)},
            finding=finding_of(value == expected),
            value=value,
            expected=expected,
            why=f"{from_start:.4g} s after the request's start, {from_end:.4g} s after the response's end, the entry "
            f"was {'read' if again.hit else 'gone'}; the lifetime is in ({bounds.above:.4g}, {bounds.at_most:.4g}] s",
            cannot=CANNOT,
        )
    ]  # fmt: skip


def _answer_tokens(lab: Lab, seconds: float) -> int:
    """Tokens for an answer of twice that time at the fastest pace seen: a slow server need not write for long."""
    paces = [
        (one.usage.output_tokens or 0) / (one.ended_s - one.began_s)
        for one in lab.exchanges
        if one.began_s is not None and one.ended_s is not None and one.ended_s > one.began_s
    ]
    return min(LONG_ANSWER, ceil(max(paces, default=LONG_ANSWER) * seconds * 2) + bodies.SHORT_ANSWER)


def _bounds(lab: Lab) -> Bounds:
    """The 5m lifetime's bounds, measured once a run."""
    assert lab.rules is not None
    lab.engage()
    if lab.bounds is None:
        lab.bounds = lifetime.bound(lab, "5m", lab.rules.ttl_s["5m"], [])
    return Bounds(*lab.bounds)


def _vague(bounds: Bounds) -> str:
    return f"the lifetime itself is only known to be more than {bounds.above:.4g} s; raise --max-wait"
