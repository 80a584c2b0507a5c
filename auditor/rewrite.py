"""Prompts taken apart and put together again, for what-if policies: blocks move, tokens and identities follow."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from traces.canonical import digest
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


def items_of(prompt: Prompt) -> list[Item]:
    """The blocks of a measured prompt as items."""
    marks = {mark.index: mark.ttl for mark in prompt.marks}
    return [
        Item(block, path, prompt.tokens_of(index), marks.get(index))
        for index, (block, path) in enumerate(zip(prompt.blocks, prompt.paths, strict=True))
    ]


@lru_cache(maxsize=1 << 17)
def _extended(prefix: bytes, wire: bytes) -> bytes:
    return digest(prefix + wire)


def rebuilt(prompt: Prompt, items: Sequence[Item]) -> Prompt:
    """`prompt` with these items as its blocks; parameters, scope and automatic marker stay."""
    chain, prefix = [], _ROOT
    for item in items:
        prefix = _extended(prefix, item.block.wire)
        chain.append(prefix)
    return replace(
        prompt,
        blocks=tuple(item.block for item in items),
        paths=tuple(item.path for item in items),
        chain=tuple(chain),
        marks=tuple(Mark(index, item.mark) for index, item in enumerate(items) if item.mark is not None),
        ends=cumulated(item.tokens for item in items),
        errors=(),
    )


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


def split(items: Iterable[Item]) -> dict[Level, list[Item]]:
    """Items by level, in order."""
    parts: dict[Level, list[Item]] = {level: [] for level in Level}
    for item in items:
        parts[item.level].append(item)
    return parts


def as_reference(item: Item) -> Item:
    """A late definition as a block appended to the messages: same tokens, own identity, no marker."""
    block = replace(
        item.block,
        wire=digest(b"reference" + item.block.wire),
        meaning=digest(b"reference" + item.block.meaning),
        level=Level.MESSAGES,
        kind="tool_reference",
        role="user",
    )
    return Item(block, item.path, item.tokens)


def merged(run: Sequence[Item]) -> Item:
    """Consecutive blocks as one block with their tokens and the last one's marker."""
    wire = digest(b"merged" + b"".join(item.block.wire for item in run))
    block = replace(run[-1].block, wire=wire, meaning=wire, size=sum(item.block.size for item in run))
    return Item(block, run[0].path, sum(item.tokens for item in run), run[-1].mark)
