"""Paged KV memory.

Layout: one slab [pages, layers, 2, kv_heads, 16, head_dim], so a page is one contiguous run of bytes for the disk, and
the 16 positions of one head in one layer are one contiguous row, which a gather copies as a whole.
"""

import ctypes
import math
from collections.abc import Iterable

import numpy
import torch

from localmodel.engine.cache.identity import PAGE_TOKENS
from localmodel.engine.cache.pages import Copy
from localmodel.engine.config import ModelConfig
from localmodel.engine.errors import BadBatch


class PagedKV:
    """The slab and its pages. Pages are numbers; who owns which is the page cache's business.

    A head's key or value at a position is `size` elements of `kept`, which here are its head_dim numbers as computed;
    a subclass may keep them otherwise, see `fast.Int4KV`. `exact`: a row's bits must not depend on its neighbours.
    """

    layout = f"page-layer-kv-head-{PAGE_TOKENS}-dim/1"
    """Part of a page's identity: changes whenever the meaning of a page's bytes does."""
    exact = True

    def __init__(self, config: ModelConfig, pages: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        self.config, self.pages, self.dtype, self.device = config, pages, dtype, device
        size, kept = self.form(config, dtype)
        # Zeros come free (`_zeros`); attention relies on nothing that was not written (see `attention.py`).
        self.slab = _zeros((pages, config.layers, 2, config.kv_heads, PAGE_TOKENS, size), kept, device)
        self._heads = self.slab.view(-1, PAGE_TOKENS * size)
        self._slots = self.slab.view(-1, size)
        self._scratch: dict[str, torch.Tensor] = {}

    @staticmethod
    def form(config: ModelConfig, dtype: torch.dtype) -> tuple[int, torch.dtype]:
        """(`size`, `kept`) where computing is done in `dtype`."""
        return config.head_dim, dtype

    def put(self, slots: torch.Tensor, fresh: torch.Tensor) -> None:
        """Keep fresh [n, head_dim], keys after rotation and values, at `slots` (see `Plan.write`)."""
        self._slots.index_copy_(0, slots, fresh)

    def take(self, heads: torch.Tensor, out: torch.Tensor) -> None:
        """Copy what was put: heads [n] (see `Group.index`) -> out [n, 16 * head_dim] in `dtype`."""
        torch.index_select(self._heads, 0, heads, out=out)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return int(self.slab[0].numel() * self.slab.element_size())

    def scratch(self, name: str, *shape: int) -> torch.Tensor:
        """Memory of that name, in `dtype`, for every layer and the next pass again: new memory costs as much as filling
        it does. So a plan's views of it are good for its own pass only."""
        size, held = math.prod(shape), self._scratch.get(name)
        if held is None or held.numel() < size:
            held = self._scratch[name] = torch.zeros(size, dtype=self.dtype, device=self.device)
        return held[:size].view(shape)

    def read(self, page: int) -> bytes:
        """A copy of a page's bytes, for a tier."""
        held = self.slab[page].cpu()
        return ctypes.string_at(held.data_ptr(), self.page_bytes)

    def write(self, page: int, payload: bytes | bytearray | memoryview) -> None:
        """Fill a page from a tier. Raises BadBatch if the size is not that of a page."""
        if len(payload) != self.page_bytes:
            raise BadBatch(f"page {page}: {len(payload)} bytes given, a page has {self.page_bytes}")
        # bytearray: torch warns about memory that it may not write
        self.slab[page].view(-1).copy_(torch.frombuffer(bytearray(payload), dtype=self.slab.dtype))

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
