"""The few operations that a forward pass is made of, behind one protocol, and their portable torch form.

A faster backend (C++ with AVX512-BF16, CUDA) replaces these and nothing else. Each must be row-invariant: what it
computes for one row may not depend on how many rows stand beside it. Rules of the torch form on CPUs, measured with
torch 2.13: `linear` in bfloat16 is invariant from 2 rows on, in float32 (MKL) in multiples of 16 rows; through oneDNN
with weights in its own order both are invariant from 2 rows on, and faster for few rows; the norm, rotation, SwiGLU and
softmax are elementwise or row by row. `selftest.py` proves it at start-up, for it holds nowhere by contract.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch.nn import functional

from localmodel.engine.attention import Plan, attend
from localmodel.engine.cache.pages import Copy
from localmodel.engine.kv import PagedKV
from localmodel.engine.sampling import Sampler, draw

Matrix: TypeAlias = Any
"""A weight as one backend's `prepare` made it; nobody else looks inside."""


class Backend(Protocol):
    """Operations on tensors of one device. Rows are tokens of any sequences, padded as `row_multiple` says.

    `kv` is the form of pages that `rope_write` and `attend` work on.
    """

    kv: type[PagedKV]

    def row_multiple(self, dtype: torch.dtype) -> int:
        """The number of rows of a batch must be a multiple of this."""
        ...

    def prepare(self, weight: torch.Tensor, *, head: bool = False) -> Matrix:
        """A weight [out, in] in the order that suits `linear`; `head`: the one that makes logits."""
        ...

    def linear(self, rows: torch.Tensor, weight: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows [n, in] times weight [out, in] -> [n, out], accumulated in float32."""
        ...

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm over the last dimension, computed in float32, in the dtype of `rows`."""
        ...

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """silu(left half) * right half; [n, 2 * ffn] -> [n, ffn]."""
        ...

    def rope_write(self, qkv: torch.Tensor, turn: "Turn", kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
        """Rotate q and k, write k and v into their pages; qkv [n, heads + 2 * kv_heads, dim] -> q, scaled."""
        ...

    def attend(self, query: torch.Tensor, kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
        """Paged causal attention, see `attention.attend`."""
        ...

    def sample(self, logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
        """One token for each row of logits [n, vocab]."""
        ...

    def copy_pages(self, kv: PagedKV, copies: Iterable[Copy]) -> None:
        """Copies on write, see `PagedKV.copy`."""
        ...


class Turn:
    """Rotation of one batch: factors [rows, heads + 2 * kv_heads, dim] in float32, 1 and 0 for v, scaled for q."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.cos, self.sin = cos, sin


class TorchBackend:
    """The portable form. Runs on CPUs and on CUDA. Keeps weights in oneDNN's own order where that has one."""

    kv: type[PagedKV] = PagedKV

    def __init__(self) -> None:
        self._onednn = torch.backends.mkldnn.is_available()

    def row_multiple(self, dtype: torch.dtype) -> int:
        """See Backend."""
        return 16 if dtype == torch.float32 and not self._packs(dtype) else 2

    def _packs(self, dtype: torch.dtype) -> bool:
        return self._onednn and (dtype == torch.float32 or (dtype == torch.bfloat16 and native_bfloat16()))

    def prepare(self, weight: torch.Tensor, *, head: bool = False) -> Matrix:
        """See Backend."""
        if weight.device.type == "cpu" and self._packs(weight.dtype):
            return torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return weight

    def linear(self, rows: torch.Tensor, weight: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See Backend."""
        if weight.is_mkldnn:
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
            return found
        return functional.linear(rows, weight, bias)

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Backend."""
        wide = rows.float()
        scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return (wide * scale).mul_(weight).to(rows.dtype)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """See Backend."""
        gate, up = rows.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def rope_write(self, qkv: torch.Tensor, turn: Turn, kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
        """See Backend."""
        config = kv.config
        left, right = qkv.chunk(2, dim=-1)
        turned = (qkv * turn.cos).addcmul_(torch.cat((right, left), dim=-1).float(), turn.sin).to(qkv.dtype)
        fresh = turned[: work.written, config.heads :].reshape(-1, config.head_dim)
        kv.put(work.write[layer], fresh)
        return turned[:, : config.heads]

    def attend(self, query: torch.Tensor, kv: PagedKV, layer: int, work: Plan) -> torch.Tensor:
        """See Backend."""
        return attend(query, kv, layer, work)

    def sample(self, logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
        """See Backend."""
        return draw(logits, samplers)

    def copy_pages(self, kv: PagedKV, copies: Iterable[Copy]) -> None:
        """See Backend."""
        kv.copy(copies)


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512 or AMX); elsewhere torch takes ten times as long."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def default_dtype(device: str = "cpu") -> torch.dtype:
    """bfloat16 where the device has it, else float32."""
    native = torch.cuda.is_bf16_supported() if device.startswith("cuda") else native_bfloat16()
    return torch.bfloat16 if native else torch.float32
