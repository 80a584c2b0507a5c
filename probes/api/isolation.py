"""Isolation: whether an entry written with one key can be read with another.

The second key should belong to another workspace (or account): two keys of one workspace share entries by rule, and
then the claim about these two keys is refuted without any rule being wrong. A last request with the first key shows
that the entry was there all the time.
"""

from probes.api import bodies
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.lab import Lab, Plan

NAME, RULE = "isolation", "isolation_scope"
CLAIM = "What is written with the first key cannot be read with the second."
CANNOT = (
    "Whether the two keys belong to different workspaces is the caller's word.",
    "It tests this pair of keys, not every way to reach an entry.",
)


def plan(lab: Lab) -> Plan:
    """Three requests."""
    return Plan(3, 3 * lab.words * 2, 3 * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Write with the first key, ask with the second, then with the first again."""
    if len(lab.key_fps) < 2:
        return [open_claim(NAME, RULE, CLAIM, f"no second key; set {lab.target.second_variable}")]
    if lab.key_fps[0] == lab.key_fps[1]:
        return [open_claim(NAME, RULE, CLAIM, f"{lab.target.second_variable} holds the same key as the first")]
    lab.engage()
    body = bodies.about(lab.model, lab.document())
    first, other, again = (lab.send(f"isolation_{n}", body, key=key) for n, key in ((1, 0), (2, 1), (3, 0)))
    requests = (first.seq, other.seq, again.seq)
    if not again.hit or other.hit is None:
        why = "the first key did not read its own entry afterwards, so the other key's miss proves nothing"
        return [open_claim(NAME, RULE, CLAIM, why, requests, again=again.hit is False)]
    told = lab.foretell()
    why = "the second key read nothing and the first its own entry"
    if other.hit:
        why = f"the second key read {other.read} tokens of the first: the keys share a scope, or nothing isolates"
    return [
        Claim(
            NAME, RULE, CLAIM, requests,
            prediction={"hit": [told[seq].hit for seq in requests if seq in told]},
            observation={"hit": [first.hit, other.hit, again.hit]},
            finding=finding_of(not other.hit),
            value="separate" if not other.hit else "shared",
            expected="separate",
            why=why,
            cannot=CANNOT,
        )
    ]  # fmt: skip
