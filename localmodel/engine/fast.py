"""Weights of 8 bits and KV of 4, for answers that need not be exact: the layers' weights have a quarter of the bytes
that they have in float32 (half of those in bfloat16), a page a sixth (a third). The head keeps its dtype.

A row's products depend on how many rows stand beside it, so nothing here is bit-equal to a cold run. Pages carry the
backend's name in their identity and are never mixed with those of exact arithmetic.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from localmodel.engine.backend import Matrix, TorchBackend
from localmodel.engine.cache.identity import PAGE_TOKENS
from localmodel.engine.config import ModelConfig
from localmodel.engine.errors import UnsupportedModel
from localmodel.engine.kv import PagedKV

FEW_ROWS = 8
"""Rows up to which torch's product of 8 bits is the faster one."""
BLOCK, BLOCK_BYTES = 32, 20
"""Numbers of a key or value that share a scale, and the bytes they take."""
LARGEST = torch.finfo(torch.float16).max


class Int8(NamedTuple):
    """A weight [out, in]: row i is values[i] * scales[i] (absolute maximum of the row over 127, in bfloat16)."""

    values: torch.Tensor
    scales: torch.Tensor


class Int4KV(PagedKV):
    """Keys and values in blocks of 32 numbers of 4 bits, each with a scale and a least value in float16.

    The blocks are rows of torch's quantised embeddings, whose lookup copies and unpacks them in one go.
    """

    layout = f"page-layer-kv-head-{PAGE_TOKENS}-int4x{BLOCK}/1"
    exact = False

    def __init__(self, config: ModelConfig, pages: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(config, pages, dtype=dtype, device=device)
        self._blocks = self.slab.view(-1, BLOCK_BYTES)

    @staticmethod
    def form(config: ModelConfig, dtype: torch.dtype) -> tuple[int, torch.dtype]:
        """See PagedKV. Raises UnsupportedModel."""
        if config.head_dim % BLOCK:
            raise UnsupportedModel(f"heads of {config.head_dim} do not divide into blocks of {BLOCK}; leave out --fast")
        return config.head_dim // BLOCK * BLOCK_BYTES, torch.uint8

    def put(self, slots: torch.Tensor, fresh: torch.Tensor) -> None:
        """See PagedKV."""
        kept = fresh.float().clamp(-LARGEST, LARGEST)  # beyond float16 the least value of a block would be infinite
        packed = torch.ops.quantized.embedding_bag_4bit_prepack(kept.reshape(-1, BLOCK))
        self._slots.index_copy_(0, slots, packed.view(len(fresh), -1))

    def take(self, heads: torch.Tensor, out: torch.Tensor) -> None:
        """See PagedKV."""
        run = out.shape[1] // BLOCK
        blocks = (heads[:, None] * run + torch.arange(run)).view(-1)
        alone = torch.arange(len(blocks))
        found = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(self._blocks, blocks, alone)
        out.view(-1, BLOCK).copy_(found)


class FastBackend(TorchBackend):
    """As TorchBackend on CPUs, with the layers' weights as `Int8` and pages as `Int4KV`."""

    kv: type[PagedKV] = Int4KV

    def row_multiple(self, dtype: torch.dtype) -> int:
        """See Backend."""
        return 1

    def prepare(self, weight: torch.Tensor, *, head: bool = False) -> Matrix:
        """See Backend. The head stays as it is: its results are compared, and in bfloat16 many are equal."""
        if head:
            return super().prepare(weight)
        wide = weight.float()
        scales = (wide.abs().amax(1).clamp_(min=1e-12) / 127).bfloat16()
        return Int8((wide / scales[:, None]).round_().clamp_(-127, 127).to(torch.int8), scales)

    def linear(self, rows: torch.Tensor, weight: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See Backend. Torch's own product costs as much for each row; many share one unpacking of the weight."""
        if not isinstance(weight, Int8):
            return super().linear(rows, weight, bias)
        if rows.shape[0] > FEW_ROWS:
            found = functional.linear(rows, weight.values.to(rows.dtype)).mul_(weight.scales)
        else:
            found = torch._weight_int8pack_mm(rows.bfloat16(), weight.values, weight.scales).to(rows.dtype)
        return found if bias is None else found + bias
