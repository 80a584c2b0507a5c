"""No built-in policy is dead: over random traces each one changes what some call would have been billed."""

import json
from random import Random

from generate import random_trace

from auditor.audit import audit
from auditor.money import Money
from auditor.policies import POLICIES
from auditor.pricing import PriceList
from auditor.whatif import Trial, run
from localmodel.rules.load import load
from traces import io


def _trial(seed: int) -> Trial:
    rng = Random(seed)
    rows = random_trace(rng, rng.randrange(4, 25))
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies = {(call.trace, call.id): call.request for call in calls}
    result = audit(calls, load("anthropic"), lambda audited: bodies[audited.call.trace, audited.call.id])
    return Trial(result, Money(result.calls, PriceList(lambda provider, model: ())))


def test_every_policy_acts_somewhere() -> None:
    waiting = list(POLICIES)
    for seed in range(400):
        trial = _trial(seed)
        rows = [(policy, run(trial, [policy], policy.name)) for policy in waiting]
        waiting = [policy for policy, row in rows if not row.by_call and not row.added]
        if not waiting:
            return
    raise AssertionError(f"never act: {[policy.name for policy in waiting]}")
