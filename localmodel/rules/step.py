"""The cache's semantics: one request against the entries that earlier requests left.

`step` is pure. The explicit-breakpoint matcher follows the Anthropic documentation ("Prompt caching"): look up from
each breakpoint backwards over a bounded number of positions, read the longest live entry, write at the breakpoints
beyond it, bill by the A/B/C rule. Every number it uses is rule data (`anthropic.toml`), none stands here.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol

from localmodel.rules.types import Breakpoint, CacheState, Engaged, Entry, EntryKey, Outcome, Rules
from traces.schema import Prompt, Ttl

_kind = attrgetter("kind")

Salts = tuple[bytes, bytes, bytes]


class DatedRules(Protocol):
    """What `step` asks of a ruleset: the rules in force for a model on a platform at a moment."""

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """Rules in force; `None` means the latest."""
        ...


Lookup = Callable[[EntryKey], Entry | None]
Updates = list[tuple[EntryKey, Entry]]


class Plan(NamedTuple):
    """What a request asks of the cache, apart from the moment: computed once, however often it is replayed.

    salts      key of each level, which the entry of a prefix ending there is kept under
    points     all breakpoints in prompt order; `eligible` those whose prefix reaches the minimum
    """

    prompt: Prompt
    rules: Rules
    salts: Salts
    points: tuple[Breakpoint, ...]
    eligible: tuple[Breakpoint, ...]
    rejected: tuple[str, ...]


def step(
    state: CacheState,
    prompt: Prompt,
    ruleset: DatedRules,
    *,
    at: datetime,
    first_token_at: datetime | None,
) -> tuple[CacheState, Outcome]:
    """Send `prompt` at `at` and return the entries afterwards and the predicted usage.

    `prompt.ends` must be filled. `first_token_at` is when the response began, from when on the entries written here
    can be read; `None` means the rule's fallback after `at`. Calls must come in order of `at`.
    """
    plan = plan_of(prompt, ruleset.at(prompt.model, prompt.platform, at))
    entries = state.entries
    hit, updates = send(entries.get, plan, at, first_token_at)
    for key, entry in updates:
        entries = entries.insert(key, entry)
    read, write_5m, write_1h, uncached = bill(plan, hit)
    eligible = plan.eligible
    engaged: Engaged = "yes" if eligible else ("below_minimum" if plan.points else "no_breakpoint")
    outcome = Outcome(
        read_tokens=read,
        write_5m_tokens=write_5m,
        write_1h_tokens=write_1h,
        uncached_tokens=uncached,
        read_index=hit,
        last_index=max(hit, eligible[-1].index if eligible else -1),
        breakpoints=plan.points,
        salts=plan.salts,
        engaged=engaged,
        rejected=plan.rejected,
        rules=plan.rules,
    )
    return CacheState(entries), outcome


def plan_of(prompt: Prompt, rules: Rules) -> Plan:
    """The part of a step that depends on the request alone."""
    points, rejected = breakpoints(prompt, rules)
    eligible = tuple(point for point in points if prompt.ends[point.index] >= rules.min_tokens)
    salts = salts_of(prompt.scope, prompt.model, prompt.params, rules)
    return Plan(prompt, rules, salts, tuple(points), eligible, rejected)


def send(lookup: Lookup, plan: Plan, at: datetime, first_token_at: datetime | None) -> tuple[int, Updates]:
    """Look up and write: (block at which the hit ends or -1, entries that the request leaves new or refreshed)."""
    hit = find_hit(lookup, plan, at)
    readable_at = first_token_at or at + timedelta(seconds=plan.rules.readable_fallback_s)
    return hit, _updates(lookup, plan, hit, at, readable_at)


@lru_cache(maxsize=4096)
def salts_of(scope: str, model: str, params: tuple[tuple[str, str], ...], rules: Rules) -> Salts:
    """Key of each level (tools, system, messages): scope, model, and the parameters that invalidate that level."""
    keys = []
    for level in range(3):
        named = [pair for pair in params if rules.invalidation.get(pair[0], 3) <= level]
        keys.append(blake2b(repr((scope, model, named)).encode(errors="replace"), digest_size=16).digest())
    return keys[0], keys[1], keys[2]


def breakpoints(prompt: Prompt, rules: Rules) -> tuple[list[Breakpoint], tuple[str, ...]]:
    """Breakpoints in prompt order, and why the provider would refuse the request (empty: it would not)."""
    kinds = prompt.blocks
    points = [_breakpoint(m.index, m.ttl) for m in prompt.marks if kinds[m.index].kind not in rules.cannot_mark]
    rejected: list[str] = []
    if prompt.automatic and rules.automatic:
        _add_automatic(prompt, rules, points, rejected)
    if len(points) > rules.max_breakpoints:
        rejected.append(f"{len(points)} breakpoints, {prompt.provider} allows {rules.max_breakpoints}")
    seen_short = False
    for point in points:
        if point.ttl == "1h" and seen_short:
            rejected.append("a 1h breakpoint follows a 5m one")
            break
        seen_short = seen_short or point.ttl == "5m"
    # Asked of all blocks at once: nearly no request has such a block, and every request is asked.
    if points and not rules.implicit_kinds.isdisjoint(map(_kind, kinds)):
        taken = {point.index for point in points}
        added = [i for i, block in enumerate(kinds) if block.kind in rules.implicit_kinds and i not in taken]
        points += [_breakpoint(index, rules.implicit_ttl, "implicit") for index in added]
        points.sort(key=lambda point: point.index)
    return points, tuple(rejected)


@lru_cache(maxsize=4096)
def _breakpoint(index: int, ttl: Ttl, origin: Literal["explicit", "automatic", "implicit"] = "explicit") -> Breakpoint:
    """One object for all breakpoints of a kind at an index: a long trace keeps those of each of its calls."""
    return Breakpoint(index, ttl, origin)


def _add_automatic(prompt: Prompt, rules: Rules, points: list[Breakpoint], rejected: list[str]) -> None:
    target = next((i for i in reversed(range(len(prompt.blocks))) if _markable(prompt, i, rules)), None)
    if target is None or prompt.automatic is None:
        return
    same = next((point for point in points if point.index == target), None)
    if same is not None:
        if same.ttl != prompt.automatic:
            rejected.append("the automatic breakpoint and the last block's own differ in TTL")
        return
    points.append(_breakpoint(target, prompt.automatic, "automatic"))


def _markable(prompt: Prompt, index: int, rules: Rules) -> bool:
    return prompt.blocks[index].kind not in rules.cannot_mark


def find_hit(lookup: Lookup, plan: Plan, at: datetime) -> int:
    """Block index of the longest live entry in reach of the breakpoints, -1 where there is none.

    Going from the last breakpoint backwards, the first entry found is the longest: an earlier breakpoint's window
    reaches beyond it only where the later one already looked.
    """
    chain, blocks, salts, rules = plan.prompt.chain, plan.prompt.blocks, plan.salts, plan.rules
    for point in reversed(plan.eligible):
        index, position = point.index, 1
        while True:
            block = blocks[index]
            entry = lookup((chain[index], salts[block.level]))
            if entry is not None and readable(entry, at):
                return index
            if index == 0:
                break
            index -= 1
            kind = blocks[index].kind
            position += not (kind == block.kind and kind in rules.collapse)
            if position > rules.lookback:
                break
    return -1


def positions(prompt: Prompt, start: int, end: int, rules: Rules) -> int:
    """Lookback position of block `end` seen from a breakpoint on block `start` >= `end` (which is position 1)."""
    count = 1
    for index in range(start - 1, end - 1, -1):
        kind = prompt.blocks[index].kind
        count += not (kind == prompt.blocks[index + 1].kind and kind in rules.collapse)
    return count


def alive(entry: Entry, at: datetime) -> bool:
    """Whether the entry's lifetime, counted from the start of the request that last used it, has not run out."""
    return (at - entry.used_at).total_seconds() < entry.ttl_s


def readable(entry: Entry, at: datetime) -> bool:
    """Whether the entry is alive and the response that wrote it had begun."""
    return entry.readable_at <= at and alive(entry, at)


def _updates(lookup: Lookup, plan: Plan, hit: int, at: datetime, readable_at: datetime) -> Updates:
    """Entries after the request: the one read and those at its breakpoints refreshed, missing ones written."""
    chain, blocks, salts, rules = plan.prompt.chain, plan.prompt.blocks, plan.salts, plan.rules
    updates: Updates = []
    if hit >= 0:
        key = (chain[hit], salts[blocks[hit].level])
        read = lookup(key)
        assert read is not None
        updates.append((key, _refreshed(read, at, read.readable_at)))
    for point in plan.eligible:
        if point.index == hit:
            continue
        key = (chain[point.index], salts[blocks[point.index].level])
        old = lookup(key)
        if old is None or not alive(old, at):
            updates.append((key, Entry(point.ttl, rules.ttl_s[point.ttl], at, at, readable_at)))
        elif rules.refresh_breakpoints:
            updates.append((key, _refreshed(old, at, min(old.readable_at, readable_at))))
    return updates


def _refreshed(entry: Entry, at: datetime, readable_at: datetime) -> Entry:
    return Entry(entry.ttl, entry.ttl_s, entry.written_at, at, readable_at)


def bill(plan: Plan, hit: int) -> tuple[int, int, int, int]:
    """(read, 5m write, 1h write, uncached) by the rule for mixed lifetimes.

    A is the hit, B the highest 1h breakpoint beyond it (or A), C the last breakpoint: A is read, B - A written for an
    hour, C - B for five minutes, the rest is plain input.
    """
    ends, eligible = plan.prompt.ends, plan.eligible
    read = top_of_hour = ends[hit] if hit >= 0 else 0
    for point in eligible:
        if point.ttl == "1h":
            top_of_hour = max(top_of_hour, ends[point.index])
    top = max(top_of_hour, ends[eligible[-1].index]) if eligible else top_of_hour
    return read, top - top_of_hour, top_of_hour - read, plan.prompt.total - top
