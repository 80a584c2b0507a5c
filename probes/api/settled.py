"""Asking again before anybody is accused: one lost entry, or one late request, refutes nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probes.api.claim import Claim, open_claim
from probes.api.lab import Lab

TRIES = 3


def settled(ask: Callable[[Lab], list[Claim]]) -> Callable[[Lab], list[Claim]]:
    """A probe of one claim that refutes only what it refutes twice, and asks again where it missed the moment.

    A refutation that does not repeat is inconclusive: one lost entry must accuse nobody.
    """

    def asking(lab: Lab) -> list[Claim]:
        seen: list[Claim] = []
        while len(seen) < TRIES:
            (claim,) = ask(lab)
            seen.append(claim)
            told = [one for one in seen if one.finding != "inconclusive"]
            if len(told) == 2 or (told and told[0].finding == "confirmed") or not (told or claim.again):
                break
        return [_together(seen)]

    return asking


def _together(seen: list[Claim]) -> Claim:
    """What several tries say together."""
    last = seen[-1]
    requests = tuple(number for one in seen for number in one.requests)
    refuted = [one for one in seen if one.finding == "refuted"]
    if not refuted or (len(refuted) > 1 and _alike(refuted[0].value, last.value)):
        return replace(last, requests=requests)
    why = "tries differ: " + "; ".join(one.why for one in seen)
    return open_claim(last.probe, last.rule, last.claim, why, requests)


def _alike(one: Any, two: Any) -> bool:
    """Whether two found values can be one: the same, or intervals that overlap."""
    if not (isinstance(one, dict) and isinstance(two, dict)):
        return bool(one == two)
    above = max(one["above"], two["above"])
    return all(found["at_most"] is None or above < found["at_most"] for found in (one, two))
