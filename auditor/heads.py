"""Stable heads: keep tools or system as the conversation began and move what came later behind the prefix.

A definition that appears later stands as an appended reference at the point of the history where it first appeared,
and stays there. A block that was edited keeps its first version: the edited words belong behind the prefix, and their
few tokens are within the block's own count.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from auditor.replay import Sent
from auditor.rewrite import Item, as_reference, items_of, rebuilt, split
from traces.schema import Level

if TYPE_CHECKING:
    from auditor.whatif import Policy, Trial


@dataclass(frozen=True, slots=True)
class _Plan:
    """A conversation's head as it began, and later blocks with the number of message blocks in front of each."""

    head: tuple[Item, ...]
    late: tuple[tuple[int, Item], ...] = ()

    def knows(self, item: Item) -> bool:
        wire = item.block.wire
        return any(one.block.wire == wire for one in self.head) or any(one.block.wire == wire for _, one in self.late)


def stable_head(sent: list[Sent], trial: "Trial", policy: "Policy", level: Level) -> list[Sent]:
    """Requests with the blocks of `level` as each conversation first sent them."""
    remedied = {audited.index for audited in trial.diagnosed(policy)}
    if not remedied:
        return sent
    plans: dict[int, _Plan] = {}
    lengths: dict[int, int] = {}
    out = []
    for one in sent:
        if one.call is None:
            out.append(one)
            continue
        items = items_of(one.prompt)
        parts = split(items)
        own = tuple(parts[level])
        lengths[one.call] = len(parts[Level.MESSAGES])
        previous = trial.audit.calls[one.call].previous
        plan = _Plan(own)
        if previous is not None and previous in plans:
            plan = _continued(plans[previous], own, lengths[previous], one.call in remedied)
        plans[one.call] = plan
        out.append(one if plan == _Plan(own) else _with_head(one, parts, plan, level))
    return out


def _continued(plan: _Plan, own: tuple[Item, ...], offset: int, remedied: bool) -> _Plan:
    """The plan after a call that has `own` at the level: new definitions join the late ones, edits are undone."""
    unknown = [item for item in own if not plan.knows(item)]
    if unknown and not remedied:
        return _Plan(own)
    present = {item.block.wire for item in own}
    missing = sum(1 for item in plan.head if item.block.wire not in present)
    fresh = unknown[missing:]
    return replace(plan, late=plan.late + tuple((offset, as_late(item)) for item in fresh)) if fresh else plan


def as_late(item: Item) -> Item:
    """The late definition, remembered as it was sent; it becomes a reference when it is placed."""
    return item._replace(mark=None)


def _with_head(one: Sent, parts: dict[Level, list[Item]], plan: _Plan, level: Level) -> Sent:
    marks = [item.mark for item in parts[level] if item.mark is not None]
    head = [item._replace(mark=None) for item in plan.head]
    if marks and head:
        head[-1] = head[-1]._replace(mark=marks[-1])
    messages, count = [], len(parts[Level.MESSAGES])
    for position in range(count + 1):
        messages += [as_reference(item) for offset, item in plan.late if min(offset, count) == position]
        messages += parts[Level.MESSAGES][position : position + 1]
    order = {**parts, level: head, Level.MESSAGES: messages}
    prompt = rebuilt(one.prompt, [item for each in Level for item in order[each]])
    return replace(one, prompt=prompt)
