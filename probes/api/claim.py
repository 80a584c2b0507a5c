"""One claim about a provider's cache: what the rules predict, what was observed, and what that proves.

A finding is `confirmed` or `refuted` only where the controls of the probe held; everything else is `inconclusive`.
"""

from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Literal, TypeAlias

from traces.schema import JsonObject

Finding: TypeAlias = Literal["confirmed", "refuted", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and its finding.

    probe        name of the probe; `rule` the id of the rule value it tests, `None` where rule data has none
    requests     numbers of the requests it rests on
    prediction   what `localmodel.rules` says of these requests
    observation  what the usage fields said
    value        the true value as found: a number, a word, or an interval {"above": a, "at_most": b}; `None`: unknown
    expected     the value in the rule data
    why          one sentence
    cannot       what this does not establish
    again        the moment was missed: asking once more may tell
    """

    probe: str
    rule: str | None
    claim: str
    requests: tuple[int, ...]
    prediction: JsonObject
    observation: JsonObject
    finding: Finding
    value: Any = None
    expected: Any = None
    why: str = ""
    cannot: tuple[str, ...] = ()
    again: bool = False


def between(above: float, at_most: float | None) -> JsonObject:
    """An interval: more than `above`, at most `at_most` (`None`: no upper bound was found)."""
    # Rounded outwards: rounding to the nearest could shut the true value out.
    return {"above": floor(above * 1000) / 1000, "at_most": None if at_most is None else ceil(at_most * 1000) / 1000}


def fits(value: Any, expected: Any) -> bool | None:
    """Whether a found value agrees with the rule's; `None` where an interval without an end leaves it open."""
    if value is None or expected is None:
        return None
    if not isinstance(value, dict):
        return bool(value == expected)
    if expected <= value["above"]:
        return False
    return None if value["at_most"] is None else bool(expected <= value["at_most"])


def finding_of(agrees: bool | None) -> Finding:
    """The finding for a comparison."""
    return "inconclusive" if agrees is None else "confirmed" if agrees else "refuted"


def open_claim(
    probe: str, rule: str | None, claim: str, why: str, requests: tuple[int, ...] = (), *, again: bool = False
) -> Claim:
    """A claim that could not be tested, and why."""
    return Claim(probe, rule, claim, requests, {}, {}, "inconclusive", why=why, again=again)
