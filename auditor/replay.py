"""Replay: fold the rules over recorded calls in time order and compare what they predict with what was billed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from auditor.records import Audited, start_of
from auditor.rewrite import with_lifetime
from localmodel.rules.automatic import has_handle
from localmodel.rules.book import Rulebook
from localmodel.rules.load import Ruleset
from localmodel.rules.render import rendered
from localmodel.rules.step import Plan, bill, plan_of, send, step
from localmodel.rules.types import CacheState, Entry, EntryKey, Outcome, Rules
from traces.schema import Call, Prompt, Ttl, Usage
from traces.tokens import Meter

# Where token counts are not recorded, framing tokens move a boundary by a few; less than this is no disagreement.
SLACK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a (possibly rewritten) trace. `call` is the index of the audited call, `None` for an added one."""

    prompt: Prompt
    at: datetime
    readable_at: datetime
    call: int | None


Charge: TypeAlias = tuple[int, int, int, int]
"""Predicted (read, 5m write, 1h write, uncached) tokens of one request."""


class Simulator:
    """Folds the rules over rewritten traces. Plans of requests that stay as recorded are made once and kept."""

    def __init__(self, book: Rulebook, recorded: Iterable[Sent]) -> None:
        self._book = book
        self._plans = {id(one.prompt): (one.prompt, self._plan(one)) for one in recorded}

    def _plan(self, one: Sent) -> Plan:
        rules = self._book.rules(one.prompt.provider, one.prompt.model, one.prompt.platform, one.at)
        assert rules is not None  # a prompt without rules is never replayed
        return plan_of(one.prompt, rules)

    def run(self, sent: Iterable[Sent]) -> Iterator[tuple[Sent, Charge]]:
        """Predicted charges of requests in order of their start."""
        entries: dict[EntryKey, Entry] = {}
        for one in sorted(sent, key=lambda one: one.at):
            known = self._plans.get(id(one.prompt))
            plan = known[1] if known is not None else self._plan(one)
            hit, updates = send(entries.get, plan, one.at, one.readable_at)
            entries.update(updates)
            yield one, bill(plan, hit)


def readable_from(call: Call, rules: Rules | None) -> datetime:
    """When entries written by `call` become readable: first token, else end, else a fallback after the start.

    At some providers only the end of the response counts.
    """
    row = None if rules is None else rules.values.get("readable_after")
    known = call.ended_at if row is not None and row.value == "response_ends" else call.first_token_at
    return (
        known
        or call.ended_at
        or call.first_token_at
        or later(start_of(call), rules.readable_fallback_s if rules else 0)
    )


def later(moment: datetime, by: timedelta | float) -> datetime:
    """`moment` + `by` (seconds where it is a number); a recorded moment at the very end of the calendar stays there."""
    try:
        return moment + (by if isinstance(by, timedelta) else timedelta(seconds=by))
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def predict(state: CacheState, audited: Audited, ruleset: Ruleset, meter: Meter) -> tuple[CacheState, Outcome | None]:
    """Measure and step one call; fills `prompt`, `outcome` and `agrees`. Failed and count calls leave no trace.

    Where the hit ends at a boundary whose tokens were only estimated, the billed read tells its exact count: it is
    learnt and the step is repeated, which `step` being pure allows.
    """
    call, prompt = audited.call, audited.prompt
    undated = call.started_at is None or call.clock == "relative"
    if prompt is None or not prompt.blocks or call.failed or call.kind == "count" or undated:
        return state, None
    rules = ruleset.at(prompt.model, prompt.platform, audited.at)
    prompt = meter.measure(as_billed(rendered(prompt, rules), call.usage, rules), call)
    if has_handle(prompt) and call.usage.read_tokens:
        meter.learn(prompt, 0, call.usage.read_tokens)  # the body names what it holds, the bill says how much that is
        prompt = meter.recount(prompt, call.usage.input_tokens)
    if rules.boundaries != "markers" and call.usage.input_tokens:
        # Nothing marks a boundary there, but the next prompt goes on where this one ended.
        meter.learn(prompt, len(prompt.blocks) - 1, call.usage.input_tokens)
    after, outcome = step(state, prompt, ruleset, at=audited.at, first_token_at=audited.readable_at)
    boundary = _revealed(prompt, outcome, call.usage.read_tokens)
    if boundary is not None and call.usage.read_tokens:
        meter.learn(prompt, boundary, call.usage.read_tokens)
        prompt = meter.recount(prompt, call.usage.input_tokens)
        after, outcome = step(state, prompt, ruleset, at=audited.at, first_token_at=audited.readable_at)
    audited.prompt, audited.outcome = prompt, outcome
    audited.agrees = agreement(audited)
    return (state if idle(call, outcome) else after), outcome


def as_billed(prompt: Prompt, usage: Usage, rules: Rules) -> Prompt:
    """`prompt` with the lifetime that its writes were billed at, where all its markers ask for the other one.

    A gateway or a header may set the lifetime behind the recorder's back; what was billed is what the entries live by.
    Server tools write for five minutes whatever is asked, so their prompts are left alone.
    """
    asked = {mark.ttl for mark in prompt.marks} | ({prompt.automatic} if prompt.automatic else set())
    ttl: Ttl = "1h" if usage.write_1h_tokens else "5m"
    if len(asked) != 1 or ttl in asked or bool(usage.write_1h_tokens) == bool(usage.write_5m_tokens):
        return prompt
    if any(block.kind in rules.implicit_kinds for block in prompt.blocks):
        return prompt
    return with_lifetime(prompt, ttl)


def idle(call: Call, outcome: Outcome | None) -> bool:
    """Whether the bill says that the cache took no part: then no entry was left, whatever the rules expected."""
    if outcome is not None and not outcome.reports_writes:
        return False  # a bill without a class of writes does not show them
    return call.usage.read_tokens == 0 and call.usage.write_tokens == 0


def _revealed(prompt: Prompt, outcome: Outcome, read: int | None) -> int | None:
    """The estimated boundary at which a billed read must have ended, `None` where there is none to learn."""
    if not read or outcome.style != "markers":
        return None
    if outcome.read_index >= 0:
        index = outcome.read_index
    else:  # an entry older than the trace: the last breakpoint in front of the tail is where it can have been
        earlier = [point.index for point in outcome.breakpoints[:-1]]
        index = earlier[-1] if earlier else -1
    if index < 0 or not prompt.error_at(index):
        return None
    floor = max((end for end, error in zip(prompt.ends[:index], prompt.errors, strict=False) if not error), default=0)
    exact_after = (end for end, error in zip(prompt.ends[index:], prompt.errors[index:], strict=True) if not error)
    return index if floor < read <= next(exact_after, read) else None


def slack_of(audited: Audited) -> int:
    """Tokens by which a prediction may miss the bill without contradicting it."""
    if audited.prompt is None or audited.outcome is None:
        return 0
    if not audited.prompt.errors:
        return 0
    index = audited.outcome.read_index
    rounding = audited.outcome.rules.rounding if audited.outcome.style != "markers" else 0
    return SLACK_TOKENS + rounding + (audited.prompt.error_at(index) if index >= 0 else 0)


def agreement(audited: Audited) -> bool | None:
    """Whether the bill is what the rules predict; `None` where usage is unknown or rests on unrecorded traffic."""
    usage, outcome = audited.call.usage, audited.outcome
    if outcome is None or usage.read_tokens is None:
        return None
    slack = slack_of(audited)
    if usage.read_tokens > outcome.read_tokens + slack and outcome.read_index < 0:
        return None
    most = outcome.read_tokens + slack + _inside_next(audited, outcome)
    read_fits = outcome.least_tokens - slack <= usage.read_tokens <= most
    write_fits = usage.write_tokens is None or abs(usage.write_tokens - outcome.write_tokens) <= slack
    return read_fits and write_fits


def _inside_next(audited: Audited, outcome: Outcome) -> int:
    """Tokens of the block behind the hit: a cache that compares tokens may find a part of it as well."""
    prompt, following = audited.prompt, outcome.read_index + 1
    if prompt is None or outcome.style not in ("every_block", "units") or following >= len(prompt.blocks):
        return 0
    return prompt.tokens_of(following)
