"""DeepSeek's persisted units: only whole units are read, and a common prefix becomes one when it has been seen twice.

Extending: A+B, then A+B+C reads A+B (a unit ends at the end of a request's input). Branching: A+B, then A+C reads
nothing, though A is common; it becomes a unit then, so that A+D reads A.
"""

from probes.api import bodies, filler
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.exchange import Exchange
from probes.api.granularity import best_effort
from probes.api.lab import Lab, Plan
from traces.schema import JsonObject

NAME, RULE = "units", None
EXTENDS = "A+B+C reads the unit A+B that an earlier request left."
BRANCHES = "After A+B, A+C reads nothing; A+D then reads A, which has been persisted as a common prefix."
BUILD_S = 6.0
"""Units are built within seconds of a request's end."""
CANNOT = (
    "Persisting is best effort: a miss may be a unit that was not built in time.",
    "Units at fixed intervals inside long inputs may add reads that these rules do not name.",
)


def plan(lab: Lab) -> Plan:
    """Two requests and three."""
    return Plan(5, 5 * lab.words * 4, 5 * bodies.SHORT_ANSWER, 3 * BUILD_S)


def run(lab: Lab) -> list[Claim]:
    """Extend one conversation, then branch another."""
    return [_extends(lab), _branches(lab)]


def _body(lab: Lab, document: str, question: str, turns: tuple[JsonObject, ...] = ()) -> JsonObject:
    return bodies.chat(lab.model, document, question, turns=turns)


def _extends(lab: Lab) -> Claim:
    document, question = lab.document(), "Name the first word."
    one = lab.send("units_ab", _body(lab, document, question))
    lab.pause(BUILD_S, "for the unit to be built")
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": "Experiment"})
    two = lab.send("units_abc", _body(lab, document, "Name the last word.", turns))
    return _claim(lab, "units_extend", EXTENDS, [one, two], wanted=[False, True])


def _branches(lab: Lab) -> Claim:
    document = lab.document()
    sent: list[Exchange] = []
    for name in ("b", "c", "d"):
        lab.pause(BUILD_S if sent else 0, "for units to be built")
        sent.append(lab.send(f"units_a{name}", _body(lab, document, filler.text(40))))
    return _claim(lab, "units_branch", BRANCHES, sent, wanted=[False, False, True])


def _claim(lab: Lab, name: str, claim: str, sent: list[Exchange], wanted: list[bool]) -> Claim:
    requests = tuple(one.seq for one in sent)
    seen = [one.hit for one in sent]
    if None in seen:
        return open_claim(name, RULE, claim, "the usage does not say what was read", requests)
    told = lab.foretell()
    predicted = [told[seq].hit for seq in requests if seq in told]
    agrees = best_effort(lab, predicted, [bool(hit) for hit in seen])
    why = f"read {[one.read for one in sent]} of {[one.usage.input_tokens for one in sent]} tokens"
    if not predicted:
        why += "; the rules make no prediction for these requests"
    elif agrees is None:
        why += "; a hit that best effort need not give is missing: run it again"
    return Claim(
        name, RULE, claim, requests, {"hit": predicted}, {"hit": seen, "as_documented": seen == wanted},
        finding_of(agrees), seen == wanted, True, why, CANNOT,
    )  # fmt: skip
