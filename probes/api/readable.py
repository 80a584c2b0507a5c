"""Readable-after: from when on an entry can be read by others.

First a twin is sent while the first request waits for its response to begin, then, with another document, one while
the first's response is still being written, and at last one after its end. The twins ask another question.
"""

from probes.api import bodies
from probes.api.claim import Claim, finding_of, fits, open_claim
from probes.api.exchange import Exchange
from probes.api.fanout import CLOSE_S, read_early
from probes.api.lab import Lab, Plan
from traces.schema import JsonObject

NAME, RULE = "readable", "readable_after"
CLAIM = "An entry can be read as soon as the response that writes it begins, and not before."
CANNOT = ("Moments are known to within the time a request travels.",)
LONG_ANSWER = 600


def plan(lab: Lab) -> Plan:
    """Five requests, one of them with a long answer."""
    return Plan(5, 5 * lab.words * 2, LONG_ANSWER + 4 * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Send the two pairs and a last request."""
    lab.engage()
    early = _pair(lab, "readable_early", wait=False, tokens=bodies.SHORT_ANSWER)
    document = lab.document()
    late = _pair(lab, "readable_late", wait=True, tokens=LONG_ANSWER, document=document)
    after = lab.send("readable_after", bodies.about(lab.model, document))
    sent = (*early, *late, after)
    requests = tuple(one.seq for one in sent)
    if any(one.hit is None for one in sent):
        return [open_claim(NAME, RULE, CLAIM, "the usage does not say what was read", requests)]
    value, why = _value(early, late, after)
    expected = lab.value(RULE, "first_response_begins")
    told = lab.foretell()
    return [
        Claim(
            NAME, RULE, CLAIM, requests,
            prediction={"hit": [told[seq].hit for seq in requests if seq in told]},
            observation={"hit": [one.hit for one in sent], "times": [_times(*early), _times(*late)]},
            finding=finding_of(fits(value, expected)),
            value=value,
            expected=expected,
            why=why,
            cannot=CANNOT,
        )
    ]  # fmt: skip


def _pair(lab: Lab, case: str, *, wait: bool, tokens: int, document: str = "") -> tuple[Exchange, Exchange]:
    document = document or lab.document()
    first = bodies.about(lab.model, document, bodies.LONG_QUESTION, max_tokens=tokens)
    return lab.send_pair(case, first, bodies.about(lab.model, document, "Say yes."), wait=wait)


def _times(one: Exchange, two: Exchange) -> JsonObject:
    start = one.sent_s
    moments = {"a_began": one.began_s, "a_ended": one.ended_s, "b_sent": two.sent_s, "b_began": two.began_s}
    return {name: None if moment is None else round(moment - start, 3) for name, moment in moments.items()}


def _value(
    early: tuple[Exchange, Exchange], late: tuple[Exchange, Exchange], after: Exchange
) -> tuple[str | None, str]:
    """(from when on, in a sentence), `None` where the moments do not tell."""
    before = read_early(*early)
    if before is not None:
        return "request_start", f"a twin's response began {before:.2f} s before that of the request whose entry it read"
    if early[0].hit or early[1].hit:
        return (
            None,
            "a twin read the entry, but its response began too close to the writer's to tell the order",
        )
    first, twin = late
    if not twin.hit:
        if after.hit:
            return "response_end", "a twin sent after the response began read nothing, a request after its end did"
        return None, "nothing was read even after the response's end"
    lead = (early[0].began_s or 0) - early[1].sent_s
    if (twin.began_s or 0) + CLOSE_S > (first.ended_s or 0):
        return None, "the first response ended before its twin's began, so begin and end cannot be told apart"
    if lead < CLOSE_S:
        return None, "readable while the response is written; whether earlier too cannot be told: it began at once"
    return "first_response_begins", "a twin before the response read nothing, one during it read the entry"
