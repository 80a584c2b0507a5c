"""The built-in what-if policies: each the remedy of a cause, or an alternative way to send the same trace.

Each keeps what the model sees (up to where a definition stands), except where `quality_risk` says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple

from auditor.heads import stable_head
from auditor.placement import cheapest_placement
from auditor.records import Audited, Cause, Diagnosis
from auditor.replay import Sent, later
from auditor.rewrite import items_of, merged, rebuilt, with_lifetime, with_mark
from auditor.savings import WhatIf
from auditor.tails import stable_serialisation, undo_rewrites
from auditor.whatif import Policy, Trial
from localmodel.rules.types import REFRESH_AT
from traces.divergence import common_blocks
from traces.schema import Level, Prompt


@dataclass(frozen=True, slots=True)
class _Policy:
    """A policy made of its parts: the causes whose calls it is for (none: all calls), and whether a remedy or not."""

    name: str
    causes: frozenset[Cause]
    apply: Callable[[list[Sent], Trial, Policy], list[Sent]]
    quality_risk: str | None = None
    serialisation: bool | None = False
    parameter: str | None = None
    alternative: bool = False
    ways: Callable[[Trial, "_Policy", WhatIf], dict[str, Decimal]] | None = None

    @property
    def remedy(self) -> bool:
        """Whether it is the fix of some cause."""
        return not self.alternative

    def fixes(self, audited: Audited, diagnosis: Diagnosis) -> bool:
        """By the diagnosis' main cause; changes of serialisation only have a remedy of their own."""
        if diagnosis.primary.cause not in self.causes or not diagnosis.lost_tokens or audited.outcome is None:
            return False
        if self.parameter is not None and diagnosis.primary.parameter != self.parameter:
            return False
        form = diagnosis.first is not None and diagnosis.first.change == "serialisation"
        return self.serialisation is None or form is self.serialisation

    def rewrite(self, sent: list[Sent], trial: Trial) -> list[Sent]:
        """The requests as this policy would have sent them."""
        return self.apply(sent, trial, self)

    def paths(self, trial: Trial, row: WhatIf) -> dict[str, Decimal] | None:
        """What the calls concerned cost by what the model does, where that is open."""
        return None if self.ways is None else self.ways(trial, self, row)


def _by_call(sent: list[Sent]) -> dict[int, int]:
    return {one.call: position for position, one in enumerate(sent) if one.call is not None}


def _limit(audited: Audited) -> int:
    return audited.outcome.rules.max_breakpoints if audited.outcome is not None else 4


def _keep_alive(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Refresh an entry at 0.9 of its lifetime through the gaps that let it expire, where that costs less."""
    where, extra = _by_call(sent), []
    for audited in trial.diagnosed(policy):
        index = audited.diagnosis.reference if audited.diagnosis else None
        if index is None or index not in where or audited.index not in where or audited.outcome is None:
            continue
        assert audited.diagnosis is not None
        user, ttl_s = sent[where[index]], audited.diagnosis.primary.facts.get("ttl_s")
        if not isinstance(ttl_s, int):
            continue
        pings: list[Sent] = []
        until, every = sent[where[audited.index]].at, REFRESH_AT * ttl_s
        ping = max(later(user.at, every), user.readable_at)
        while ping < until and (not pings or later(pings[-1].at, ttl_s) <= until):
            pings.append(Sent(user.prompt, ping, ping, None))
            ping = later(ping, every)
            if not _worth(audited, len(pings), user.prompt):
                break  # before an idle year becomes 100,000 refreshes
        if _worth(audited, len(pings), user.prompt):
            extra += pings
    return sent + extra


def _worth(audited: Audited, pings: int, prompt: Prompt) -> bool:
    """Whether `pings` reads of the prompt cost less than the rewrite that they avoid."""
    assert audited.outcome is not None and audited.diagnosis is not None
    rates = audited.outcome.rules.rates
    return pings * prompt.total * rates.read < audited.diagnosis.lost_tokens * (rates.write_5m - rates.read)


def _keep_parameter(name: str) -> Callable[[list[Sent], Trial, Policy], list[Sent]]:
    def apply(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
        """Send a parameter as the conversation first had it."""
        usual = _usual(trial, policy, name)
        return [_with_parameter(one, name, usual.get(one.call)) if one.call in usual else one for one in sent]

    return apply


def _usual(trial: Trial, policy: Policy, name: str) -> dict[int | None, str | None]:
    """For each call of a conversation in which the parameter flips: the value of the conversation's first call."""
    flipped = {(a.call.trace, a.call.agent) for a in trial.diagnosed(policy)}
    first: dict[tuple[str, str], str | None] = {}
    wanted: dict[int | None, str | None] = {}
    for audited in trial.audit.calls:
        key = (audited.call.trace, audited.call.agent)
        if key in flipped and audited.prompt is not None:
            first.setdefault(key, dict(audited.prompt.params).get(name))
            wanted[audited.index] = first[key]
    return wanted


def _with_parameter(sent: Sent, name: str, value: str | None) -> Sent:
    params = {key: text for key, text in sent.prompt.params if key != name}
    if value is not None:
        params[name] = value
    return replace(sent, prompt=replace(sent.prompt, params=tuple(sorted(params.items()))))


def _forced_paths(trial: Trial, policy: _Policy, row: WhatIf) -> dict[str, Decimal]:
    """Equivalents of the calls concerned: forced as recorded, left to the model, and left but retried forced."""
    assert policy.parameter is not None
    fixed = trial.diagnosed(policy)
    forced = sum((trial.money.recorded(a).equivalents for a in fixed), Decimal(0))
    free = sum((row.by_call.get(a.index, trial.money.recorded(a)).equivalents for a in fixed), Decimal(0))
    retried = _retried(trial, policy, {a.index for a in fixed}, policy.parameter)
    return {"always_force": forced, "auto_complies": free, "auto_then_forced_retry": retried}


def _retried(trial: Trial, policy: Policy, fixed: set[int], name: str) -> Decimal:
    """Each forced call first tried with the usual value, then sent as it was once that response is there."""
    usual, tried = _usual(trial, policy, name), []
    for one in trial.requests:
        attempt = _with_parameter(one, name, usual.get(one.call)) if one.call in fixed else one
        if attempt.prompt.params == one.prompt.params:
            tried.append(one)
            continue
        tried.append(replace(attempt, call=None))
        tried.append(replace(one, at=one.readable_at, readable_at=later(one.readable_at, one.readable_at - one.at)))
    spent = Decimal(0)
    for one, charge in trial.simulator.run(tried):
        if one.call is None or one.call in fixed:
            spent += trial.money.predicted(one, charge).equivalents
    return spent


def _mark_previous_endpoint(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Mark, in the request that adds too many blocks, the place where the request before ended."""
    where, out = _by_call(sent), list(sent)
    for audited in trial.diagnosed(policy):
        pair = _pair(sent, where, audited)
        if pair is not None:
            _mark(out, pair.own, pair.shared, audited)
    return out


def _mark(out: list[Sent], position: int, block: int, audited: Audited) -> None:
    out[position] = replace(out[position], prompt=with_mark(out[position].prompt, block, _limit(audited)))


class _Pair(NamedTuple):
    """Positions of the request that tokens were lost from and of the one that lost them; the last block they share."""

    earlier: int
    own: int
    shared: int


def _pair(sent: list[Sent], where: dict[int, int], audited: Audited) -> _Pair | None:
    """A call with the call it lost tokens from, `None` where they share no block."""
    reference = audited.diagnosis.reference if audited.diagnosis else None
    if reference is None or reference not in where or audited.index not in where:
        return None
    earlier, own = where[reference], where[audited.index]
    count = common_blocks(sent[earlier].prompt, sent[own].prompt)
    return _Pair(earlier, own, count - 1) if count else None


def _merge_blocks(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Send runs of new text blocks as one block, here and wherever the same beginning is sent again."""
    where, runs = _by_call(sent), {}
    for audited in trial.diagnosed(policy):
        pair = _pair(sent, where, audited)
        if pair is not None:
            prompt = sent[pair.own].prompt
            for start, end in _text_runs(prompt, pair.shared + 1):
                runs[prompt.chain[end]] = (start, end)
    return [_merged_prompt(one, runs) for one in sent]


def _text_runs(prompt: Prompt, start: int) -> list[tuple[int, int]]:
    runs, begin = [], start
    for index in range(start, len(prompt.blocks) + 1):
        one = prompt.blocks[index] if index < len(prompt.blocks) else None
        first = prompt.blocks[begin] if begin < len(prompt.blocks) else None
        if one is None or first is None or one.kind != "text" or one.role != first.role or first.kind != "text":
            if index - begin > 1:
                runs.append((begin, index - 1))
            begin = index if one is not None and one.kind == "text" else index + 1
    return runs


def _merged_prompt(sent: Sent, runs: dict[bytes, tuple[int, int]]) -> Sent:
    found = [runs[link] for link in sent.prompt.chain if link in runs]
    if not found:
        return sent
    items, out, position = items_of(sent.prompt), [], 0
    for start, end in sorted(found):
        out += [*items[position:start], merged(items[start : end + 1])]
        position = end + 1
    return replace(sent, prompt=rebuilt(sent.prompt, [*out, *items[position:]]))


def _stagger(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Mark the common endpoint of calls that start together and let the others wait for the first response."""
    where, out = _by_call(sent), list(sent)
    for audited in trial.diagnosed(policy):
        pair = _pair(sent, where, audited)
        if pair is None:
            continue
        _mark(out, pair.earlier, pair.shared, audited)
        _mark(out, pair.own, pair.shared, audited)
        follower = out[pair.own]
        wait = max(timedelta(0), out[pair.earlier].readable_at - follower.at)
        out[pair.own] = replace(follower, at=follower.at + wait, readable_at=later(follower.readable_at, wait))
    return out


def _mark_common_end(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Mark the last block that both requests share, in the one that should write it and the one that should read it."""
    where, out = _by_call(sent), list(sent)
    for audited in trial.diagnosed(policy):
        pair = _pair(sent, where, audited)
        if pair is not None:
            _mark(out, pair.earlier, pair.shared, audited)
            _mark(out, pair.own, pair.shared, audited)
    return out


def _one_hour(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
    """Ask for one hour at every marker."""
    return [replace(one, prompt=with_lifetime(one.prompt, "1h")) for one in sent]


def _head(level: Level) -> Callable[[list[Sent], Trial, Policy], list[Sent]]:
    def apply(sent: list[Sent], trial: Trial, policy: Policy) -> list[Sent]:
        return stable_head(sent, trial, policy, level)

    return apply


def _only(*causes: Cause) -> frozenset[Cause]:
    return frozenset(causes)


_PARAMETER_RISKS = {
    "tool_choice": "without the forced call the model may not use the tool",
    "thinking": "the model thinks as in the calls before, not as asked here",
    "effort": "the model works at the effort of the calls before",
    "output_format": "the answer is not bound to the format",
}


def _parameter_policy(name: str) -> _Policy:
    return _Policy(
        name="keep_tool_choice_auto" if name == "tool_choice" else f"keep_{name}",
        causes=_only("parameter_changed"),
        apply=_keep_parameter(name),
        quality_risk=_PARAMETER_RISKS.get(name, f"{name} stays as in the calls before"),
        serialisation=None,
        parameter=name,
        ways=_forced_paths if name == "tool_choice" else None,
    )


_CONTENT = _only("tools_changed", "system_changed", "history_rewritten")

# Order matters where several are applied: content first, then parameters, markers, timing, and refreshes last.
POLICIES: tuple[_Policy, ...] = (
    _Policy("stable_serialisation", _CONTENT, stable_serialisation, serialisation=True),
    _Policy("stable_tools", _only("tools_changed"), _head(Level.TOOLS)),
    _Policy("move_volatile_text", _only("system_changed"), _head(Level.SYSTEM)),
    _Policy("undo_history_rewrite", _only("history_rewritten"), undo_rewrites),
    *(
        _parameter_policy(name)
        for name in ("tool_choice", "disable_parallel_tool_use", "thinking", "effort", "output_format", "speed")
    ),
    _Policy("merge_blocks", _only("beyond_lookback"), _merge_blocks, serialisation=None, alternative=True),
    _Policy("mark_previous_endpoint", _only("beyond_lookback"), _mark_previous_endpoint, serialisation=None),
    _Policy(
        "mark_common_endpoint", _only("no_breakpoint", "breakpoint_on_volatile"), _mark_common_end, serialisation=None
    ),
    _Policy("cheapest_placement", _only(), cheapest_placement, alternative=True),
    _Policy("shared_endpoint_stagger", _only("not_yet_readable"), _stagger, serialisation=None),
    _Policy("one_hour_ttl", _only(), _one_hour, alternative=True),
    _Policy("keep_alive", _only("ttl_expired"), _keep_alive, serialisation=None),
)
