"""What-if: rewrite a trace by a policy, replay it under the same rules, and count what would have been billed.

A policy takes the requests of a trace and returns them as they would have been sent. Savings are differences between
two replays (as sent, and rewritten), added to the bill as recorded; a call whose bill the rules do not reproduce proves
no saving and gets none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import is_
from typing import Protocol

from auditor.cycles import no_cycles
from auditor.money import Bill, Money, Tally
from auditor.records import Audit, Audited, Diagnosis
from auditor.replay import Charge, Sent, Simulator, idle
from auditor.savings import NOTHING, WhatIf


class Policy(Protocol):
    """A way to send calls. `fixes` says which diagnoses it is for; `remedy`, whether it is their usual fix."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def remedy(self) -> bool:
        """Whether it is the fix of some cause and so belongs to `all`, or an alternative way to send."""
        ...

    @property
    def quality_risk(self) -> str | None:
        """What the model may do worse under it, `None` where nothing changes for the model."""
        ...

    def fixes(self, audited: Audited, diagnosis: Diagnosis) -> bool:
        """Whether this policy is for calls with this diagnosis."""
        ...

    def rewrite(self, sent: list[Sent], trial: "Trial") -> list[Sent]:
        """The requests as they would have been sent."""
        ...

    def paths(self, trial: "Trial", row: "WhatIf") -> dict[str, Decimal] | None:
        """Equivalents of the calls it is for, by what the model may do under it; `None` where there is one way only."""
        ...


@dataclass(slots=True)
class Trial:
    """What policies may look at: the audit, the calls each remedy is for, and prices."""

    audit: Audit
    money: Money
    requests: list[Sent] = field(init=False)
    simulator: Simulator = field(init=False)
    _diagnosed: dict[str, list[Audited]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.requests = requests_of(self.audit)
        self.simulator = Simulator(self.audit.ruleset, self.requests)

    def diagnosed(self, policy: Policy) -> list[Audited]:
        """Calls whose diagnosis `policy` is for, in time order."""
        known = self._diagnosed.get(policy.name)
        if known is None:
            known = [a for a in self.audit.calls if a.diagnosis is not None and policy.fixes(a, a.diagnosis)]
            self._diagnosed[policy.name] = known
        return known


def requests_of(audit: Audit) -> list[Sent]:
    """The replayable requests of an audit: those with a body, a prediction and a bill that shows the cache at work.

    A cache whose provider promises no hits proves no saving, so its calls stay as billed.
    """
    return [
        Sent(a.prompt, a.at, a.readable_at, a.index)
        for a in audit.calls
        if a.prompt is not None
        and a.outcome is not None
        and a.outcome.style == "markers"
        and not idle(a.call, a.outcome)
    ]


def run(trial: Trial, policies: Sequence[Policy], name: str) -> WhatIf:
    """Replay the trace rewritten by `policies`, one after the other in the order given."""
    after = trial.requests
    for policy in policies:
        after = policy.rewrite(after, trial)
    changed, added = _changes(trial, after)
    total = trial.money.total
    tally = Tally()
    for index, bill in changed.items():
        tally.add(trial.money.recorded(trial.audit.calls[index]))
        tally.add(bill, -1)
    for bill in added:
        tally.add(bill, -1)
    saving = tally.bill()
    risks = [policy.quality_risk for policy in policies if policy.quality_risk]
    return WhatIf(
        policy=name,
        policies=tuple(policy.name for policy in policies),
        bill=total - saving,
        saving_equivalents=saving.equivalents,
        saving_usd=saving.usd,
        quality_risk="; ".join(risks) or None,
        by_call=changed,
        added=added,
    )


def _changes(trial: Trial, after: list[Sent]) -> tuple[dict[int, Bill], list[Bill]]:
    """Bills of the calls that the rewritten trace changes, and of those it adds."""
    changed: dict[int, Bill] = {}
    added: list[Bill] = []
    if len(after) == len(trial.requests) and all(map(is_, after, trial.requests)):
        return changed, added  # nothing was rewritten, so nothing can be billed otherwise
    for sent, charge in trial.simulator.run(after):
        if sent.call is None:
            added.append(trial.money.predicted(sent, charge))
            continue
        audited = trial.audit.calls[sent.call]
        base = _charge(audited)
        if charge == base:
            continue
        bill = trial.money.moved(audited, base, sent, charge)
        if audited.agrees is not True and bill.equivalents < trial.money.recorded(audited).equivalents:
            continue
        changed[sent.call] = bill
    return changed, added


def _charge(audited: Audited) -> Charge:
    one = audited.outcome
    assert one is not None
    return one.read_tokens, one.write_5m_tokens, one.write_1h_tokens, one.uncached_tokens


def table(trial: Trial, policies: Sequence[Policy], *, budget: int) -> list[WhatIf]:
    """Each policy alone, the cheapest subset of all of them, and last `all`: one fix for each diagnosed cause.

    `budget` bounds the work of the subset search in replayed requests; beyond it the search is left out and said so.
    Also fills each diagnosis with the money its own policy would have saved.
    """
    with no_cycles():
        return _table(trial, policies, budget)


def _table(trial: Trial, policies: Sequence[Policy], budget: int) -> list[WhatIf]:
    rows = []
    for policy in policies:
        fixed = trial.diagnosed(policy)
        if policy.remedy and not fixed:
            continue
        row = run(trial, [policy], policy.name)
        if policy.remedy:
            _attribute(trial, policy, row, fixed)
        if fixed or row.saving_equivalents > 0:
            rows.append(row)
            row.paths = policy.paths(trial, row) if fixed else None
    fixes = [policy for policy in policies if policy.remedy and trial.diagnosed(policy)]
    every = run(trial, fixes, "all")
    if not trial.requests:
        every.note = NOTHING
    useful = [policy for policy in policies if any(row.policy == policy.name for row in rows)]
    if not useful:
        return [every]
    return [*rows, _cheapest(trial, useful, budget, [every, *rows]), every]


def _cheapest(trial: Trial, policies: Sequence[Policy], budget: int, known: list[WhatIf]) -> WhatIf:
    """The cheapest combination found by taking, then dropping, one policy at a time."""
    steps = len(policies) * len(policies) * len(trial.requests)
    best = max(known, key=lambda row: row.saving_equivalents)
    if steps > budget:
        note = f"not searched: {steps:,} replayed requests are over the budget of {budget:,}; best single row shown"
        return _named(best, note)
    chosen = [policy for policy in policies if policy.name in best.policies]
    improved = True
    while improved:
        improved = False
        for policy in policies:
            trial_set = [p for p in policies if (p in chosen) != (p is policy)]
            row = run(trial, trial_set, "cheapest")
            if row.saving_equivalents > best.saving_equivalents:
                best, chosen, improved = row, trial_set, True
    return _named(best, "found by adding and dropping one policy at a time")


def _named(row: WhatIf, note: str) -> WhatIf:
    return replace(row, policy="cheapest", note=note)


def _attribute(trial: Trial, policy: Policy, row: WhatIf, fixed: list[Audited]) -> None:
    """Share a policy's saving out over the diagnoses it is the remedy of, side effects included; sums are exact."""
    direct = [_direct(trial, row, audited) for audited in fixed]
    whole = sum((bill.equivalents for bill in direct), Decimal(0))
    shared_equivalents, shared_usd = Decimal(0), Decimal(0)
    for position, (audited, bill) in enumerate(zip(fixed, direct, strict=True)):
        diagnosis = audited.diagnosis
        assert diagnosis is not None
        diagnosis.policy = policy.name
        last = position == len(fixed) - 1
        part = bill.equivalents / whole if whole > 0 else Decimal(1) / len(fixed)
        share = row.saving_equivalents * part
        diagnosis.avoidable_equivalents = (
            row.saving_equivalents - shared_equivalents if last else share.quantize(Decimal("0.1"))
        )
        shared_equivalents += diagnosis.avoidable_equivalents
        if row.saving_usd is not None:
            usd = row.saving_usd - shared_usd if last else (row.saving_usd * part).quantize(Decimal("0.000001"))
            shared_usd += usd
            diagnosis.avoidable_usd = usd


def _direct(trial: Trial, row: WhatIf, audited: Audited) -> Bill:
    bill = row.by_call.get(audited.index)
    return Bill() if bill is None else trial.money.recorded(audited) - bill
