"""What numbers alone establish, where no body was recorded.

Usage and times rule causes out and leave others open; they cannot show a change of text. A finding here is `likely`
where idle time suffices and `possible` otherwise, and it never claims avoidable money.
"""

from collections import defaultdict
from itertools import islice
from typing import TypeAlias

from auditor.context import seconds
from auditor.history import REACH
from auditor.lifetimes import tier_changed
from auditor.records import Audited, Cause, Diagnosis, Finding, Verdict
from auditor.threads import Thread, before_of, continued, endpoint, kept_for_an_hour, latest_use, total_of, writer_of
from auditor.transcript import CUT_TOKENS, MARGIN_S, Told, compacted, refined
from localmodel.rules.types import Rules
from traces.facts import facts_of

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


_ANSWERS = {
    "complete": '; a stream reports usage where it is asked for ("stream_options": {"include_usage": true})',
    "error": "; the stream ended in an error",
}


_Agent: TypeAlias = tuple[str, str, str, str, str]
"""Trace, agent, provider, host, speed."""


class UsageOnly:
    """Diagnoses calls without bodies in time order; one instance per trace set."""

    def __init__(self) -> None:
        self._threads: dict[tuple[_Agent, str], Thread] = {}
        self._latest: dict[_Agent, Audited] = {}
        self._known: dict[str, tuple[Audited, Thread]] = {}

    def take(self, audited: Audited, rules: Rules | None) -> None:
        """Set the verdict and diagnosis of one call and remember it; `rules` are `None` where none are known for it."""
        call, usage = audited.call, audited.call.usage
        facts = facts_of(call)
        if "beside" in facts:
            audited.note = f"{facts['beside']} within another call, charged beside it: its prompt is not known"
            return
        agent = (call.trace, call.agent, call.provider, call.host or "", facts.get("speed") or "")
        found = continued(audited, self._known) if "previous" in facts else None
        thread = found.thread if found and found.thread else self._thread(agent, call.model or "")
        if usage.read_tokens is None or usage.input_tokens is None:
            audited.verdict = "unknown"
            missing = "usage" if usage.input_tokens is None else "cached tokens"
            ended = _ANSWERS.get(facts.get("answer", ""), "")
            audited.note = f"{missing} not reported: neither a hit nor a miss{ended}"
        elif not call.failed:
            before = found.before if found else before_of(audited, thread)
            self._judge(audited, before, thread, rules, found.told if found else Told())
            latest = found.latest if found else None if thread.calls else self._latest.get(agent)
            if before is None and audited.diagnosis is None and latest is not None:
                _other_model(audited, latest, rules)
        if usage.input_tokens is not None and not call.failed:
            thread.add(audited)
            self._latest[agent] = audited
            if "previous" in facts:
                self._known[call.id] = (audited, thread)

    def _thread(self, agent: _Agent, model: str) -> Thread:
        """The thread of one agent's calls under one model."""
        thread = self._threads.get((agent, model))
        if thread is None:
            thread = self._threads[agent, model] = Thread()
        return thread

    def _judge(self, audited: Audited, before: Audited | None, thread: Thread, rules: Rules | None, what: Told) -> None:
        read, write = audited.call.usage.read_tokens or 0, audited.call.usage.write_tokens
        audited.previous = before.index if before else None
        lost = 0 if before is None else _lost(audited, before, read, rules)
        summary = None if before is None else compacted(audited, before, what)
        if before is not None and lost is None and read == 0:
            why = f"0 read, and what {_row(before)} left cached is not known; bodies were not recorded"
            audited.verdict, audited.diagnosis = "miss", Diagnosis(Finding("unknown", "possible", [why]))
        elif summary is not None:
            audited.diagnosis = summary
        elif before is not None and lost:
            by_numbers = self._diagnose(audited, before, thread, rules, lost)
            audited.diagnosis = refined(by_numbers, audited, before, what)
        if audited.verdict != "miss":
            audited.verdict = _verdict(audited, read, write)
        if before is not None:
            growth = total_of(audited) - total_of(before)
            if growth > 0:
                thread.grew(growth)

    def _diagnose(self, audited: Audited, before: Audited, thread: Thread, rules: Rules | None, lost: int) -> Diagnosis:
        read = audited.call.usage.read_tokens or 0
        gap = None if audited.call.started_at is None else (audited.at - before.at).total_seconds()
        if rules is None:
            return _without_rules(before, gap, lost)
        user = latest_use(before, thread, audited)
        if user is not before and gap is not None:
            gap = (audited.at - user.at).total_seconds()
        ranged = _ranged(user, rules, gap, lost)
        if ranged is not None:
            return ranged
        ttl, tier = _lifetime(writer_of(user, thread), rules)
        evidence: list[str] = []
        expired: Diagnosis | None = None
        if gap is not None and gap >= ttl:
            expired = _expiry(audited, user, gap, ttl, tier, lost, rules)
            if rules.ttl_sure_s:
                return expired
            earlier = islice((c for c in reversed(thread.calls) if c.at < user.at), REACH)
            shortened = tier_changed(earlier, user, gap, rules.ttl_s["1h"])
            expired.also += [] if shortened is None else [shortened]
            hour = rules.ttl_s["1h"]
            standing = kept_for_an_hour(user, thread) if gap < hour else 0
            if standing <= read:
                return expired
            ttl, lost = hour, min(lost, standing - read)
            expired.primary.lost_tokens -= lost
            evidence.append(f"{standing:,} tokens had been written for an hour and were read since: idle time cannot "
                            "have ended them")  # fmt: skip
        ruled_out = _not_expired(gap, user, ttl, rules)
        self._growth(audited, before, thread, evidence, read)
        candidates = _EVERYTHING if expired is None else (*_EVERYTHING, "beyond_lookback")
        if read:
            candidates = self._boundary(audited, before, thread, evidence, read, ruled_out)
        else:
            evidence.insert(0, "0 read: the change lies in front of the first boundary, or the entries were gone")
        cut = (endpoint(before) or 0) - total_of(audited)
        if cut >= CUT_TOKENS:
            candidates = (*candidates, "compaction")
            evidence.append(
                f"input shrank by {cut:,}: history was cut, cleared or summarised, which moves what follows"
            )
        elif cut > 0:
            evidence.append(
                f"input shrank by {cut:,}: something of the history was left out, as old reasoning often is"
            )
        if not rules.guaranteed:
            evidence.append("hits are best effort there: an entry may go unfound although the prompt repeats")
        evidence.append("bodies were not recorded, so the change itself cannot be shown")
        gone = _may_be_gone(gap, rules)
        if gap is not None and not ruled_out and not gone:
            candidates = ("ttl_expired", *candidates)
        also = [Finding(cause, "possible", ["the numbers allow it"]) for cause in candidates]
        also[0:0] = gone
        found = Diagnosis(Finding("unknown", "possible", evidence, lost), also, ruled_out, reference=before.index)
        return found if expired is None else _partly(expired, found)

    def _growth(self, audited: Audited, before: Audited, thread: Thread, evidence: list[str], read: int) -> None:
        usual, growth = thread.usual_growth, total_of(audited) - total_of(before)
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
        implied = total_of(thread.calls[0]) - usual
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
    end, total, read = endpoint(latest), total_of(audited), audited.call.usage.read_tokens
    if audited.call.started_at is None or latest.call.started_at is None:
        return  # without times no order is known
    if read or not end or not audited.call.model or not latest.call.model or total < CONTINUES * end:
        return
    evidence = [
        f"model {latest.call.model} in {_row(latest)}, {audited.call.model} here; entries belong to one model",
        "that it goes on with the same conversation is taken from its size: bodies were not recorded",
    ]
    rule = None if rules is None else rules.values.get("invalidates_model")
    finding = Finding("model_changed", "likely", evidence, min(end, total), rule, parameter="model")
    audited.verdict, audited.diagnosis = "miss", Diagnosis(finding, reference=latest.index)


def _verdict(audited: Audited, read: int, write: int | None) -> Verdict:
    if audited.diagnosis is not None and audited.diagnosis.lost_tokens:
        return "partial_miss" if read else "miss"
    if read:
        return "hit"
    return "not_engaged" if write == 0 and audited.writes else "cold_write"


def _lost(audited: Audited, before: Audited, read: int, rules: Rules | None) -> int | None:
    """Tokens that `before` left readable and this call did not read; `None` where that is unknown.

    Less than what the provider rounds its hits down to (`rounding_tokens`, `ROUNDING_TOKENS` at least) is no loss.
    """
    end = endpoint(before)
    if end is None:
        return None
    if total_of(audited) < CONTINUES * end:
        return 0
    lost = min(end, total_of(audited)) - read
    tolerated = 0 if rules is None else rules.rounding
    if audited.call.usage.write_tokens is None or not audited.writes:
        tolerated = max(tolerated, ROUNDING_TOKENS)
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


def _partly(expired: Diagnosis, rest: Diagnosis) -> Diagnosis:
    """Of what was lost idle time explains one share and leaves another open: the larger comes first."""
    if not expired.primary.lost_tokens:
        return rest
    if expired.primary.lost_tokens >= rest.lost_tokens:
        expired.also.insert(0, rest.primary)
        return expired
    rest.also[0:0] = [expired.primary, *expired.also]
    rest.ruled_out = [one for one in rest.ruled_out if one.cause != "ttl_expired"]
    return rest


def _not_expired(gap: float | None, before: Audited, ttl: int, rules: Rules) -> list[Finding]:
    if rules.evicts:
        return [Finding("ttl_expired", "ruled_out", ["entries have no lifetime there"])]
    ttl = rules.sure_s(rules.default_ttl) if rules.ttl_sure_s else ttl
    doubt = MARGIN_S if facts_of(before.call).get("times") == "rows" else 0
    if gap is None or gap + doubt >= ttl:
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
