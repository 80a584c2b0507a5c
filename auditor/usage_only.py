"""What numbers alone establish, where no body was recorded.

Usage and times rule causes out and leave others open; they cannot show a change of text. A finding here is `likely`
where idle time suffices and `possible` otherwise, and it never claims avoidable money.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import islice

from auditor.context import seconds
from auditor.history import REACH
from auditor.lifetimes import tier_changed
from auditor.records import Audited, Cause, Diagnosis, Finding
from localmodel.rules.types import Rules

# Providers without a write class round their hits down to a unit; a shortfall below this is not called a loss.
ROUNDING_TOKENS = 1024
# Side calls and conversations that were cleared or summarised are smaller than this share of what stood cached before:
# what they did not read may never have been theirs.
CONTINUES = 0.5
# Rows that one sentence names.
MOST_NAMED = 100
_EVERYTHING: tuple[Cause, ...] = (
    *("tools_changed", "system_changed", "parameter_changed", "scope_changed", "provider_side", "evicted"),
)
_ANYTHING: tuple[Cause, ...] = (
    *("ttl_expired", "tools_changed", "system_changed", "history_rewritten", "provider_side"),
)
_MESSAGES: tuple[Cause, ...] = (
    *("history_rewritten", "parameter_changed", "beyond_lookback", "no_breakpoint", "provider_side"),
)
_INSIDE: tuple[Cause, ...] = ("history_rewritten", "beyond_lookback", "no_breakpoint", "provider_side")
# Where the provider places the boundaries itself (no class of writes), a partial hit may end anywhere.
_UNMARKED: tuple[Cause, ...] = (
    *("tools_changed", "system_changed", "history_rewritten", "parameter_changed", "provider_side"),
)


@dataclass(slots=True)
class Thread:
    """Earlier calls of one thread, and the regularities that later ones are held against.

    All is kept up to date call by call: looking through the calls again at each one would cost their square.

    left     calls with a start that left a prefix readable, or may have
    ends     calls by the tokens of the prefix that they left
    smallest the smallest full input
    growths  how often the input grew by how many tokens from call to call
    usual_growth  the growth that was seen most often, if it was seen twice
    extra    the first growth beyond the usual one at a complete miss: the call, and the tokens beyond
    floor    a read below every full input, in tokens
    """

    calls: list[Audited] = field(default_factory=list)
    left: list[Audited] = field(default_factory=list)
    ends: dict[int | None, list[Audited]] = field(default_factory=dict)
    smallest: int = 0
    growths: Counter[int] = field(default_factory=Counter)
    usual_growth: int | None = None
    extra: tuple[Audited, int] | None = None
    floor: int | None = None

    def add(self, audited: Audited) -> None:
        """Count a call among the earlier ones."""
        end, total = endpoint(audited), _total(audited)
        self.smallest = min(self.smallest, total) if self.calls else total
        self.calls.append(audited)
        self.ends.setdefault(end, []).append(audited)
        if end != 0 and audited.call.started_at is not None:
            self.left.append(audited)

    def grew(self, tokens: int) -> None:
        """Count a growth of the input; of growths seen equally often, the one that reached that first is usual."""
        self.growths[tokens] += 1
        if self.growths[tokens] > max(1, self.growths[self.usual_growth or 0]):
            self.usual_growth = tokens


def _total(call: Audited) -> int:
    return call.call.usage.input_tokens or 0


def endpoint(call: Audited) -> int | None:
    """Tokens up to the last boundary that the call left readable: read + write, or its input where writes are free."""
    usage = call.call.usage
    if usage.read_tokens is None:
        return None
    if usage.write_tokens is None or not call.writes:
        return usage.input_tokens
    return usage.read_tokens + usage.write_tokens


class UsageOnly:
    """Diagnoses calls without bodies in time order; one instance per trace set."""

    def __init__(self) -> None:
        self._threads: dict[tuple[str, ...], Thread] = {}
        self._latest: dict[tuple[str, ...], Audited] = {}

    def take(self, audited: Audited, rules: Rules | None) -> None:
        """Set the verdict and diagnosis of one call and remember it; `rules` are `None` where none are known for it."""
        call = audited.call
        key = (call.trace, call.agent, call.provider, call.host or "", call.model or "")
        thread, latest = self._threads.setdefault(key, Thread()), self._latest.get(key[:-1])
        usage = call.usage
        if usage.read_tokens is None or usage.input_tokens is None:
            audited.verdict = "unknown"
            missing = "usage" if usage.input_tokens is None else "cached tokens"
            audited.note = f"{missing} not reported: neither a hit nor a miss"
        elif not call.failed:
            self._judge(audited, thread, rules)
            if not thread.calls and audited.diagnosis is None and latest is not None:
                _other_model(audited, latest, rules)
        if usage.input_tokens is not None and not call.failed:
            thread.add(audited)
            self._latest[key[:-1]] = audited

    def _judge(self, audited: Audited, thread: Thread, rules: Rules | None) -> None:
        read, write = audited.call.usage.read_tokens or 0, audited.call.usage.write_tokens
        before = _before(audited, thread)
        audited.previous = before.index if before else None
        lost = 0 if before is None else _lost(audited, before, read)
        if before is not None and lost is None and read == 0:
            why = f"0 read, and what {_row(before)} left cached is not known; bodies were not recorded"
            audited.verdict, audited.diagnosis = "miss", Diagnosis(Finding("unknown", "possible", [why]))
        elif before is not None and lost:
            audited.verdict = "partial_miss" if read else "miss"
            audited.diagnosis = self._diagnose(audited, before, thread, rules, lost)
        elif read:
            audited.verdict = "hit"
        else:
            audited.verdict = "not_engaged" if write == 0 and audited.writes else "cold_write"
        if before is not None:
            growth = _total(audited) - _total(before)
            if growth > 0:
                thread.grew(growth)

    def _diagnose(self, audited: Audited, before: Audited, thread: Thread, rules: Rules | None, lost: int) -> Diagnosis:
        read = audited.call.usage.read_tokens or 0
        gap = None if audited.call.started_at is None else (audited.at - before.at).total_seconds()
        if rules is None:
            return _without_rules(before, gap, lost)
        ranged = _ranged(before, rules, gap, lost)
        if ranged is not None:
            return ranged
        ttl, tier = _lifetime(before, rules)
        evidence: list[str] = []
        if gap is not None and gap >= ttl:
            diagnosis = _expiry(audited, before, gap, ttl, tier, lost, rules)
            if rules.ttl_sure_s:
                return diagnosis
            earlier = islice((c for c in reversed(thread.calls) if c.at < before.at), REACH)
            shortened = tier_changed(earlier, before, gap, rules.ttl_s["1h"])
            diagnosis.also += [] if shortened is None else [shortened]
            return diagnosis
        ruled_out = _not_expired(gap, before, ttl, rules)
        self._growth(audited, before, thread, evidence, read)
        candidates = _EVERYTHING
        if read:
            candidates = self._boundary(audited, before, thread, evidence, read, ruled_out)
        else:
            evidence.insert(0, "0 read: the change lies in front of the first boundary, or the entries were gone")
        cut = (endpoint(before) or 0) - _total(audited)
        if cut > 0:
            candidates = (*candidates, "compaction")
            evidence.append(
                f"input shrank by {cut:,}: history was cut, cleared or summarised, which moves what follows"
            )
        evidence.append("bodies were not recorded, so the change itself cannot be shown")
        also = [Finding(cause, "possible", ["the numbers allow it"]) for cause in candidates]
        also += _may_be_gone(gap, rules)
        primary = Finding("unknown", "possible", evidence, lost)
        return Diagnosis(primary, also, ruled_out, reference=before.index)

    def _growth(self, audited: Audited, before: Audited, thread: Thread, evidence: list[str], read: int) -> None:
        usual, growth = thread.usual_growth, _total(audited) - _total(before)
        if usual is None or growth <= usual or read:
            return
        extra = growth - usual
        thread.extra = thread.extra or (audited, extra)
        evidence.append(
            f"input grew {growth:,} where rounds grow {usual:,}: an extra {extra:,} to find in tools, system, "
            "messages or configuration (totals cannot place it)"
        )

    def _boundary(
        self,
        audited: Audited,
        before: Audited,
        thread: Thread,
        evidence: list[str],
        read: int,
        ruled_out: list[Finding],
    ) -> tuple[Cause, ...]:
        """Where the hit ended, judged by the boundaries that earlier calls are known to have left."""
        older = next((c for c in reversed(thread.ends.get(read, [])) if c is not before), None)
        if older is not None:
            evidence.append(
                f"the full prefix of {_row(older)} ({read:,}) matches again: that older entry was still there; a "
                "temporary configuration change or a temporary history rewrite both explain it"
            )
            ruled_out.append(Finding("tools_changed", "ruled_out", ["a longer prefix than tools and system was read"]))
            return ("parameter_changed", "history_rewritten", "provider_side")
        smallest = thread.smallest
        if audited.call.usage.write_tokens is None or not audited.writes:
            evidence.append(f"the hit ends at {read:,}; boundaries of this provider are not known")
            return _UNMARKED
        if read < smallest and thread.calls[0].call.usage.read_tokens:
            evidence.append(
                f"the hit ends at {read:,}, below the smallest full input, {smallest:,}: at tools, system or an early "
                "message (the trace does not hold the conversation's start)"
            )
            return _MESSAGES
        if read < smallest:
            self._floor(thread, evidence, read, smallest)
            ruled_out.append(Finding("tools_changed", "ruled_out", [f"a prefix of {read:,} tokens was read"]))
            return _MESSAGES
        evidence.append(f"the hit ends at {read:,}, inside the messages")
        return _INSIDE

    def _floor(self, thread: Thread, evidence: list[str], read: int, smallest: int) -> None:
        again = " again" if thread.floor == read else ""
        thread.floor = read
        evidence.append(
            f"the hit of {read:,} stops{again} at the tools+system boundary: it is below the smallest full input, "
            f"{smallest:,}; only messages broke"
        )
        usual = thread.usual_growth
        if again or thread.extra is None or usual is None:
            return
        call, extra = thread.extra
        implied = _total(thread.calls[0]) - usual
        if read - extra == implied:
            evidence.append(
                f"that is {extra:,} above the {implied:,} that the rows before {_row(call)} imply; whether the "
                f"{extra:,} is in tools or system, and why messages missed, stays open"
            )

    def finish(self) -> None:
        """Add what only later calls show: whether the prefix of an unexplained miss was read in full afterwards."""
        for thread in self._threads.values():
            readers: defaultdict[int | None, list[Audited]] = defaultdict(list)
            for audited in reversed(thread.calls):
                if audited.call.usage.read_tokens == thread.floor:
                    _read_again(audited, readers[endpoint(audited)])
                readers[audited.call.usage.read_tokens].append(audited)


def _read_again(audited: Audited, readers: list[Audited]) -> None:
    """Say of an unexplained partial miss that later calls (the latest first) read its full prefix."""
    diagnosis = audited.diagnosis
    if not readers or diagnosis is None or diagnosis.primary.cause != "unknown" or not audited.call.usage.read_tokens:
        return
    diagnosis.primary.evidence.append(
        f"{_rows(readers)} read this row's full prefix: check history, configuration, and the lookback distance of "
        "the new blocks"
    )


def _other_model(audited: Audited, latest: Audited, rules: Rules | None) -> None:
    """Mark the first call of a conversation under another model: entries belong to one model."""
    end, total, read = endpoint(latest), _total(audited), audited.call.usage.read_tokens
    if read or not end or not audited.call.model or not latest.call.model or total < CONTINUES * end:
        return
    evidence = [
        f"model {latest.call.model} in {_row(latest)}, {audited.call.model} here; entries belong to one model",
        "that it goes on with the same conversation is taken from its size: bodies were not recorded",
    ]
    rule = None if rules is None else rules.values.get("invalidates_model")
    finding = Finding("model_changed", "likely", evidence, min(end, total), rule, parameter="model")
    audited.verdict, audited.diagnosis = "miss", Diagnosis(finding, reference=latest.index)


def _before(audited: Audited, thread: Thread) -> Audited | None:
    """The latest call of the thread that had ended when this one started (a sibling in flight is no predecessor).

    Calls that left nothing cached (side questions, refused prefixes) are passed over.
    """
    if audited.call.started_at is None:
        return None
    for call in reversed(thread.left):
        if (call.call.ended_at or call.at) <= audited.at and call.at < audited.at:
            return call
    return None


def _lost(audited: Audited, before: Audited, read: int) -> int | None:
    """Tokens that `before` left readable and this call did not read; `None` where that is unknown."""
    end = endpoint(before)
    if end is None:
        return None
    if _total(audited) < CONTINUES * end:
        return 0
    lost = min(end, _total(audited)) - read
    tolerated = ROUNDING_TOKENS if audited.call.usage.write_tokens is None or not audited.writes else 0
    return lost if lost > tolerated else 0


def _without_rules(before: Audited, gap: float | None, lost: int) -> Diagnosis:
    """A loss at a provider whose rules are not at hand: nothing can be excluded, not even expiry."""
    evidence = [f"no rules are known for provider {before.call.provider!r}, so no cause can be told from numbers"]
    if gap is not None:
        evidence.insert(0, f"{seconds(gap)} since {_row(before)} started")
    also = [Finding(cause, "possible", ["the numbers allow it"]) for cause in _ANYTHING]
    return Diagnosis(Finding("unknown", "possible", evidence, lost), also, reference=before.index)


def _ranged(before: Audited, rules: Rules, gap: float | None, lost: int) -> Diagnosis | None:
    """Where a lifetime is a range: whether the gap lies in the part of it in which an entry is probably gone."""
    ttl = rules.default_ttl
    if gap is None or not rules.ttl_sure_s or rules.evicts or gap < rules.likely_s(ttl) or gap >= rules.ttl_s[ttl]:
        return None
    evidence = [
        f"{seconds(gap)} since {_row(before)} started; entries live for at least {seconds(rules.sure_s(ttl))}, usually "
        f"up to {seconds(rules.likely_s(ttl))}, at most {seconds(rules.ttl_s[ttl])}",
        "a change of text cannot be excluded: bodies were not recorded",
    ]
    rule = rules.values.get(f"ttl_likely_seconds_{'short' if ttl == '5m' else 'long'}")
    facts: dict[str, int | str] = {"ttl_s": rules.sure_s(ttl), "gap_start_to_start_s": round(gap)}
    return Diagnosis(Finding("ttl_expired", "likely", evidence, lost, rule, facts=facts), reference=before.index)


def _may_be_gone(gap: float | None, rules: Rules) -> list[Finding]:
    """The chance that an entry is gone although its longest lifetime is not over."""
    sure = rules.sure_s(rules.default_ttl)
    if gap is None or not rules.ttl_sure_s or rules.evicts or gap < sure:
        return []
    return [Finding("ttl_expired", "possible", [f"{seconds(gap)}: entries are sure to live for {seconds(sure)} only"])]


def _lifetime(before: Audited, rules: Rules) -> tuple[int, str]:
    if rules.ttl_sure_s:
        return rules.ttl_s[rules.default_ttl], "the longest lifetime that is documented"
    usage = before.call.usage
    if usage.write_1h_tokens and not usage.write_5m_tokens:
        return rules.ttl_s["1h"], "1h writes"
    return rules.ttl_s["5m"], "5m writes" if usage.write_5m_tokens else "lifetime not recorded, 5m taken"


def _expiry(audited: Audited, before: Audited, gap: float, ttl: int, tier: str, lost: int, rules: Rules) -> Diagnosis:
    evidence = [f"{seconds(gap)} since {_row(before)} started ({tier}): with a start-based {ttl} s lifetime and no "
                "other refresh, expiry suffices"]  # fmt: skip
    if before.call.ended_at is not None:
        quiet = (audited.at - before.call.ended_at).total_seconds()
        evidence.append(f"{seconds(quiet)} since it ended: measured from the end, it would not show")
    evidence.append("a change of text cannot be excluded: bodies were not recorded")
    rule = rules.lifetime("1h" if ttl == rules.ttl_s["1h"] else "5m")
    facts: dict[str, int | str] = {"ttl_s": ttl, "gap_start_to_start_s": round(gap)}
    return Diagnosis(Finding("ttl_expired", "likely", evidence, lost, rule, facts=facts), reference=before.index)


def _not_expired(gap: float | None, before: Audited, ttl: int, rules: Rules) -> list[Finding]:
    if rules.evicts:
        return [Finding("ttl_expired", "ruled_out", ["entries have no lifetime there"])]
    ttl = rules.sure_s(rules.default_ttl) if rules.ttl_sure_s else ttl
    if gap is None or gap >= ttl:
        return []
    why = f"only {seconds(gap)} after the start of {_row(before)}, lifetime {ttl} s: expiry alone is ruled out"
    return [Finding("ttl_expired", "ruled_out", [why])]


def _row(call: Audited) -> str:
    return f"row {call.call.seq}"


def _rows(calls: list[Audited]) -> str:
    """Numbers of calls that are given the latest first; of very many only some: each miss would name them again."""
    numbers = [call.call.seq for call in reversed(calls[-MOST_NAMED:])]
    more = f" and {len(calls) - MOST_NAMED:,} more" if len(calls) > MOST_NAMED else ""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"rows {numbers[0]}-{numbers[-1]}{more}"
    return ("rows " if len(numbers) > 1 else "row ") + ", ".join(map(str, numbers)) + more
