"""An audit: calls in, verdicts and diagnoses out. The fold that everything else hangs on.

Each call is canonicalised and loses its body as it streams in; then, in time order, it is measured, predicted,
compared with its bill and, if tokens were lost, diagnosed (bodies of the two calls concerned are read again).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from auditor.context import BodyOf, Context
from auditor.cycles import no_cycles
from auditor.diagnose import diagnose
from auditor.gather import EVERY, Gathered, Progress, gather
from auditor.history import History
from auditor.labels import weigh
from auditor.records import Audit, Audited, Diagnosis, Finding, start_of
from auditor.replay import predict, readable_from, slack_of
from auditor.usage_only import UsageOnly
from localmodel.rules.book import Rulebook
from localmodel.rules.load import Ruleset
from localmodel.rules.types import CacheState, Outcome
from traces.canonical import platform_of
from traces.schema import Call, Prompt
from traces.tokens import Meter


def audit(
    calls: Iterable[Call],
    rules: Ruleset | Rulebook,
    body_of: BodyOf,
    *,
    progress: Progress | None = None,
) -> Audit:
    """Audit recorded calls, each under its own provider's rules, or all under one ruleset.

    `body_of` reads the request of a call again.
    """
    warnings: list[str] = []
    return judge(gather(calls, warnings.append), rules, body_of, warnings, progress=progress)


def judge(
    gathered: Iterable[Gathered],
    rules: Ruleset | Rulebook,
    body_of: BodyOf,
    warnings: list[str],
    *,
    progress: Progress | None = None,
) -> Audit:
    """The second half of an audit, while the first still runs. `warnings` is where the first half puts its own."""
    book = Rulebook(rules) if isinstance(rules, Ruleset) else rules
    with no_cycles():
        fold = _folded(gathered, book, body_of, progress)
    return Audit(book, fold.history.calls, warnings + _ungoverned(fold.ungoverned))


def _folded(gathered: Iterable[Gathered], book: Rulebook, body_of: BodyOf, progress: Progress | None) -> "Fold":
    """Calls in time order: judged as they come while they come in that order, else all anew once they are sorted."""
    kept: list[Gathered] = []
    fold: Fold | None = Fold(book, body_of)
    for call, prompt in gathered:
        if fold is not None and kept and start_of(call) < start_of(kept[-1][0]):
            fold = None
        kept.append((call, prompt))
        if fold is not None:
            fold.take(call, prompt)
        if progress is not None and len(kept) % EVERY == 0:
            progress("reading", len(kept), None)
    if fold is None:
        kept.sort(key=lambda one: start_of(one[0]))
        fold = Fold(book, body_of)
        for index, one in enumerate(kept):
            fold.take(*one)
            if progress is not None and index % EVERY == 0:
                progress("auditing", index, len(kept))
    fold.usage_only.finish()
    return fold


def _ungoverned(counts: Counter[str]) -> list[str]:
    """Providers without a ruleset: their calls are judged by their usage alone."""
    return [
        f"provider {provider!r}: {count:,} calls are judged by their usage alone, no rules of it are known; name some "
        "with --rules"
        for provider, count in counts.items()
    ]


@dataclass(slots=True)
class Fold:
    """What the calls so far have left behind, carried from call to call in time order."""

    book: Rulebook
    body_of: BodyOf
    state: CacheState = field(default_factory=CacheState)
    meter: Meter = field(default_factory=Meter)
    history: History = field(default_factory=History)
    usage_only: UsageOnly = field(default_factory=UsageOnly)
    ungoverned: Counter[str] = field(default_factory=Counter)

    def take(self, call: Call, prompt: Prompt | None) -> Audited:
        """Measure, predict and judge one call, then count it among the earlier ones."""
        ruleset = self.book.of(call.provider, call.model or "")
        prompt = prompt if ruleset is not None else None
        moment = None if call.clock == "relative" else call.started_at
        rules = None if ruleset is None else ruleset.at(call.model or "", platform_of(call.host, call.provider), moment)
        audited = Audited(len(self.history.calls), call, prompt, start_of(call), readable_from(call, rules))
        audited.writes = rules is None or rules.writes_reported
        before = self.state
        if ruleset is None:
            outcome = None
            self.ungoverned[call.provider] += 1
        elif prompt is None:
            outcome = None
        else:
            self.state, outcome = predict(before, audited, ruleset, self.meter)
        if call.failed:
            audited.note = f"failed with status {call.status}: not a cache result"
        elif outcome is None or audited.prompt is None:
            self.usage_only.take(audited, rules)
        else:
            self._diagnose(audited, audited.prompt, outcome, before)
        weigh(audited)
        self.history.add(audited)
        return audited

    def _diagnose(self, audited: Audited, prompt: Prompt, outcome: Outcome, before: CacheState) -> None:
        call, history = audited.call, self.history
        previous = history.previous(prompt, call.trace, call.agent, call.parent)
        audited.previous = None if previous is None else previous.index
        if call.usage.read_tokens is None:
            audited.note = "cached tokens not reported: neither a hit nor a miss"
            return
        read, slack = call.usage.read_tokens, max(slack_of(audited), outcome.rules.rounding)
        audited.diagnosis = diagnose(Context(audited, prompt, outcome, before, history, self.body_of, read, slack))
        _judge(audited, history)


def _judge(audited: Audited, history: History) -> None:
    """Verdict from the bill and the diagnosis; the first of a group that started together is told apart."""
    usage, diagnosis = audited.call.usage, audited.diagnosis
    read, write = usage.read_tokens or 0, usage.write_tokens or 0
    outcome = audited.outcome
    unseen = outcome is not None and outcome.style != "markers" and outcome.engaged == "yes"
    unseen = unseen and outcome is not None and (usage.write_tokens is None or not outcome.reports_writes)
    if not read and not write and not unseen:
        audited.verdict = "not_engaged"
    elif diagnosis is not None and diagnosis.lost_tokens:
        audited.verdict = "partial_miss" if read else "miss"
    else:
        audited.verdict = "hit" if read else "cold_write"
    if diagnosis is not None and diagnosis.primary.cause == "not_yet_readable" and diagnosis.reference is not None:
        _mark_leader(history.calls[diagnosis.reference], audited)


def _mark_leader(leader: Audited, follower: Audited) -> None:
    """The first of simultaneous calls lost nothing, but its entry is what the others could not read yet."""
    if leader.diagnosis is None:
        evidence = f"first of calls that started together: its own write was necessary, {follower.call.id} repeated it"
        leader.diagnosis = Diagnosis(Finding("not_yet_readable", "established", [evidence]))
