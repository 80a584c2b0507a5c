"""An audit: calls in, verdicts and diagnoses out. The fold that everything else hangs on.

Each call is canonicalised and loses its body as it streams in; then, in time order, it is measured, predicted,
compared with its bill and, if tokens were lost, diagnosed (bodies of the two calls concerned are read again).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from auditor.context import BodyOf, Context
from auditor.diagnose import diagnose
from auditor.gather import EVERY, Progress, gather, no_cycles
from auditor.history import History
from auditor.records import Audited, Diagnosis, Finding
from auditor.replay import predict, readable_from, slack_of, start_of
from auditor.usage_only import UsageOnly
from localmodel.rules.load import Ruleset
from localmodel.rules.types import CacheState, Outcome
from traces.schema import Call, Prompt
from traces.tokens import Meter
from traces.wire.anthropic import PROVIDERS


@dataclass(slots=True)
class Audit:
    """The result: calls in time order, and warnings about rows that were used without their body."""

    ruleset: Ruleset
    calls: list[Audited]
    warnings: list[str] = field(default_factory=list)


def audit(
    calls: Iterable[Call],
    ruleset: Ruleset,
    body_of: BodyOf,
    *,
    progress: Progress | None = None,
) -> Audit:
    """Audit recorded calls under a ruleset. `body_of` reads the request of a call again."""
    result = Audit(ruleset, [])
    with no_cycles():
        return _audited(calls, result, body_of, progress)


def _audited(calls: Iterable[Call], result: Audit, body_of: BodyOf, progress: Progress | None) -> Audit:
    gathered = gather(calls, result.warnings, progress)
    gathered.sort(key=lambda one: start_of(one[0]))
    result.warnings += _ungoverned(gathered, result.ruleset)
    fold = Fold(result.ruleset, body_of)
    for index, (call, prompt) in enumerate(gathered):
        result.calls.append(fold.take(index, call, prompt))
        if progress is not None and index % EVERY == 0:
            progress("auditing", index, len(gathered))
    fold.usage_only.finish()
    return result


def _governs(ruleset: Ruleset, call: Call) -> bool:
    """Whether the ruleset is about the provider of a call; others' calls are judged by their usage alone."""
    provider = call.provider.lower()
    return provider == ruleset.provider or (ruleset.provider == "anthropic" and provider in PROVIDERS)


def _ungoverned(gathered: list[tuple[Call, Prompt | None]], ruleset: Ruleset) -> list[str]:
    counts = Counter(call.provider for call, _ in gathered if not _governs(ruleset, call))
    return [
        f"provider {provider!r}: {count:,} calls are judged by their usage alone, the rules are those of "
        f"{ruleset.provider}; name others with --rules"
        for provider, count in counts.items()
    ]


@dataclass(slots=True)
class Fold:
    """What the calls so far have left behind, carried from call to call in time order."""

    ruleset: Ruleset
    body_of: BodyOf
    state: CacheState = field(default_factory=CacheState)
    meter: Meter = field(default_factory=Meter)
    history: History = field(default_factory=History)
    usage_only: UsageOnly = field(default_factory=UsageOnly)

    def take(self, index: int, call: Call, prompt: Prompt | None) -> Audited:
        """Measure, predict and judge one call, then count it among the earlier ones."""
        governed = _governs(self.ruleset, call)
        prompt = prompt if governed else None
        rules = self.ruleset.at(call.model or "", prompt.platform if prompt else "claude_api", call.started_at)
        audited = Audited(index, call, prompt, start_of(call), readable_from(call, rules.readable_fallback_s))
        before = self.state
        self.state, outcome = predict(before, audited, self.ruleset, self.meter)
        if call.failed:
            audited.note = f"failed with status {call.status}: not a cache result"
        elif outcome is None or audited.prompt is None:
            moment = None if call.clock == "relative" else call.started_at
            self.usage_only.take(audited, self.ruleset.at(call.model or "", "claude_api", moment) if governed else None)
        else:
            self._diagnose(audited, audited.prompt, outcome, before)
        self.history.add(audited)
        return audited

    def _diagnose(self, audited: Audited, prompt: Prompt, outcome: Outcome, before: CacheState) -> None:
        call, history = audited.call, self.history
        previous = history.previous(prompt, call.trace, call.agent, call.parent)
        audited.previous = None if previous is None else previous.index
        if call.usage.read_tokens is None:
            audited.note = "cached tokens not reported: neither a hit nor a miss"
            return
        read, slack = call.usage.read_tokens, slack_of(audited)
        audited.diagnosis = diagnose(Context(audited, prompt, outcome, before, history, self.body_of, read, slack))
        _judge(audited, history)


def _judge(audited: Audited, history: History) -> None:
    """Verdict from the bill and the diagnosis; the first of a group that started together is told apart."""
    usage, diagnosis = audited.call.usage, audited.diagnosis
    read, write = usage.read_tokens or 0, usage.write_tokens or 0
    if not read and not write:
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
