"""Where to put cache markers, and what the next request will read, both from the same rules.

At most four: the end of the static head, the newest end, the end of the request before where the lookback from the
newest end would lose it, and an endpoint shared with other agents. `Forecast` folds `localmodel.rules.step` over the
session's own calls; its entries' tokens are exact, because read + write of a call is the count at its last marker.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import add
from threading import Lock
from typing import NamedTuple

from harness.wire import Marks
from localmodel.rules.render import rendered
from localmodel.rules.step import DatedRules, alive, positions, readable, step
from localmodel.rules.types import CacheState, Entry, Outcome, Rules
from traces.canonical import Interner, canonical, platform_of
from traces.schema import Call, Level, Mark, Prompt, Ttl
from traces.tokens import Meter, estimate


@dataclass(frozen=True, slots=True)
class Planned:
    """Markers for one request, and what the rules say it will read, `None` where they are silent.

    `error_tokens`: by how much that count can be off; 0 where it rests on billed boundaries. `skipped` says in words
    which markers were left out, and why.
    """

    marks: Marks
    read_tokens: int | None
    error_tokens: int | None
    skipped: tuple[str, ...] = ()


def plan(
    prompt: Prompt, rules: Rules, written: Callable[[int], bool], *, common: Sequence[int] = (), ttl: Ttl = "5m"
) -> tuple[list[Mark], list[str]]:
    """Markers for `prompt` (its `ends` filled), and remarks on those left out.

    `written(index)` tells whether a live entry ends at block `index`; `common` are the last blocks of what other agents
    will send too.
    """
    wanted, skipped = _wanted(prompt, rules, written, common), []
    marks = []
    for index in sorted(wanted):
        if prompt.ends[index] + prompt.error_at(index) < rules.min_tokens:
            size = f"about {prompt.ends[index]} tokens, the minimum is {rules.min_tokens}"
            skipped.append(f"no marker at {prompt.paths[index]}: below minimum ({size})")
        else:
            marks.append(Mark(index, ttl))
    return marks, skipped


def _wanted(prompt: Prompt, rules: Rules, written: Callable[[int], bool], common: Sequence[int]) -> set[int]:
    """Blocks to mark; the most valuable first where the provider allows fewer than there are reasons for."""
    last = _markable(prompt, rules, len(prompt.blocks) - 1)
    if last is None:
        return set()
    ordered = [last]
    ordered += [place for index in common if (place := _markable(prompt, rules, index)) is not None]
    before = next((index for index in range(last, -1, -1) if written(index)), None)
    if before is not None and positions(prompt, last, before, rules) > rules.lookback:
        ordered.append(before)
    head = next((index for index in range(last, -1, -1) if prompt.blocks[index].level < Level.MESSAGES), None)
    if head is not None:
        ordered.append(head)
    return set(list(dict.fromkeys(ordered))[: rules.max_breakpoints])


def _markable(prompt: Prompt, rules: Rules, start: int) -> int | None:
    return next((i for i in range(start, -1, -1) if prompt.blocks[i].kind not in rules.cannot_mark), None)


ALIKE = 2
"""Reads of answers of one kind that have to show the same before the next is said to be exact."""


class _Answered(NamedTuple):
    """An answer at the end of a prefix: kinds of its blocks, tokens billed for its request and for itself."""

    kinds: tuple[str, ...]
    sent: int
    output: int


@dataclass(slots=True)
class Forecast:
    """The provider's cache as the rules see it, moved on by every call of a session."""

    ruleset: DatedRules
    state: CacheState = field(default_factory=CacheState)
    _lock: Lock = field(default_factory=Lock)  # sub-agents send at the same time
    _meter: Meter = field(default_factory=Meter)
    _interner: Interner = field(default_factory=lambda: Interner(estimate))
    _begun: dict[str, int] = field(default_factory=dict)
    """Calls under way -> the last block that each one read."""

    _scale: float | None = None
    """Tokens that the provider billed for one that was estimated, in the first call."""

    _answers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Identity of a request -> tokens billed for it and for its answer."""

    _beyond: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """Kinds of an answer's blocks -> tokens that each read of such an answer showed beyond what was billed for it."""

    def rules(self, call: Call, at: datetime) -> Rules:
        """The rules in force at `at` for the model of `call`."""
        return self.ruleset.at(call.model or "", platform_of(call.host, call.provider), at)

    def plan(self, call: Call, at: datetime, *, common: Sequence[int] = (), ttl: Ttl = "5m") -> Planned:
        """Markers for the unmarked request of `call` if sent at `at`; nothing for APIs that the rules do not cover.

        `common` are indexes of blocks: the last ones shared with other agents.
        """
        with self._lock:
            return self._plan(call, at, common, ttl)

    def _plan(self, call: Call, at: datetime, common: Sequence[int], ttl: Ttl) -> Planned:
        prompt = self._prompt(call, at)
        if prompt is None:
            return Planned({}, None, None)
        rules = self.ruleset.at(prompt.model, prompt.platform, at)
        marks: list[Mark] = []
        skipped: list[str] = []
        if rules.boundaries == "markers":
            marks, skipped = plan(prompt, rules, self._written(prompt, rules, at), common=common, ttl=ttl)
        planned = replace(prompt, marks=tuple(marks))
        read, error = self._read(planned, at)
        return Planned({prompt.paths[m.index]: m.ttl for m in marks}, read, error, tuple(skipped))

    def _written(self, prompt: Prompt, rules: Rules, at: datetime) -> Callable[[int], bool]:
        _, outcome = step(self.state, prompt, self.ruleset, at=at, first_token_at=None)

        def written(index: int) -> bool:
            key = (prompt.chain[index], outcome.salts[prompt.blocks[index].level])
            entry = self.state.entries.get(key)
            return entry is not None and alive(entry, at)

        return written

    def predict(self, call: Call, at: datetime) -> Planned:
        """What the request of `call`, marked as it is, will read."""
        with self._lock:
            prompt = self._prompt(call, at)
            return Planned({}, None, None) if prompt is None else Planned({}, *self._read(prompt, at))

    def _read(self, prompt: Prompt, at: datetime) -> tuple[int, int]:
        """What `prompt` will read and by how much that can be off."""
        outcome = self._step(prompt, at, None)[1]
        index, unit = outcome.read_index, _unit(outcome.rules)
        error = prompt.error_at(index) if index >= 0 else 0
        answered = self._answered(prompt, index) if error else None
        if index < 0:  # what seems too short to be cached may be long enough
            return 0, self._step(_longest(prompt), at, None)[1].read_tokens
        if answered is None:
            return outcome.read_tokens, error and error + unit - 1
        # What a model reads and writes is one row of tokens, so its answer ends where the bill does. Until answers of
        # its kind were read back alike, the provider may frame and round them, or keep no more than what was in front.
        seen = self._beyond.get(answered.kinds, [])
        low, high = (min(seen), max(seen)) if seen else (0, 0)
        ended = _ending(prompt, index, answered.sent + answered.output + (low + high) // 2)
        settled = len(seen) >= ALIKE and low == high
        unsure = max(high - low, outcome.rules.rounding, unit) + (0 if seen else answered.output)
        return self._step(ended, at, None)[1].read_tokens, 0 if settled else unsure

    def _answered(self, prompt: Prompt, index: int) -> "_Answered | None":
        """The answer of this session that the prefix up to `index` ends with: its end has no total of its own."""
        start = index
        while start >= 0 and prompt.blocks[start].role == "assistant":
            start -= 1
        billed = self._answers.get(prompt.chain[start]) if 0 <= start < index else None
        if billed is None:
            return None
        return _Answered(tuple(block.kind for block in prompt.blocks[start + 1 : index + 1]), *billed)

    def begin(self, call: Call) -> None:
        """The response of `call` begins: what it leaves can be read, though no bill says yet how much that is."""
        if call.started_at is None:
            return
        with self._lock:
            prompt = self._prompt(call, call.started_at)
            if prompt is not None:
                self.state, outcome = self._step(prompt, call.started_at, call.first_token_at)
                self._begun[call.id] = outcome.read_index

    def settle(self, call: Call) -> None:
        """Count a call that was answered: its entries exist now, its bill makes their boundaries exact."""
        if call.failed or call.started_at is None or call.usage.read_tokens is None:
            return
        with self._lock:
            self._settle(call, call.started_at)

    def _settle(self, call: Call, at: datetime) -> None:
        prompt = self._bare(call, at)
        if prompt is None:
            return
        prompt = self._meter.measure(prompt, call)
        if call.usage.input_tokens and self._scale is None:  # the first call is mostly head, as what is unsure later
            self._scale = call.usage.input_tokens / max(1, sum(block.weight for block in prompt.blocks))
        if self.ruleset.at(prompt.model, prompt.platform, at).boundaries != "markers" and call.usage.input_tokens:
            # No marker tells a boundary, but what was sent ends where the whole input does.
            self._meter.learn(prompt, len(prompt.blocks) - 1, call.usage.input_tokens)
            if call.usage.output_tokens is not None:
                self._answers[prompt.chain[-1]] = call.usage.input_tokens, call.usage.output_tokens
        self.state, outcome = self._step(prompt, at, call.first_token_at or call.ended_at)
        index = self._begun.pop(call.id, outcome.read_index)
        told = bool(call.usage.read_tokens) and _unit(outcome.rules) == 1
        if told and index >= 0 and prompt.error_at(index):
            self._learn(prompt, index, call.usage.read_tokens or 0)

    def _learn(self, prompt: Prompt, index: int, read: int) -> None:
        """A read shows where the prefix up to `index` ends, unless it shows that it is not read that far."""
        answered = self._answered(prompt, index)
        if answered is None or read > answered.sent:
            self._meter.learn(prompt, index, read)
        if answered is not None:
            beyond = read - answered.sent - answered.output
            self._beyond.setdefault(answered.kinds, []).append(beyond)

    def readable(self, call: Call, at: datetime) -> bool:
        """Whether an entry at the very end of the unmarked request of `call` can be read now."""
        with self._lock:
            prompt = self._prompt(call, at)
            if prompt is None:
                return False
            outcome = self._step(prompt, at, None)[1]
            entry = self.state.entries.get((prompt.chain[-1], outcome.salts[prompt.blocks[-1].level]))
            return entry is not None and readable(entry, at)

    def expires(self, call: Call, at: datetime) -> float | None:
        """Seconds until the entry that a call left expires; `None` where there is none alive."""
        entry = self.entry(call, at)
        return None if entry is None else entry.ttl_s - (at - entry.used_at).total_seconds()

    def entry(self, call: Call, at: datetime) -> Entry | None:
        """The live entry at the last marker of a call's request."""
        with self._lock:
            return self._entry(call, at)

    def _entry(self, call: Call, at: datetime) -> Entry | None:
        prompt = self._prompt(call, at)
        if prompt is None or not prompt.marks:
            return None
        outcome = self._step(prompt, at, None)[1]
        index = prompt.marks[-1].index
        entry = self.state.entries.get((prompt.chain[index], outcome.salts[prompt.blocks[index].level]))
        return entry if entry is not None and alive(entry, at) else None

    def _bare(self, call: Call, at: datetime) -> Prompt | None:
        """The prompt as the provider renders it, uncounted."""
        prompt = canonical(call, self._interner)
        if prompt is None or not prompt.blocks:
            return None
        rules = self.ruleset.at(prompt.model, prompt.platform, at)
        if (rules.boundaries == "markers") != (prompt.dialect == "messages"):
            return None  # these rules are about another API
        return rendered(prompt, rules)

    def _prompt(self, call: Call, at: datetime) -> Prompt | None:
        """The same, counted as well as is known before it is sent."""
        prompt = self._bare(call, at)
        return None if prompt is None else self._meter.recount(prompt, None, self._scale or 1.0)

    def _step(self, prompt: Prompt, at: datetime, first: datetime | None) -> tuple[CacheState, Outcome]:
        return step(self.state, prompt, self.ruleset, at=at, first_token_at=first)


def _unit(rules: Rules) -> int:
    """What the provider rounds its reads down to: 1 where a read tells the very end of what was read."""
    return max(1, rules.interval, rules.granularity)


def _longest(prompt: Prompt) -> Prompt:
    """`prompt` with each end as far off as it can be."""
    return replace(prompt, ends=array("q", map(add, prompt.ends, prompt.errors)) if prompt.errors else prompt.ends)


def _ending(prompt: Prompt, index: int, tokens: int) -> Prompt:
    """`prompt` with the end of block `index` at `tokens`; what is behind it moves along."""
    moved = tokens - prompt.ends[index]
    before = [min(end, tokens) for end in prompt.ends[:index]]
    return replace(prompt, ends=array("q", [*before, *(end + moved for end in prompt.ends[index:])]))
