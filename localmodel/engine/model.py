"""The forward pass of a Llama-family decoder over paged KV: one function for prefill, decode and verification."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch.nn import functional

from localmodel.engine.attention import KEY_BLOCK, SUM_BLOCKS, Plan, Span, plan
from localmodel.engine.backend import Backend, TorchBackend, Turn
from localmodel.engine.config import ModelConfig
from localmodel.engine.kv import PagedKV
from localmodel.engine.weights import Weights


class PagedModel:
    """Weights, shape and backend. Stateless apart from them: what a sequence knows is in its pages."""

    def __init__(self, weights: Weights, backend: Backend | None = None) -> None:
        self.config: ModelConfig = weights.config
        self.identity = weights.identity
        self.backend: Backend = TorchBackend() if backend is None else backend
        embed = weights.tensors["embed"]
        self.dtype, self.device = embed.dtype, str(embed.device)
        self._embed = embed
        self._vectors = {name: one for name, one in weights.tensors.items() if one.dim() == 1}
        matrices = {name: one for name, one in weights.tensors.items() if one.dim() == 2 and name != "embed"}
        self._matrices = {
            name: self.backend.prepare(one, head=name == "head") for name, one in {"head": embed, **matrices}.items()
        }
        self._frequencies = _frequencies(self.config, weights.rope_factors).to(embed.device)
        self._qk_norms = [self._qk_norm(layer) for layer in range(self.config.layers)]

    @property
    def layout(self) -> str:
        """Name of the order of a page's bytes, for the identity of pages."""
        return self.backend.kv.layout

    @property
    def numerics(self) -> str:
        """What the bits of KV depend on besides weights and tokens: torch, the instruction set, the order of sums."""
        on = (
            torch.backends.cpu.get_cpu_capability() if self.device == "cpu" else torch.cuda.get_device_name(self.device)
        )
        return f"torch {torch.__version__} {on} {type(self.backend).__name__} sums of {KEY_BLOCK}/{SUM_BLOCKS[-1]}"

    @property
    def dtype_name(self) -> str:
        """The dtype of KV, for the identity of pages."""
        return str(self.dtype).removeprefix("torch.")

    def first_layers(self, count: int) -> "PagedModel":
        """The same model cut off after `count` layers, sharing weights. For the self-test."""
        short = copy(self)
        short.config = replace(self.config, layers=count)
        return short

    def new_kv(self, pages: int) -> PagedKV:
        """A slab of `pages` pages that fits this model."""
        return self.backend.kv(self.config, pages, dtype=self.dtype, device=self.device)

    def forward(self, spans: Sequence[Span], kv: PagedKV) -> torch.Tensor:
        """Compute all tokens of `spans`, write their KV, return logits in float32: [sum of span.logits, vocab].

        A span may be a chunk of a prompt, one token to decode, or several to verify, mixed as you like; the rows come
        in the order of the spans. No two spans may write the same page. Raises BadBatch.
        """
        with torch.inference_mode():
            work = plan(spans, kv, multiple=self.backend.row_multiple(self.dtype))
            return self._logits(self._hidden(work, kv)[work.wanted])

    def hidden(self, spans: Sequence[Span], kv: PagedKV) -> torch.Tensor:
        """As `forward`, but the states before the last norm, of all tokens: [tokens, dim]. For the self-test."""
        with torch.inference_mode():
            work = plan(spans, kv, multiple=self.backend.row_multiple(self.dtype))
            return self._hidden(work, kv)[: work.written]

    def _hidden(self, work: Plan, kv: PagedKV) -> torch.Tensor:
        rows = functional.embedding(work.tokens, self._embed)
        turn = self._turn(work.positions)
        for layer in range(self.config.layers):
            rows = rows + self._attention(rows, layer, turn, kv, work)
            rows = rows + self._mlp(rows, layer)
        return rows

    def _attention(self, rows: torch.Tensor, layer: int, turn: Turn, kv: PagedKV, work: Plan) -> torch.Tensor:
        config, vectors, backend = self.config, self._vectors, self.backend
        normed = backend.norm(rows, vectors[f"{layer}.attn_norm"], config.norm_eps)
        qkv = backend.linear(normed, self._matrices[f"{layer}.qkv"], vectors.get(f"{layer}.qkv_bias"))
        qkv = qkv.view(work.rows, -1, config.head_dim)
        norms = self._qk_norms[layer]
        if norms is not None:
            cut = config.heads + config.kv_heads
            qkv = torch.cat((backend.norm(qkv[:, :cut], norms, config.norm_eps), qkv[:, cut:]), dim=1)
        query = backend.rope_write(qkv, turn, kv, layer, work)
        return backend.linear(backend.attend(query, kv, layer, work), self._matrices[f"{layer}.o"])

    def _mlp(self, rows: torch.Tensor, layer: int) -> torch.Tensor:
        backend = self.backend
        normed = backend.norm(rows, self._vectors[f"{layer}.ffn_norm"], self.config.norm_eps)
        gated = backend.swiglu(backend.linear(normed, self._matrices[f"{layer}.gate_up"]))
        return backend.linear(gated, self._matrices[f"{layer}.down"])

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [n, dim] -> [n, vocab]; padded, because these are fewer rows than the layers saw."""
        count, multiple = rows.shape[0], self.backend.row_multiple(self.dtype)
        if not count:
            return torch.empty((0, self.config.vocab), device=rows.device)
        target = -(-count // multiple) * multiple
        padded = functional.pad(rows, (0, 0, 0, target - count))
        normed = self.backend.norm(padded, self._vectors["norm"], self.config.norm_eps)
        return self.backend.linear(normed, self._matrices["head"])[:count].float()

    def _turn(self, positions: torch.Tensor) -> Turn:
        """Rotation of all rows. v is turned by nothing, and q's share of 1/sqrt(dim) is in the factors."""
        config = self.config
        angles = positions[:, None].float() * self._frequencies
        heads = config.heads, config.kv_heads
        scale = config.head_dim**-0.5
        cos, sin = angles.cos().repeat(1, 2), angles.sin()
        sin = torch.cat((-sin, sin), dim=-1)
        parts = [(cos * scale, sin * scale), (cos, sin), (torch.ones_like(cos), torch.zeros_like(sin))]
        counts = (heads[0], heads[1], heads[1])
        spread = [[one[:, None].expand(-1, n, -1) for one in pair] for pair, n in zip(parts, counts, strict=True)]
        return Turn(*(torch.cat(one, dim=1).contiguous() for one in zip(*spread, strict=True)))

    def _qk_norm(self, layer: int) -> torch.Tensor | None:
        """Qwen3's norms of q and k heads, as one [heads + kv_heads, dim]."""
        if self.config.family != "qwen3":
            return None
        query, key = self._vectors[f"{layer}.q_norm"], self._vectors[f"{layer}.k_norm"]
        return torch.cat((query.expand(self.config.heads, -1), key.expand(self.config.kv_heads, -1)))


def _frequencies(config: ModelConfig, factors: torch.Tensor | None) -> torch.Tensor:
    """Rotations per token of each pair, [head_dim / 2] in float32; Llama 3's stretching as in its reference code."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    found = 1.0 / (config.rope_base**steps)
    if factors is not None:
        return found / factors.cpu().float()
    scaling = config.rope_scaling
    if scaling is None:
        return found
    waves = 2 * torch.pi / found
    smooth = (scaling.context / waves - scaling.low) / (scaling.high - scaling.low)
    blended = (1 - smooth) * found / scaling.factor + smooth * found
    stretched = torch.where(waves > scaling.context / scaling.low, found / scaling.factor, blended)
    return torch.where(waves < scaling.context / scaling.high, found, stretched)
