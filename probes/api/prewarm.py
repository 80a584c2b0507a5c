"""Pre-warm: whether a request with `max_tokens` 0 writes an entry that an ordinary request reads."""

from probes.api import bodies
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.lab import Lab, Plan

NAME, RULE = "prewarm", None
CLAIM = "A request with max_tokens 0 writes the cache, and an ordinary request reads it."
CANNOT = ("It says nothing about how long the request took to take effect beyond the response's begin.",)


def plan(lab: Lab) -> Plan:
    """Two requests."""
    return Plan(2, 2 * lab.words * 2, bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Send the pre-warming request, then the ordinary one."""
    lab.engage()
    document = lab.document()
    # The API refuses max_tokens 0 together with streaming.
    warming = {**bodies.about(lab.model, document, max_tokens=0), "stream": False}
    first = lab.send("prewarm", warming, may_fail=True)
    if not first.complete:
        why = f"max_tokens 0 is refused: {first.error}"
        return [Claim(NAME, RULE, CLAIM, (first.seq,), {"hit": True}, {"refused": first.error}, "refuted", why=why)]
    second = lab.send("prewarm_read", bodies.about(lab.model, document))
    told = lab.foretell().get(second.seq)
    if second.hit is None:
        return [open_claim(NAME, RULE, CLAIM, "the usage does not say what was read", (first.seq, second.seq))]
    if not second.hit and not lab.in_time(first, second):
        why = "nothing was read, but the second request came when the entry may have been dead"
        return [open_claim(NAME, RULE, CLAIM, why, (first.seq, second.seq), again=True)]
    read = f"the ordinary request read {second.read} tokens of the {first.covered} that were written"
    return [
        Claim(
            NAME, RULE, CLAIM, (first.seq, second.seq),
            prediction={"hit": told.hit if told else None},
            observation={"hit": second.hit, "written": first.usage.write_tokens, "output": first.usage.output_tokens},
            finding=finding_of(second.hit),
            value=second.hit,
            why=read,
            cannot=CANNOT,
        )
    ]  # fmt: skip
