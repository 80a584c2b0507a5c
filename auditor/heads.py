"""Stable heads: keep tools or system as the conversation began and move what came later behind the prefix.

A definition that appears later stands as an appended reference at the point of the history where it first appeared,
and stays there. A block that was edited keeps its first version: the edited words belong behind the prefix, and their
few tokens are within the block's own count.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from auditor.replay import Sent
from auditor.rewrite import Item, Piece, as_reference, bounds, items_of, settled, spliced
from traces.schema import Level, Prompt

if TYPE_CHECKING:
    from auditor.whatif import Policy, Trial


@dataclass(frozen=True, slots=True)
class _Plan:
    """A conversation's head as it began, and later blocks with the number of message blocks in front of each."""

    head: tuple[Item, ...]
    late: tuple[tuple[int, Item], ...]
    wires: frozenset[bytes]


def _plan(head: tuple[Item, ...], late: tuple[tuple[int, Item], ...] = ()) -> _Plan:
    return _Plan(head, late, frozenset(item.block.wire for item in (*head, *(item for _, item in late))))


def stable_head(sent: list[Sent], trial: "Trial", policy: "Policy", level: Level) -> list[Sent]:
    """Requests with the blocks of `level` as each conversation first sent them."""
    remedied = {audited.index for audited in trial.diagnosed(policy)}
    if not remedied:
        return sent
    plans: dict[int, _Plan] = {}
    sent_as: dict[int, Prompt] = {}
    lengths: dict[int, int] = {}
    heads: _Heads = {}
    out = []
    for one in sent:
        if one.call is None:
            out.append(one)
            continue
        call = one.call
        own = _own(one.prompt, level, heads)
        lengths[call] = len(one.prompt.blocks) - bounds(one.prompt)[1]
        previous = trial.audit.calls[call].previous
        if previous is not None and previous in plans:
            plan = _continued(plans[previous], own, lengths[previous], call in remedied)
        else:
            plan = _plan(own)
        plans[call] = plan
        if plan.late or plan.head != own:
            before = None if previous is None else sent_as.get(previous)
            prompt = _with_head(one.prompt, own, plan, level, before)
            one = replace(one, prompt=prompt if before is None else settled(prompt, one.prompt, before))
        sent_as[call] = one.prompt
        out.append(one)
    return out


_Heads: TypeAlias = dict[tuple[object, ...], tuple[Item, ...]]


def _own(prompt: Prompt, level: Level, known: _Heads) -> tuple[Item, ...]:
    """The blocks of a level, one tuple for all calls that send them in the same way: there may be hundreds of tools."""
    span = _span(prompt, level)
    marks = tuple(mark for mark in prompt.marks if span.start <= mark.index < span.stop)
    counts = tuple(prompt.ends[max(0, span.start - 1) : span.stop])
    key = (span.start, prompt.chain[: span.stop][-1:], prompt.paths[span], counts, marks)
    found = known.get(key)
    if found is None:
        found = known[key] = tuple(items_of(prompt, span.start, span.stop))
    return found


def _span(prompt: Prompt, level: Level) -> slice:
    edges = (0, *bounds(prompt), len(prompt.blocks))
    return slice(edges[level], edges[level + 1])


def _continued(plan: _Plan, own: tuple[Item, ...], offset: int, remedied: bool) -> _Plan:
    """The plan after a call that has `own` at the level: new definitions join the late ones, edits are undone."""
    unknown = [item for item in own if item.block.wire not in plan.wires]
    if not unknown:
        return plan
    if not remedied:
        return _plan(own)
    present = {item.block.wire for item in own}
    missing = sum(1 for item in plan.head if item.block.wire not in present)
    fresh = unknown[missing:]
    return _plan(plan.head, plan.late + tuple((offset, item) for item in fresh)) if fresh else plan


def _with_head(prompt: Prompt, own: tuple[Item, ...], plan: _Plan, level: Level, before: Prompt | None) -> Prompt:
    marks = [item.mark for item in own if item.mark is not None]
    head = [item._replace(mark=None) for item in plan.head]
    if marks and head:
        head[-1] = head[-1]._replace(mark=marks[-1])
    pieces: list[Piece] = [head if each is level else _span(prompt, each) for each in (Level.TOOLS, Level.SYSTEM)]
    messages = _span(prompt, Level.MESSAGES)
    cursor = messages.start
    late = [(min(messages.start + offset, messages.stop), item) for offset, item in plan.late]
    for place, item in sorted(late, key=lambda pair: pair[0]):
        pieces += [slice(cursor, place), [as_reference(item)]]
        cursor = place
    return spliced(prompt, [*pieces, slice(cursor, messages.stop)], before)
