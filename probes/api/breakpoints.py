"""Breakpoint limit: how many markers one request may carry before the API refuses it (HTTP 400).

The marked blocks are a few words each, below any minimum: this probe writes nothing and costs nearly nothing.
"""

from probes.api import bodies
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.exchange import Exchange
from probes.api.lab import Lab, Plan

NAME, RULE = "breakpoints", "max_breakpoints"
CLAIM = "A request may carry {expected} cache markers; one more is refused with HTTP 400."
CANNOT = ("A refusal for another reason would look alike; its text is in the record.",)
MOST = 64


def plan(lab: Lab) -> Plan:
    """Two requests where the rules are right."""
    return Plan(2, 2 * 400, 2 * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Find the largest number of markers that is accepted."""
    assert lab.rules is not None
    expected = lab.rules.max_breakpoints
    sent: dict[int, Exchange] = {}

    def accepted(count: int) -> bool:
        if count not in sent:
            sent[count] = lab.send(f"breakpoints_{count}", _body(lab, count), may_fail=True)
        return sent[count].complete

    low, high = 0, MOST
    for count in (expected, expected + 1):
        if low < count < high:
            low, high = (count, high) if accepted(count) else (low, count)
    while high - low > 1 and low < MOST:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    requests = tuple(one.seq for one in sent.values())
    if low == 0:
        why = f"a request with one marker was refused too: {sent[1].error}" if 1 in sent else "nothing was accepted"
        return [open_claim(NAME, RULE, CLAIM.format(expected=expected), why, requests)]
    return [_claim(lab, sent, requests, expected, low, high)]


def _body(lab: Lab, count: int) -> dict[str, object]:
    marked = [bodies.text(f"Part {number}.", mark=True) for number in range(1, count + 1)]
    return bodies.messages(lab.model, content=[*marked, bodies.text(bodies.QUESTION)])


def _claim(
    lab: Lab, sent: dict[int, Exchange], requests: tuple[int, ...], expected: int, low: int, high: int
) -> Claim:  # fmt: skip
    told = lab.foretell()
    refusal = next((one.error for count, one in sorted(sent.items()) if count == high), None)
    why = f"{low} markers were accepted, {high} refused ({refusal})" if high < MOST else f"{low} markers were accepted"
    return Claim(
        NAME, RULE, CLAIM.format(expected=expected), requests,
        prediction={
            "accepted": {str(n): not told[one.seq].refused for n, one in sorted(sent.items()) if one.seq in told}
        },
        observation={"accepted": {str(n): one.complete for n, one in sorted(sent.items())}},
        finding=finding_of(low == expected),
        value=low,
        expected=expected,
        why=why,
        cannot=CANNOT,
    )  # fmt: skip
