"""Lookback distance: how far behind a breakpoint an earlier entry is still found.

An entry is written at the end of a first block. Later requests repeat that block, put n - 1 new small blocks behind it
and mark the last: seen from there the entry stands at position n (the breakpoint's own block is position 1). The new
blocks differ each time, so only that one entry can be read. A miss counts only where the entry itself is read right
after it: on a slow server it may have died meanwhile.
"""

from collections.abc import Callable

from probes.api import bodies, filler
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.exchange import Exchange
from probes.api.lab import Lab, Plan

NAME, RULE = "lookback", "lookback_positions"
CLAIM = "An entry is found up to {expected} positions behind a breakpoint, counting its own block, and not further."
CANNOT = (
    "Text blocks only: runs of tool calls and results may count as one position.",
    "It asks for one breakpoint's window; further explicit breakpoints have windows of their own.",
)
FURTHEST = 200
TRIES = 3
NEAR = 2


def plan(lab: Lab) -> Plan:
    """Five requests where the rules are right; each repeats the document, read or not."""
    return Plan(6, 6 * lab.words * 2, 6 * bodies.SHORT_ANSWER)


class _Gone(Exception):
    """The entry does not last long enough to be asked for."""


def run(lab: Lab) -> list[Claim]:
    """Find the largest distance at which the entry is read."""
    assert lab.rules is not None
    expected = lab.rules.lookback
    lab.engage()
    before = len(lab.exchanges)
    document = lab.document()
    lab.send("lookback_prime", _body(lab, document, 1))
    sent: dict[int, Exchange] = {}

    def hit(distance: int) -> bool:
        if distance not in sent:
            sent[distance] = _ask(lab, document, distance)
            if distance <= expected and not sent[distance].hit:
                # One miss may be another machine; before a rule is refuted it has to happen twice, with new blocks.
                sent[distance] = _ask(lab, document, distance)
        return bool(sent[distance].hit)

    claim = CLAIM.format(expected=expected)
    try:
        found = _furthest(hit, expected)
    except _Gone:
        why = (
            f"the entry was gone {TRIES} times before it could be asked for; its lifetime is too short for this server"
        )
        return [open_claim(NAME, RULE, claim, why, _since(lab, before))]
    if not hit(NEAR):
        why = "the entry was not found one block behind the breakpoint, so nothing can be said about further ones"
        return [open_claim(NAME, RULE, claim, why, _since(lab, before))]
    return [_claim(lab, sent, _since(lab, before), expected, found)]


def _furthest(hit: Callable[[int], bool], expected: int) -> int | None:
    """The largest distance that hits, by bisection; `None` where `FURTHEST` still does."""
    if not hit(NEAR):
        return NEAR
    low, high = NEAR, None
    step = expected
    while high is None and low < FURTHEST:  # first where the rules say, then twice as far each time
        step = max(step, low + 1)
        if hit(step):
            low, step = step, step + 1 if step == expected else step * 2
        else:
            high = step
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if hit(middle) else (low, middle)
    return low if high else None


def _ask(lab: Lab, document: str, distance: int) -> Exchange:
    """An answer whose entry was there: a hit, or a miss after which the entry was still read. Raises `_Gone`."""
    for _ in range(TRIES):
        asked = lab.send(f"lookback_{distance}", _body(lab, document, distance))
        # Where it is gone, this writes it anew for the next try.
        if asked.hit or lab.send("lookback_control", _body(lab, document, 1)).hit:
            return asked
    raise _Gone


def _since(lab: Lab, before: int) -> tuple[int, ...]:
    return tuple(exchange.seq for exchange in lab.exchanges[before:])


def _body(lab: Lab, document: str, distance: int) -> dict[str, object]:
    """The document, and `distance` - 1 new blocks behind it, the last block marked."""
    small = [bodies.text(f"Note {number}: {filler.run_id()}") for number in range(2, distance + 1)]
    content = [bodies.text(document), *small]
    content[-1] = bodies.text(content[-1]["text"], mark=True)
    return bodies.messages(lab.model, content=[*content, bodies.text(bodies.QUESTION)])


def _claim(
    lab: Lab, sent: dict[int, Exchange], requests: tuple[int, ...], expected: int, found: int | None
) -> Claim:  # fmt: skip
    told = lab.foretell()
    value = found if found is not None else {"above": FURTHEST, "at_most": None}
    furthest = f"{found}" if found is not None else f"more than {FURTHEST}"
    return Claim(
        NAME, RULE, CLAIM.format(expected=expected), requests,
        prediction={"hit": {str(n): told[one.seq].hit for n, one in sorted(sent.items()) if one.seq in told}},
        observation={"hit": {str(n): one.hit for n, one in sorted(sent.items())}},
        finding=finding_of(found == expected),
        value=value,
        expected=expected,
        why=f"the furthest position at which the entry was read is {furthest}",
        cannot=CANNOT,
    )  # fmt: skip
