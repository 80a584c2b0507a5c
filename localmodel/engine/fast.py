"""Weights of 8 bits: a quarter of the bytes that each decoded token reads, for answers that need not be exact.

A row's products depend on how many rows stand beside it, so nothing here is bit-equal to a cold run. Pages carry the
backend's name in their identity and are never mixed with those of exact arithmetic.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from localmodel.engine.backend import Matrix, TorchBackend
from localmodel.engine.threads import FEW


class Int8(NamedTuple):
    """A weight [out, in]: row i is values[i] * scales[i] (absolute maximum of the row over 127)."""

    values: torch.Tensor
    scales: torch.Tensor


class FastBackend(TorchBackend):
    """As TorchBackend on CPUs, with the layers' weights as `Int8`."""

    def row_multiple(self, dtype: torch.dtype) -> int:
        """See Backend."""
        return 1

    def prepare(self, weight: torch.Tensor, *, head: bool = False) -> Matrix:
        """See Backend. The head stays as it is: its results are compared, and in bfloat16 many are equal."""
        if head:
            return super().prepare(weight)
        wide = weight.float()
        scales = wide.abs().amax(1).clamp_(min=1e-12) / 127
        return Int8((wide / scales[:, None]).round_().to(torch.int8), scales)

    def linear(self, rows: torch.Tensor, weight: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See Backend. Many rows are multiplied by the weight unpacked, which costs less than they do."""
        if not isinstance(weight, Int8):
            return super().linear(rows, weight, bias)
        if rows.shape[0] > FEW:
            return functional.linear(rows, (weight.values * weight.scales[:, None]).to(rows.dtype), bias)
        found = torch._weight_int8pack_mm(rows.bfloat16(), weight.values, weight.scales.bfloat16()).to(rows.dtype)
        return found if bias is None else found + bias
