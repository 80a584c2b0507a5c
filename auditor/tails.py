"""Stable histories: undo rewrites of earlier messages, and send equal blocks in one serialisation."""

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from auditor.history import extends
from auditor.replay import Sent
from auditor.rewrite import Item, items_of, rebuilt, settled
from traces.schema import Block, Level, Prompt

if TYPE_CHECKING:
    from auditor.whatif import Policy, Trial

# Changes that put another version in a block's place; the others add, drop or move whole blocks.
_WHOLE = ("inserted", "removed", "moved", "reordered", "thinking_stripped")


def undo_rewrites(sent: list[Sent], trial: "Trial", policy: "Policy") -> list[Sent]:
    """Requests that keep the history as it was first sent and append what is new."""
    remedied = {audited.index for audited in trial.diagnosed(policy)}
    if not remedied:
        return sent
    original: dict[int, Prompt] = {}
    sent_as: dict[int, Prompt] = {}
    rewritten: dict[int, list[Item]] = {}
    out = []
    for one in sent:
        out.append(one)
        if one.call is None:
            continue
        original[one.call] = sent_as[one.call] = one.prompt
        items = _undone(one, trial, remedied, original, rewritten)
        if items is not None:
            rewritten[one.call] = items
            before = sent_as[trial.audit.calls[one.call].previous or 0]
            prompt = settled(rebuilt(one.prompt, items), one.prompt, before)
            sent_as[one.call], out[-1] = prompt, replace(one, prompt=prompt)
    return out


def _undone(
    one: Sent,
    trial: "Trial",
    remedied: Set[int],
    original: dict[int, Prompt],
    rewritten: dict[int, list[Item]],
) -> list[Item] | None:
    assert one.call is not None
    audited = trial.audit.calls[one.call]
    previous = audited.previous
    if previous is None or previous not in original:
        return None
    before, changed = original[previous], one.call in remedied
    if not changed and not (previous in rewritten and extends(one.prompt, before)):
        return None
    base, items = rewritten.get(previous) or items_of(before), items_of(one.prompt)
    if changed:
        first = audited.diagnosis.first if audited.diagnosis else None
        skip = first.index if first is not None and first.change not in _WHOLE else -1
        return _joined(base, _fresh(items, before, skip), items)
    return _joined(base, items[len(before.blocks) :], items)


def _fresh(items: list[Item], before: Prompt, skip: int) -> list[Item]:
    """Blocks that the earlier prompt did not have, apart from the edited version of one that it had."""
    had = Counter(block.meaning for block in before.blocks)
    fresh = []
    for index, item in enumerate(items):
        if had[item.block.meaning] > 0:
            had[item.block.meaning] -= 1
        elif index != skip:
            fresh.append(item)
    return fresh


def _joined(base: list[Item], fresh: list[Item], items: list[Item]) -> list[Item]:
    """The kept history, with the head's markers as this request has them, and the fresh blocks behind it."""
    head = {item.path: item.mark for item in items if item.level < Level.MESSAGES}
    kept = [item._replace(mark=head.get(item.path) if item.level < Level.MESSAGES else None) for item in base]
    joined = kept + fresh
    if joined and joined[-1].mark is None and items[-1].mark is not None:
        joined[-1] = joined[-1]._replace(mark=items[-1].mark)
    return joined


def stable_serialisation(sent: list[Sent], trial: "Trial", policy: "Policy") -> list[Sent]:
    """Requests in which blocks of equal meaning have the bytes of the first one sent."""
    if not trial.diagnosed(policy):
        return sent
    first: dict[tuple[bytes, Level, str], Block] = {}
    out = []
    for one in sent:
        blocks = [first.setdefault((block.meaning, block.level, block.role), block) for block in one.prompt.blocks]
        if any(block.wire != own.wire for block, own in zip(blocks, one.prompt.blocks, strict=True)):
            items = [item._replace(block=block) for item, block in zip(items_of(one.prompt), blocks, strict=True)]
            one = replace(one, prompt=rebuilt(one.prompt, items))
        out.append(one)
    return out
