"""The cache's semantics: one request against the entries that earlier requests left.

`step` is pure. The explicit-breakpoint matcher follows the Anthropic documentation ("Prompt caching"): look up from
each breakpoint backwards over a bounded number of positions, read the longest live entry, write at the breakpoints
beyond it, bill by the A/B/C rule. Every number it uses is rule data (`anthropic.toml`), none stands here.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from localmodel.rules.types import Breakpoint, CacheState, Engaged, Entry, Outcome, Rules
from traces.schema import Prompt

Salts = tuple[bytes, bytes, bytes]


class DatedRules(Protocol):
    """What `step` asks of a ruleset: the rules in force for a model on a platform at a moment."""

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """Rules in force; `None` means the latest."""
        ...


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
    rules = ruleset.at(prompt.model, prompt.platform, at)
    salts = salts_of(prompt.scope, prompt.model, prompt.params, rules)
    points, rejected = breakpoints(prompt, rules)
    eligible = [point for point in points if prompt.ends[point.index] >= rules.min_tokens]
    hit = find_hit(state, prompt, salts, eligible, rules, at)
    readable = first_token_at or at + timedelta(seconds=rules.readable_fallback_s)
    after = _after(state, prompt, salts, eligible, rules, hit, at, readable)
    return after, _bill(prompt, rules, salts, points, eligible, rejected, hit)


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
    points = [Breakpoint(m.index, m.ttl) for m in prompt.marks if kinds[m.index].kind not in rules.cannot_mark]
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
    if points and rules.implicit_kinds:
        taken = {point.index for point in points}
        added = [i for i, block in enumerate(kinds) if block.kind in rules.implicit_kinds and i not in taken]
        if added:
            points += [Breakpoint(index, rules.implicit_ttl, "implicit") for index in added]
            points.sort(key=lambda point: point.index)
    return points, tuple(rejected)


def _add_automatic(prompt: Prompt, rules: Rules, points: list[Breakpoint], rejected: list[str]) -> None:
    target = next((i for i in reversed(range(len(prompt.blocks))) if _markable(prompt, i, rules)), None)
    if target is None or prompt.automatic is None:
        return
    same = next((point for point in points if point.index == target), None)
    if same is not None:
        if same.ttl != prompt.automatic:
            rejected.append("the automatic breakpoint and the last block's own differ in TTL")
        return
    points.append(Breakpoint(target, prompt.automatic, "automatic"))


def _markable(prompt: Prompt, index: int, rules: Rules) -> bool:
    return prompt.blocks[index].kind not in rules.cannot_mark


def find_hit(
    state: CacheState, prompt: Prompt, salts: Salts, points: list[Breakpoint], rules: Rules, at: datetime
) -> int:
    """Block index of the longest live entry in reach of the breakpoints, -1 where there is none.

    Going from the last breakpoint backwards, the first entry found is the longest: an earlier breakpoint's window
    reaches beyond it only where the later one already looked.
    """
    entries, chain, blocks = state.entries, prompt.chain, prompt.blocks
    for point in reversed(points):
        index, position = point.index, 1
        while True:
            block = blocks[index]
            entry = entries.get((chain[index], salts[block.level]))
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


def _after(
    state: CacheState,
    prompt: Prompt,
    salts: Salts,
    eligible: list[Breakpoint],
    rules: Rules,
    hit: int,
    at: datetime,
    readable_at: datetime,
) -> CacheState:
    """Entries after the request: the one read and those at its breakpoints refreshed, missing ones written."""
    entries = state.entries
    if hit >= 0:
        key = (prompt.chain[hit], salts[prompt.blocks[hit].level])
        entries = entries.insert(key, _refreshed(entries[key], at, entries[key].readable_at))
    for point in eligible:
        key = (prompt.chain[point.index], salts[prompt.blocks[point.index].level])
        old = entries.get(key)
        if old is not None and alive(old, at):
            if rules.refresh_breakpoints:
                entries = entries.insert(key, _refreshed(old, at, min(old.readable_at, readable_at)))
        else:
            entries = entries.insert(key, Entry(point.ttl, rules.ttl_s[point.ttl], at, at, readable_at))
    return CacheState(entries)


def _refreshed(entry: Entry, at: datetime, readable_at: datetime) -> Entry:
    return Entry(entry.ttl, entry.ttl_s, entry.written_at, at, readable_at)


def _bill(
    prompt: Prompt,
    rules: Rules,
    salts: Salts,
    points: list[Breakpoint],
    eligible: list[Breakpoint],
    rejected: tuple[str, ...],
    hit: int,
) -> Outcome:
    """Mixed-lifetime billing: A the hit, B the highest 1h breakpoint beyond it, C the last breakpoint."""
    ends = prompt.ends
    read = ends[hit] if hit >= 0 else 0
    hour = max((ends[point.index] for point in eligible if point.ttl == "1h"), default=0)
    last = eligible[-1].index if eligible else -1
    top_of_hour = max(read, hour)
    top = max(top_of_hour, ends[last] if eligible else 0)
    engaged: Engaged = "yes" if eligible else ("below_minimum" if points else "no_breakpoint")
    return Outcome(
        read_tokens=read,
        write_5m_tokens=top - top_of_hour,
        write_1h_tokens=top_of_hour - read,
        uncached_tokens=prompt.total - top,
        read_index=hit,
        last_index=max(hit, last),
        breakpoints=tuple(points),
        salts=salts,
        engaged=engaged,
        rejected=rejected,
        rules=rules,
    )
