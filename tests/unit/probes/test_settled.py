"""No single accident refutes a right rule: not a lost entry, not a late request, in any probe, at any moment."""

import pytest
from habits import Asked, Habits, Json, MessagesCache
from workbench import Dream, dream_lab

from probes.api import invalidation, suite
from probes.api.claim import Claim, Finding, open_claim
from probes.api.lab import Lab
from probes.api.settled import settled

# Not `readable`: its twins need a server that takes real time (tests/e2e).
USUAL = [
    name for name, probe in suite.PROBES.items() if probe.usual and "messages" in probe.apis and name != "readable"
]
_PARAMETERS = {f"invalidation_{row.name}" for row in invalidation.ROWS if row.rule is not None}


class Losing(MessagesCache):
    """Answers one request as another machine would, which has seen nothing."""

    def __init__(self, lost: int) -> None:
        super().__init__(Habits(minimum=1024))
        self.lost, self.count = lost, 0

    def ask(self, key: str, body: Json, now: float) -> Asked:
        self.count += 1
        return super().ask("elsewhere" if self.count == self.lost else key, body, now)


class Late(Dream):
    """One request is on its way for longer than an entry lives."""

    late, count = 0, 0

    def send(self, exchange: object) -> None:
        self.count += 1
        if self.count == self.late:
            self.seconds += 400
        super().send(exchange)  # type: ignore[arg-type]


def found(lab: Lab, name: str) -> dict[str, str]:
    return {claim.probe: claim.finding for claim in suite.run(lab, [suite.PROBES[name]])}


def refuted(lab: Lab, name: str) -> set[str]:
    """Rows of parameters are left out: this cache knows none of them, and is refuted rightly."""
    told = found(lab, name).items()
    return {probe for probe, finding in told if finding == "refuted" and probe not in _PARAMETERS}


def moments(name: str) -> range:
    """Numbers of the requests that something happens to; every third where there are many."""
    return range(1, 27, 3) if name == "invalidation" else range(1, 27)


@pytest.mark.parametrize("name", USUAL)
def test_one_lost_entry_refutes_nothing(name: str) -> None:
    assert [lost for lost in moments(name) if refuted(dream_lab(Losing(lost), long_s=400), name)] == []


@pytest.mark.parametrize("name", USUAL)
def test_one_late_request_refutes_nothing(name: str) -> None:
    wrong = []
    for late in moments(name):
        lab = dream_lab(MessagesCache(Habits(minimum=1024)), long_s=400)
        lab.sender.__class__ = Late
        lab.sender.late = late  # type: ignore[attr-defined]
        wrong += [late] if refuted(lab, name) else []
    assert wrong == []


def test_one_accident_costs_invalidation_one_row_at_most() -> None:
    right = found(dream_lab(Losing(0)), "invalidation")
    assert len(right) == 11
    for lost in range(4, 26, 3):
        told = found(dream_lab(Losing(lost)), "invalidation")
        differ = {name: finding for name, finding in told.items() if finding != right[name]}
        assert set(differ.values()) <= {"inconclusive"} and len(differ) < 2


def tries(*findings: tuple[Finding, int, bool]) -> tuple[Claim, int]:
    """What these tries come to, each a finding, a value, and whether asking again may tell; and how many were made."""
    left = [
        Claim("p", "r", "c", (number,), {}, {}, finding, value, why=f"found {value}", again=again)
        for number, (finding, value, again) in enumerate(findings)
    ]
    made = len(left)
    (claim,) = settled(lambda lab: [left.pop(0)])(dream_lab(MessagesCache(Habits())))
    return claim, made - len(left)


@pytest.mark.parametrize(
    ("findings", "finding", "count"),
    [
        ([("confirmed", 1, False)], "confirmed", 1),
        ([("refuted", 2, False), ("refuted", 2, False)], "refuted", 2),
        ([("refuted", 2, False), ("refuted", 3, False)], "inconclusive", 2),
        ([("refuted", 2, False), ("confirmed", 1, False)], "inconclusive", 2),
        ([("inconclusive", 0, False)], "inconclusive", 1),
        ([("inconclusive", 0, True), ("confirmed", 1, False)], "confirmed", 2),
        ([("inconclusive", 0, True), ("refuted", 2, False), ("inconclusive", 0, True)], "inconclusive", 3),
        ([("inconclusive", 0, True), ("refuted", 2, False), ("refuted", 2, False)], "refuted", 3),
        ([("inconclusive", 0, True)] * 3, "inconclusive", 3),
    ],
)
def test_tries_together(findings: list[tuple[Finding, int, bool]], finding: Finding, count: int) -> None:
    claim, made = tries(*findings)
    assert (claim.finding, made) == (finding, count)
    assert claim.requests == tuple(range(count))
    assert claim.value == (None if finding == "inconclusive" and len({f for f, _, _ in findings}) > 1 else claim.value)


def test_intervals_that_overlap_are_one_value() -> None:
    spans = [{"above": 1, "at_most": 4}, {"above": 3, "at_most": None}]
    left = [Claim("p", "r", "c", (), {}, {}, "refuted", span) for span in spans]
    (claim,) = settled(lambda lab: [left.pop(0)])(dream_lab(MessagesCache(Habits())))
    assert claim.finding == "refuted"


def test_what_cannot_be_asked_is_asked_once() -> None:
    count = []

    def ask(lab: Lab) -> list[Claim]:
        count.append(1)
        return [open_claim("p", "r", "c", "no second key")]

    settled(ask)(dream_lab(MessagesCache(Habits())))
    assert len(count) == 1
