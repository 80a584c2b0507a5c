"""Paged KV memory and the attention over it, for prefill chunks, decode batches and verification alike.

Layout: one slab [pages, layers, 2, kv_heads, 16, head_dim], so a page is one contiguous run of bytes for the disk, and
the 16 positions of one head in one layer are one contiguous row, which a gather copies as a whole.

Why it is exact (the same bits for a token, however the prompt was cut, batched or restored):
* keys are padded to a multiple of 64 and masked with -inf, so that a row's dot products, its softmax over the whole row
  and its sum over the values run in the same order whatever else is computed beside it. float32 on CPUs (MKL) splits
  sums by their length, so there the values are summed in blocks of 256 keys, one after the other, and the rest in
  blocks of 128: one of 256 is summed as two of 128 are, whereas one of 192 or of 512 is not;
* no product has fewer rows than `_least_rows`, for below that other kernels are taken;
* the padding of values is zero, so that what a page held before can never reach a result, not even as NaN;
* products are `bmm` with float32 accumulators, the softmax is one full row (torch SDPA is not invariant).
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy
import torch
from torch.nn import functional

from localmodel.engine.cache.identity import PAGE_TOKENS
from localmodel.engine.cache.pages import Copy
from localmodel.engine.config import ModelConfig
from localmodel.engine.errors import BadBatch

KEY_BLOCK = 64
SUM_BLOCKS = 256, 128
"""Keys that are summed at once in float32: as long as there are so many, and then."""
QUERY_BLOCK = 128
_MANY_ROWS = 64
WASTE = 1.5
"""Sequences share one product while padding them to the longest costs at most this factor."""

LAYOUT = f"page-layer-kv-head-{PAGE_TOKENS}-dim/1"
"""Part of a page's identity: changes whenever the meaning of a page's bytes does."""


class PagedKV:
    """The slab and its pages. Pages are numbers; who owns which is the page cache's business."""

    def __init__(self, config: ModelConfig, pages: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        self.config, self.pages, self.dtype, self.device = config, pages, dtype, device
        shape = (pages, config.layers, 2, config.kv_heads, PAGE_TOKENS, config.head_dim)
        # Zeros, because masked positions are multiplied by zero, and zero times what memory held might be NaN.
        self.slab = _zeros(shape, dtype, device)
        self.heads = self.slab.view(-1, PAGE_TOKENS * config.head_dim)
        self.slots = self.slab.view(-1, config.head_dim)
        self._scores = torch.empty(0, dtype=dtype, device=device)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return int(self.slab[0].numel() * self.slab.element_size())

    def scores(self, *shape: int) -> torch.Tensor:
        """Memory for the scores of one block, used again for the next: new memory costs as much as filling it does."""
        size = math.prod(shape)
        if self._scores.numel() < size:
            self._scores = torch.empty(size, dtype=self.dtype, device=self.device)
        return self._scores[:size].view(shape)

    def read(self, page: int) -> bytes:
        """A copy of a page's bytes, for a tier."""
        held = self.slab[page].cpu()
        return ctypes.string_at(held.data_ptr(), self.page_bytes)

    def write(self, page: int, payload: bytes | bytearray | memoryview) -> None:
        """Fill a page from a tier. Raises BadBatch if the size is not that of a page."""
        if len(payload) != self.page_bytes:
            raise BadBatch(f"page {page}: {len(payload)} bytes given, a page has {self.page_bytes}")
        # bytearray: torch warns about memory that it may not write
        self.slab[page].view(-1).copy_(torch.frombuffer(bytearray(payload), dtype=self.dtype))

    def copy(self, copies: Iterable[Copy]) -> None:
        """Carry out copies on write: the first `tokens` positions of a page, all layers."""
        for one in copies:
            self.slab[one.target, ..., : one.tokens, :] = self.slab[one.source, ..., : one.tokens, :]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Zeros; on CPUs memory that the system gives page by page as it is written (torch.zeros writes all of it)."""
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = numpy.zeros(math.prod(shape) * dtype.itemsize, dtype=numpy.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


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
class Block:
    """Rows `first` to `last` of each sequence of a group, over its first `reach` keys.

    hidden [sequences, 1, 1, last - first, reach - unmasked] is true for keys after a row's own; those before
    `unmasked` are hidden from no row.
    """

    first: int
    last: int
    reach: int
    unmasked: int
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that share their products: `count` rows each from `row`, keys padded to `keys`.

    index [layers, 2 x sequences x kv_heads x pages] are rows of `PagedKV.heads`; `used` is each one's number of keys.
    """

    row: int
    count: int
    keys: int
    index: torch.Tensor
    used: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every layer of one forward pass needs to know. `rows` counts padding, `written` does not.

    write [layers, written x 2 x kv_heads] are rows of `PagedKV.slots`.
    """

    rows: int
    tokens: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    written: int
    groups: tuple[Group, ...]
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
    return Plan(
        rows=rows,
        tokens=torch.tensor(tokens + padding, device=device),
        positions=torch.tensor(positions + padding, device=device),
        write=_in_layers((torch.tensor(slots, device=device)[:, None] + heads).view(-1), kv, PAGE_TOKENS),
        written=len(tokens),
        groups=tuple(_groups(spans, kv)),
        wanted=torch.tensor(wanted, dtype=torch.long, device=device),
    )


def _slot(span: Span, place: int, kv: PagedKV) -> int:
    """The row of `PagedKV.slots` of a position: layer 0, k, first head."""
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


def _in_layers(rows: torch.Tensor, kv: PagedKV, size: int) -> torch.Tensor:
    """Rows of the first layer -> [layers, rows]; a head's share of a page has `size` rows."""
    layers = torch.arange(kv.config.layers, device=kv.device) * (2 * kv.config.kv_heads * size)
    return layers[:, None] + rows


def _padded(tokens: int) -> int:
    return -(-tokens // KEY_BLOCK) * KEY_BLOCK


def _least_rows(dtype: torch.dtype) -> int:
    return 16 if dtype == torch.float32 else 2


def _groups(spans: Sequence[Span], kv: PagedKV) -> list[Group]:
    """Neighbours in the batch with equally many rows share a group while padding wastes little."""
    found: list[Group] = []
    row = 0
    for count, same in groupby(spans, key=lambda span: len(span.tokens)):
        batch: list[Span] = []
        for span in same:
            if batch and _wasteful([*batch, span]):
                found.append(_group(batch, row, kv))
                row += count * len(batch)
                batch = []
            batch.append(span)
        found.append(_group(batch, row, kv))
        row += count * len(batch)
    return found


def _wasteful(batch: Sequence[Span]) -> bool:
    if len(batch[0].tokens) > QUERY_BLOCK:  # a long chunk fills the cores by itself
        return True
    lengths = [_padded(span.end) for span in batch]
    return max(lengths) * len(lengths) > WASTE * sum(lengths)


def _group(batch: Sequence[Span], row: int, kv: PagedKV) -> Group:
    config = kv.config
    count, keys = len(batch[0].tokens), max(_padded(span.end) for span in batch)
    tables = [_table(span, keys // PAGE_TOKENS) for span in batch]
    bases = torch.tensor(tables, device=kv.device) * (config.layers * 2 * config.kv_heads)
    heads = torch.arange(2 * config.kv_heads, device=kv.device).view(2, 1, config.kv_heads, 1)
    index = _in_layers((bases[None, :, None, :] + heads).reshape(-1), kv, 1)
    used = tuple(span.end for span in batch)
    blocks = tuple(_block(batch, first, keys, kv) for first in range(0, count, QUERY_BLOCK))
    return Group(row, count, keys, index, used, blocks)


def _block(batch: Sequence[Span], first: int, keys: int, kv: PagedKV) -> Block:
    last = min(first + QUERY_BLOCK, len(batch[0].tokens))
    # In a batch the longest sequence sets the length; one alone needs no keys beyond its block's last row.
    reach = keys if len(batch) > 1 else _padded(batch[0].start + last)
    starts = [span.start + first for span in batch]
    position = torch.tensor(starts, device=kv.device)[:, None] + torch.arange(last - first, device=kv.device)
    hidden = torch.arange(min(starts), reach, device=kv.device) > position[:, :, None]
    return Block(first, last, reach, min(starts), hidden[:, None, None])


def _table(span: Span, length: int) -> list[int]:
    """The pages in use, then this sequence's own first page as padding: no other sequence's memory is ever read."""
    used = list(span.pages[: -(-span.end // PAGE_TOKENS)])
    return used + [used[0]] * (length - len(used))


def attend(query: torch.Tensor, kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
    """Causal attention of all rows of a plan in one layer, whose keys and values have been written.

    query [rows, heads, head_dim], scaled already; returns [rows, heads * head_dim], zero in padding rows.
    """
    found = torch.empty((work.rows, query.shape[1] * query.shape[2]), dtype=query.dtype, device=query.device)
    found[work.written :].zero_()
    for group in work.groups:
        _attend_group(query, kv, layer, group, found)
    return found


def _attend_group(query: torch.Tensor, kv: PagedKV, layer: int, group: Group, found: torch.Tensor) -> None:
    config, batch = kv.config, len(group.used)
    rows = query[group.row : group.row + batch * group.count]
    asked = rows.view(batch, group.count, config.kv_heads, config.groups, config.head_dim).permute(0, 2, 3, 1, 4)
    held = kv.heads.index_select(0, group.index[layer]).view(2, batch, config.kv_heads, group.keys, config.head_dim)
    for number, used in enumerate(group.used):
        held[1, number, :, used:].zero_()
    keys, values = held.view(2, -1, group.keys, config.head_dim)
    target = found[group.row : group.row + batch * group.count].view(batch, group.count, -1)
    for block in group.blocks:
        part = _weighted(asked[:, :, :, block.first : block.last], keys, values, block, kv)
        target[:, block.first : block.last] = part.permute(0, 3, 1, 2, 4).flatten(2)


def _weighted(asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block: Block, kv: PagedKV) -> torch.Tensor:
    """asked [batch, kv_heads, groups, rows, dim], keys and values [batch * kv_heads, length, dim] -> as asked."""
    wanted = asked.shape[3]
    lacking = _least_rows(asked.dtype) - asked.shape[2] * wanted
    if lacking > 0:
        asked = functional.pad(asked, (0, 0, 0, lacking))
    batch, heads, groups, rows, dim = asked.shape
    scores = kv.scores(batch * heads, groups * rows, block.reach)
    _multiply(asked.reshape(batch * heads, -1, dim), keys[:, : block.reach].transpose(1, 2), scores)
    split = scores.view(batch, heads, groups, rows, block.reach)
    split[:, :, :, :wanted, block.unmasked :].masked_fill_(block.hidden, -torch.inf)
    torch.softmax(scores, -1, out=scores)
    return _summed(scores, values[:, : block.reach]).view(batch, heads, groups, rows, dim)[:, :, :, :wanted]


def _summed(shares: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """shares [n, rows, length] times values [n, length, dim], in an order that does not depend on the length."""
    if shares.dtype != torch.float32:
        return torch.bmm(shares, values)
    most, least = SUM_BLOCKS
    length = shares.shape[2]
    whole = length - length % most
    starts = [*range(0, whole, most), *range(whole, length, least), length]
    parts = ((shares[:, :, first:last], values[:, first:last]) for first, last in pairwise(starts))
    found = shares.new_empty((*shares.shape[:2], values.shape[2]))
    for number, part in enumerate(parts):
        _multiply(*part, found, add=number > 0)
    return found


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, *, add: bool = False) -> None:
    """left [n, rows, k] times right [n, k, columns] into `out`, or added to it.

    float32 on CPUs (MKL) gives each core whole members of a batch, and three heads do not divide well by two cores: of
    a long chunk each product is shared for itself. The bits are the same (`selftest`).
    """
    if left.dtype != torch.float32 or left.device.type != "cpu" or left.shape[1] < _MANY_ROWS:
        torch.baddbmm(out, left, right, out=out) if add else torch.bmm(left, right, out=out)
        return
    for one, other, target in zip(left, right, out, strict=True):
        torch.addmm(target, one, other, out=target) if add else torch.mm(one, other, out=target)
