"""Prompts taken apart and put together again, for what-if policies: blocks move, tokens and identities follow."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter, is_
from typing import NamedTuple, TypeAlias

from traces.canonical import digest
from traces.divergence import common_blocks
from traces.schema import Block, Level, Mark, Prompt, Ttl
from traces.tokens import cumulated

_ROOT = bytes(16)


class Item(NamedTuple):
    """One block of a prompt with its place, its tokens, and the marker on it (`None`: unmarked)."""

    block: Block
    path: str
    tokens: int
    mark: Ttl | None = None

    @property
    def level(self) -> Level:
        """Level that the block belongs to."""
        return self.block.level


def items_of(prompt: Prompt, start: int = 0, stop: int | None = None) -> list[Item]:
    """The blocks of a measured prompt as items, all of them or those from `start` to before `stop`."""
    marks = {mark.index: mark.ttl for mark in prompt.marks}
    return [
        Item(prompt.blocks[index], prompt.paths[index], prompt.tokens_of(index), marks.get(index))
        for index in range(start, len(prompt.blocks) if stop is None else stop)
    ]


def rebuilt(prompt: Prompt, items: Sequence[Item]) -> Prompt:
    """`prompt` with these items as its blocks; parameters, scope and automatic marker stay."""
    return spliced(prompt, [items])


Piece: TypeAlias = slice | Sequence[Item]
"""Blocks `start` to before `stop` of the prompt at hand, with their markers, or items that come in anew."""


def spliced(prompt: Prompt, pieces: Iterable[Piece], before: Prompt | None = None) -> Prompt:
    """`prompt` with these pieces as its blocks; parameters, scope and automatic marker stay.

    `before` is a prompt that probably begins alike (of the call before, spliced in the same way): where it has the
    same blocks, its identities hold here too and need not be computed again.
    """
    blocks: list[Block] = []
    paths: list[str] = []
    marks: list[Mark] = []
    ends = array("q")
    for piece in pieces:
        at, total = len(blocks), ends[-1] if ends else 0
        if isinstance(piece, slice):
            blocks += prompt.blocks[piece]
            paths += prompt.paths[piece]
            marks += [Mark(m.index - piece.start + at, m.ttl) for m in prompt.marks if _within(m.index, piece)]
            moved = total - prompt.tokens_before(piece.start)
            ends.extend([end + moved for end in prompt.ends[piece]])
        else:
            blocks += [item.block for item in piece]
            paths += [item.path for item in piece]
            marks += [Mark(at + index, item.mark) for index, item in enumerate(piece) if item.mark is not None]
            ends.extend(cumulated([total, *(item.tokens for item in piece)])[1:])
    return replace(
        prompt,
        blocks=tuple(blocks),
        paths=tuple(paths),
        chain=_chained(blocks, before),
        marks=tuple(marks),
        ends=ends,
        errors=(),
    )


def _within(index: int, piece: slice) -> bool:
    return bool(piece.start <= index < piece.stop)


def _chained(blocks: Sequence[Block], before: Prompt | None) -> tuple[bytes, ...]:
    """Identities of all prefixes, those of `before` as far as it has the very same block objects."""
    same = [] if before is None else list(map(is_, blocks, before.blocks))
    shared = same.index(False) if False in same else len(same)
    chain = list(before.chain[:shared]) if before is not None else []
    prefix = chain[-1] if chain else _ROOT
    for block in blocks[shared:]:
        prefix = digest(prefix + block.wire)
        chain.append(prefix)
    return tuple(chain)


def settled(prompt: Prompt, own: Prompt, before: Prompt) -> Prompt:
    """`prompt`, rewritten from `own`, with counts that agree with those of `before`, the request it continues.

    Estimates are scaled request by request, so one block may count differently in two of them. Blocks shared with
    `before` get its counts, and the rest shares out what is left of the request's own total. A block in another's
    place (as many blocks as before) does not change that total. Exact counts stay as they are.
    """
    shared = common_blocks(prompt, before)
    if not any(own.errors) or not shared:
        return prompt
    total = own.ends[-1] if len(prompt.blocks) == len(own.blocks) else prompt.ends[-1]
    floor, seen = before.ends[shared - 1], prompt.ends[shared - 1]
    rest, span = max(1, prompt.ends[-1] - seen), max(0, total - floor)
    ends = [*before.ends[:shared], *(floor + span * (end - seen) // rest for end in prompt.ends[shared:])]
    return replace(prompt, ends=array("q", ends))


def with_lifetime(prompt: Prompt, ttl: Ttl) -> Prompt:
    """`prompt` with every marker, the automatic one too, asking for `ttl`."""
    marks = tuple(Mark(mark.index, ttl) for mark in prompt.marks)
    return replace(prompt, marks=marks, automatic=ttl if prompt.automatic else None)


def with_mark(prompt: Prompt, index: int, limit: int) -> Prompt:
    """`prompt` with a marker on block `index` too; where all slots are taken the earliest message marker gives way."""
    if index < 0 or any(mark.index == index for mark in prompt.marks):
        return prompt
    ttl: Ttl = prompt.marks[-1].ttl if prompt.marks else prompt.automatic or "5m"
    marks = sorted([*prompt.marks, Mark(index, ttl)], key=lambda mark: mark.index)
    slots = limit - (1 if prompt.automatic else 0)
    while len(marks) > slots:
        spare = [m for m in marks[:-1] if m.index != index and prompt.blocks[m.index].level is Level.MESSAGES]
        marks.remove(spare[0] if spare else next(m for m in marks if m.index != index))
    return replace(prompt, marks=tuple(marks))


def bounds(prompt: Prompt) -> tuple[int, int]:
    """Indexes of the first system block and of the first message block: the levels follow each other."""
    system = bisect_left(prompt.blocks, Level.SYSTEM, key=_level)
    return system, bisect_left(prompt.blocks, Level.MESSAGES, lo=system, key=_level)


_level = attrgetter("level")


def as_reference(item: Item) -> Item:
    """A late definition as a block appended to the messages: same tokens, own identity, no marker."""
    return Item(_reference(item.block), item.path, item.tokens)


@lru_cache(maxsize=4096)
def _reference(block: Block) -> Block:
    return replace(
        block,
        wire=digest(b"reference" + block.wire),
        meaning=digest(b"reference" + block.meaning),
        level=Level.MESSAGES,
        kind="tool_reference",
        role="user",
    )


def merged(run: Sequence[Item]) -> Item:
    """Consecutive blocks as one block with their tokens and the last one's marker."""
    wire = digest(b"merged" + b"".join(item.block.wire for item in run))
    block = replace(run[-1].block, wire=wire, meaning=wire, size=sum(item.block.size for item in run))
    return Item(block, run[0].path, sum(item.tokens for item in run), run[-1].mark)
