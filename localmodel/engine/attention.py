"""Attention over paged KV, for prefill chunks, decode batches and verification alike.

Why it is exact (the same bits for a token, however the prompt was cut, batched or restored):
* keys are padded to a multiple of 64 and masked with -inf, so that a row's dot products, its softmax over the whole row
  and its sum over the values run in the same order whatever else is computed beside it. float32 on CPUs (MKL) splits
  sums by their length, so there the values are summed in blocks of 256 keys, one after the other, and the rest in
  blocks of 128: one of 256 is summed as two of 128 are, whereas one of 192 or of 512 is not;
* no product has fewer rows than `_least_rows`, for below that other kernels are taken;
* the padding of values is zero, so that what a page held before can never reach a result, not even as NaN;
* products are `bmm` (of long chunks in float32 `mm`, one by one) with float32 accumulators, the softmax is one full row
  (torch SDPA is not invariant).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch

from localmodel.engine.cache.identity import PAGE_TOKENS
from localmodel.engine.errors import BadBatch
from localmodel.engine.kv import PagedKV

KEY_BLOCK = 64
SUM_BLOCKS = 256, 128
"""Keys that are summed at once in float32: the first number while so many are left, then the second."""
QUERY_BLOCK = 128
"""Rows of a sequence that share a product, at most: a longer chunk is cut."""
_MANY_ROWS = 64
"""From so many rows on the cores share each float32 product for itself, see `_products`."""
WASTE = 1.5
"""Sequences share one product while padding them to the longest costs at most this factor."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence to be computed now, at positions `start` and on.

    `pages` is the sequence's table: position p is slot p % 16 of page pages[p // 16]; it must reach over the
    last token.
    Positions below `start` are read and must have been written. Logits are given for the last `logits` tokens.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    logits: int = 1

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Product:
    """left [n, rows, k] times right [n, k, columns] into `out`, or added to it; of matrices without n likewise."""

    left: torch.Tensor
    right: torch.Tensor
    out: torch.Tensor
    add: bool = False

    def compute(self) -> None:
        """Multiply."""
        left, right, out = self.left, self.right, self.out
        if left.dim() == 2:
            torch.addmm(out, left, right, out=out) if self.add else torch.mm(left, right, out=out)
        else:
            torch.baddbmm(out, left, right, out=out) if self.add else torch.bmm(left, right, out=out)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first` to `last` of each sequence of a group. All tensors but `hidden` are views of scratch memory.

    asked [sequences, kv_heads, groups, last - first, head_dim] is filled with queries; `scored` makes scores
    [.., rows, keys] of them, whose part `masked` is -inf where `hidden`; after the softmax `summed` makes `result`
    [sequences, last - first, kv_heads, groups, head_dim], whose place in `Plan.found` is `target`.
    """

    first: int
    last: int
    asked: torch.Tensor
    scored: tuple[Product, ...]
    scores: torch.Tensor
    masked: torch.Tensor
    hidden: torch.Tensor
    summed: tuple[Product, ...]
    result: torch.Tensor
    target: torch.Tensor

    def compute(self, query: torch.Tensor) -> None:
        """query [sequences, kv_heads, groups, rows of the group, head_dim]."""
        self.asked.copy_(query[:, :, :, self.first : self.last])
        for product in self.scored:
            product.compute()
        self.masked.masked_fill_(self.hidden, -torch.inf)
        torch.softmax(self.scores, -1, out=self.scores)
        for product in self.summed:
            product.compute()
        self.target.copy_(self.result)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that share their products: `count` rows each, from `row` to `end`.

    index: for each layer [2 x sequences x kv_heads x pages] runs of 16 positions of one head in the slab, to be copied
    to `held`, of which `tails` are values of padding.
    """

    row: int
    end: int
    count: int
    index: Sequence[torch.Tensor]
    held: torch.Tensor
    tails: tuple[torch.Tensor, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every layer of one forward pass needs to know, its views of memory included: making them is a good part of
    the work of a step of few rows. `rows` counts padding, `written` does not.

    write: for each layer [written x 2 x kv_heads] single positions of one head in the slab.
    found [rows, heads * head_dim] is what `attend` returns, in every layer.
    """

    rows: int
    tokens: torch.Tensor
    positions: torch.Tensor
    write: Sequence[torch.Tensor]
    written: int
    groups: tuple[Group, ...]
    found: torch.Tensor
    wanted: torch.Tensor


def plan(spans: Sequence[Span], kv: PagedKV, *, multiple: int) -> Plan:
    """Lay the rows of all spans out, in order, padded to a multiple of `multiple`. Raises BadBatch."""
    if not spans:
        raise BadBatch("a batch of 0 spans cannot be computed")
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    for span in spans:
        _check(span, kv)
        tokens.extend(span.tokens)
        positions.extend(range(span.start, span.end))
        slots.extend(_slot(span, place, kv) for place in range(span.start, span.end))
        wanted.extend(range(len(tokens) - span.logits, len(tokens)))
    rows = -(-len(tokens) // multiple) * multiple
    padding = [0] * (rows - len(tokens))
    device = kv.device
    heads = torch.arange(2 * kv.config.kv_heads, device=device) * PAGE_TOKENS
    found = kv.scratch("found", rows, kv.config.heads * kv.config.head_dim)
    found[len(tokens) :].zero_()
    return Plan(
        rows=rows,
        tokens=torch.tensor(tokens + padding, device=device),
        positions=torch.tensor(positions + padding, device=device),
        write=_in_layers((torch.tensor(slots, device=device)[:, None] + heads).view(-1), kv, PAGE_TOKENS),
        written=len(tokens),
        groups=tuple(_groups(spans, kv, found)),
        found=found,
        wanted=torch.tensor(wanted, dtype=torch.long, device=device),
    )


def _slot(span: Span, place: int, kv: PagedKV) -> int:
    """The place in the slab of a position: layer 0, k, first head."""
    page, slot = divmod(place, PAGE_TOKENS)
    return span.pages[page] * (kv.config.layers * 2 * kv.config.kv_heads * PAGE_TOKENS) + slot


def _check(span: Span, kv: PagedKV) -> None:
    config = kv.config
    if not span.tokens or span.start < 0 or span.end > config.context:
        raise BadBatch(f"positions {span.start} to {span.end} do not fit the window of {config.context} tokens")
    if span.end > len(span.pages) * PAGE_TOKENS:
        raise BadBatch(f"{len(span.pages)} pages of {PAGE_TOKENS} tokens do not reach over position {span.end - 1}")
    if not 0 <= min(span.tokens) <= max(span.tokens) < config.vocab:
        raise BadBatch(f"a token is outside the vocabulary of {config.vocab}")
    if not 0 <= min(span.pages) <= max(span.pages) < kv.pages:
        raise BadBatch(f"a page is outside the slab of {kv.pages} pages")
    if not 0 <= span.logits <= len(span.tokens):
        raise BadBatch(f"{span.logits} rows of logits are wanted of {len(span.tokens)} tokens")


def _in_layers(rows: torch.Tensor, kv: PagedKV, size: int) -> Sequence[torch.Tensor]:
    """Rows of the first layer -> those of each layer; a head's share of a page has `size` rows."""
    layers = torch.arange(kv.config.layers, device=kv.device) * (2 * kv.config.kv_heads * size)
    return tuple(layers[:, None] + rows)


def _padded(tokens: int) -> int:
    return -(-tokens // KEY_BLOCK) * KEY_BLOCK


def _least_rows(kv: PagedKV) -> int:
    return 1 if not kv.exact else 16 if kv.dtype == torch.float32 else 2


def _groups(spans: Sequence[Span], kv: PagedKV, found: torch.Tensor) -> Iterator[Group]:
    """Neighbours in the batch with equally many rows share a group while padding wastes little."""
    row = 0
    for batch in _batches(spans):
        end = row + len(batch) * len(batch[0].tokens)
        yield _group(batch, row, found[row:end], kv)
        row = end


def _batches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    for _, same in groupby(spans, key=lambda span: len(span.tokens)):
        batch: list[Span] = []
        for span in same:
            if batch and _wasteful([*batch, span]):
                yield batch
                batch = []
            batch.append(span)
        yield batch


def _wasteful(batch: Sequence[Span]) -> bool:
    if len(batch[0].tokens) > QUERY_BLOCK:  # a long chunk fills the cores by itself
        return True
    lengths = [_padded(span.end) for span in batch]
    return max(lengths) * len(lengths) > WASTE * sum(lengths)


def _group(batch: Sequence[Span], row: int, found: torch.Tensor, kv: PagedKV) -> Group:
    config, count = kv.config, len(batch[0].tokens)
    pages = max(_padded(span.end) for span in batch) // PAGE_TOKENS
    tables = [_table(span, pages) for span in batch]
    bases = torch.tensor(tables, device=kv.device) * (config.layers * 2 * config.kv_heads)
    heads = torch.arange(2 * config.kv_heads, device=kv.device).view(2, 1, config.kv_heads, 1)
    index = _in_layers((bases[None, :, None, :] + heads).reshape(-1), kv, 1)
    held = kv.scratch("held", len(index[0]), PAGE_TOKENS * config.head_dim)
    sides = held.view(2, len(batch), config.kv_heads, pages * PAGE_TOKENS, config.head_dim)
    tails = tuple(sides[1, number, :, span.end :] for number, span in enumerate(batch))
    # The last block reaches furthest: memory that suits it suits those before it.
    firsts = range(0, count, QUERY_BLOCK)
    blocks = [_block(batch, first, sides, found, kv) for first in reversed(firsts)]
    return Group(row, row + len(found), count, index, held, tails, tuple(reversed(blocks)))


def _block(batch: Sequence[Span], first: int, held: torch.Tensor, found: torch.Tensor, kv: PagedKV) -> Block:
    """held [2, sequences, kv_heads, keys, head_dim], found [sequences * rows, heads * head_dim]."""
    config, sequences = kv.config, len(batch)
    last = min(first + QUERY_BLOCK, len(batch[0].tokens))
    # In a batch the longest sequence sets the length; one alone needs no keys beyond its block's last row.
    reach = held.shape[3] if sequences > 1 else _padded(batch[0].start + last)
    keys, values = held[:, :, :, :reach].view(2, -1, reach, config.head_dim)
    queries = config.groups * (last - first)
    rows = max(queries, _least_rows(kv))
    asked = kv.scratch("asked", len(keys), rows, config.head_dim)
    scores = kv.scratch("scores", len(keys), rows, reach)
    result = kv.scratch("result", len(keys), rows, config.head_dim)
    split = sequences, config.kv_heads, config.groups, last - first, -1
    starts = [span.start + first for span in batch]
    unmasked = min(starts)  # keys before it are hidden from no row
    position = torch.tensor(starts, device=kv.device)[:, None] + torch.arange(last - first, device=kv.device)
    hidden = torch.arange(unmasked, reach, device=kv.device) > position[:, :, None]
    return Block(
        first=first,
        last=last,
        asked=asked[:, :queries].view(split),
        scored=tuple(_products(asked, keys.transpose(1, 2), scores)),
        scores=scores,
        masked=scores[:, :queries, unmasked:].view(split),
        hidden=hidden[:, None, None],
        summed=tuple(_sums(scores, values, result, kv)),
        result=result[:, :queries].view(split).permute(0, 3, 1, 2, 4),
        target=found.view(sequences, -1, config.kv_heads, config.groups, config.head_dim)[:, first:last],
    )


def _table(span: Span, length: int) -> list[int]:
    """The pages in use, then this sequence's own first page as padding: no other sequence's memory is ever read."""
    used = list(span.pages[: -(-span.end // PAGE_TOKENS)])
    return used + [used[0]] * (length - len(used))


def _sums(shares: torch.Tensor, values: torch.Tensor, out: torch.Tensor, kv: PagedKV) -> Iterator[Product]:
    """shares [n, rows, length] times values [n, length, dim], in an order that does not depend on the length."""
    most, least = SUM_BLOCKS
    length = shares.shape[2]
    whole = length - length % most
    blocks = kv.exact and kv.dtype == torch.float32
    starts = [*range(0, whole, most), *range(whole, length, least)] if blocks else [0]
    for first, last in pairwise([*starts, length]):
        yield from _products(shares[:, :, first:last], values[:, first:last], out, add=first > 0)


def _products(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, *, add: bool = False) -> Iterator[Product]:
    """One product, or several that are the same.

    float32 on CPUs (MKL) gives each core whole members of a batch, and three heads do not divide well by two cores: of
    a long chunk each product is shared for itself. The bits are the same (`selftest`).
    """
    if left.dtype != torch.float32 or left.device.type != "cpu" or left.shape[1] < _MANY_ROWS:
        yield Product(left, right, out, add)
        return
    for one, other, target in zip(left, right, out, strict=True):
        yield Product(one, other, target, add)


def attend(query: torch.Tensor, kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
    """Causal attention of all rows of a plan in one layer, whose keys and values have been written.

    query [rows, heads, head_dim], scaled already; returns [rows, heads * head_dim], zero in padding rows, which the
    next layer overwrites.
    """
    config = kv.config
    for group in work.groups:
        kv.take(group.index[layer], group.held)
        for tail in group.tails:
            tail.zero_()
        rows = query[group.row : group.end].view(-1, group.count, config.kv_heads, config.groups, config.head_dim)
        asked = rows.permute(0, 2, 3, 1, 4)
        for block in group.blocks:
            block.compute(asked)
    return work.found
