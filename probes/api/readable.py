"""Readable-after: from when on an entry can be read by others.

First a twin is sent while the first request waits for its response to begin, then, with another document, one while
the first's response is still being written, and at last one after its end. The later two mark the ends of their own
questions, not the document's: they can read the first's entry and write none in its place. So where the twin misses,
the last request tells whether the entry was there at all.
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
    document = lab.document()
    first, twin = _body(lab, document, bodies.LONG_QUESTION), _body(lab, document, "Say yes.")
    early = lab.send_pair("readable_early", first, twin, wait=False)
    document = lab.document()
    first = _body(lab, document, bodies.LONG_QUESTION, max_tokens=LONG_ANSWER)
    late = lab.send_pair("readable_late", first, _behind(lab, document, "Say yes."), wait=True)
    after = lab.send("readable_after", _behind(lab, document, bodies.QUESTION))
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
            again=value is None,
        )
    ]  # fmt: skip


def _body(lab: Lab, document: str, question: str, max_tokens: int = bodies.SHORT_ANSWER) -> JsonObject:
    """A question behind a marked document."""
    content = [bodies.text(document, mark=True), bodies.text(question)]
    return bodies.messages(lab.model, content=content, max_tokens=max_tokens)


def _behind(lab: Lab, document: str, question: str) -> JsonObject:
    """A marked question behind the document."""
    return bodies.messages(lab.model, content=[bodies.text(document), bodies.text(question, mark=True)])


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
        return None, "nothing was read even after the response's end: the entry did not last, or nothing looks back"
    lead = (early[0].began_s or 0) - early[1].sent_s
    if (twin.began_s or 0) + CLOSE_S > (first.ended_s or 0):
        return None, "the first response ended before its twin's began, so begin and end cannot be told apart"
    if lead < CLOSE_S:
        return None, "readable while the response is written; whether earlier too cannot be told: it began at once"
    return "first_response_begins", "a twin before the response read nothing, one during it read the entry"
