"""Explicit breakpoints: markers that the client puts, and those that the provider adds to them.

Look up from each breakpoint backwards over a bounded number of positions, read the longest live entry, write at the
breakpoints beyond it, bill by the A/B/C rule. Source: Anthropic's documentation, "Prompt caching".
"""

from datetime import datetime
from operator import attrgetter

from localmodel.rules.plan import Bill, Lookup, Plan, Points, Updates, alive, point_at, readable, refreshed
from localmodel.rules.types import Breakpoint, Entry, Rules
from traces.schema import Prompt

_kind = attrgetter("kind")


def breakpoints(prompt: Prompt, rules: Rules) -> Points:
    """Breakpoints in prompt order, and why the provider would refuse the request (empty: it would not)."""
    kinds = prompt.blocks
    points = [point_at(m.index, m.ttl) for m in prompt.marks if kinds[m.index].kind not in rules.cannot_mark]
    rejected: list[str] = []
    if asks_automatic(prompt, rules):
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
        points += [point_at(index, rules.implicit_ttl, "implicit") for index in added]
        points.sort(key=lambda point: point.index)
    return points, tuple(rejected)


def asks_automatic(prompt: Prompt, rules: Rules) -> bool:
    """Whether the client asks the provider for one breakpoint: only a Messages body can."""
    return prompt.automatic is not None and rules.automatic and prompt.dialect == "messages"


def _add_automatic(prompt: Prompt, rules: Rules, points: list[Breakpoint], rejected: list[str]) -> None:
    target = next((i for i in reversed(range(len(prompt.blocks))) if _markable(prompt, i, rules)), None)
    if target is None or prompt.automatic is None:
        return
    same = next((point for point in points if point.index == target), None)
    if same is not None:
        if same.ttl != prompt.automatic:
            rejected.append("the automatic breakpoint and the last block's own differ in TTL")
        return
    points.append(point_at(target, prompt.automatic, "automatic"))


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


def updates(lookup: Lookup, plan: Plan, hit: int, at: datetime, readable_at: datetime) -> Updates:
    """Entries after the request: the one read and those at its breakpoints refreshed, missing ones written."""
    chain, blocks, salts, rules = plan.prompt.chain, plan.prompt.blocks, plan.salts, plan.rules
    updates: Updates = []
    if hit >= 0:
        key = (chain[hit], salts[blocks[hit].level])
        read = lookup(key)
        assert read is not None
        updates.append((key, refreshed(read, at, read.readable_at)))
    for point in plan.eligible:
        if point.index == hit:
            continue
        key = (chain[point.index], salts[blocks[point.index].level])
        old = lookup(key)
        if old is None or not alive(old, at):
            updates.append((key, Entry(point.ttl, rules.ttl_s[point.ttl], at, at, readable_at)))
        elif rules.refresh_breakpoints:
            updates.append((key, refreshed(old, at, min(old.readable_at, readable_at))))
    return updates


def bill(plan: Plan, hit: int) -> Bill:
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
