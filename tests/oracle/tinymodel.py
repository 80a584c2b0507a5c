"""A decoder with seeded random weights: small enough for thousands of tokens a second, real in everything else.

Needs torch, so import it only behind `pytest.importorskip("torch")`. `parts` adds the tokenizer and the template of the
default model, whose file must be installed; it raises MissingModel otherwise.
"""

from dataclasses import replace
from functools import cache

import torch

from localmodel.engine.config import Family, ModelConfig
from localmodel.engine.engine import Parts
from localmodel.engine.fetch import default_model
from localmodel.engine.gguf import open_gguf
from localmodel.engine.model import PagedModel
from localmodel.engine.selftest import prove
from localmodel.engine.template import for_model
from localmodel.engine.tokenizer import from_gguf
from localmodel.engine.weights import Weights

SHAPES: dict[str, tuple[Family, int, int]] = {
    "llama": ("llama", 6, 2),
    "one head each": ("llama", 3, 3),
    "qwen2": ("qwen2", 4, 2),
    "qwen3": ("qwen3", 4, 1),
}


def shape(name: str, *, layers: int = 3) -> ModelConfig:
    family, heads, kv_heads = SHAPES[name]
    return ModelConfig(
        family=family, layers=layers, dim=96, heads=heads, kv_heads=kv_heads, head_dim=32, ffn=160, vocab=320,
        context=1024, rope_base=10000.0, norm_eps=1e-5, tied=family != "qwen3",
    )  # fmt: skip


def random_model(config: ModelConfig, dtype: torch.dtype = torch.float32, name: str = "tiny") -> PagedModel:
    """A model of this shape; the same every time."""
    random = torch.Generator().manual_seed(7)

    def draw(*size: int) -> torch.Tensor:
        return (torch.randn(size, generator=random) * 2 * size[-1] ** -0.5).to(dtype)

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=random)

    every = config.heads + 2 * config.kv_heads
    found = {"embed": draw(config.vocab, config.dim) * 3, "norm": norm(config.dim)}
    if not config.tied:
        found["head"] = draw(config.vocab, config.dim)
    for i in range(config.layers):
        found[f"{i}.attn_norm"], found[f"{i}.ffn_norm"] = norm(config.dim), norm(config.dim)
        found[f"{i}.qkv"] = draw(every * config.head_dim, config.dim)
        found[f"{i}.o"] = draw(config.dim, config.heads * config.head_dim)
        found[f"{i}.gate_up"], found[f"{i}.down"] = draw(2 * config.ffn, config.dim), draw(config.dim, config.ffn)
        if config.family == "qwen2":
            found[f"{i}.qkv_bias"] = draw(every * config.head_dim)
        if config.family == "qwen3":
            found[f"{i}.q_norm"], found[f"{i}.k_norm"] = norm(config.head_dim), norm(config.head_dim)
    return PagedModel(Weights(config, found, name))


@cache
def parts(context: int = 24_576) -> Parts:
    """A tiny model that reads and writes the default model's tokens, in a window of this many."""
    file = open_gguf(default_model())
    tokenizer = from_gguf(file.metadata, place="default")
    template = for_model(file.metadata.get("tokenizer.chat_template"), tokenizer, place="default")
    config = replace(shape("llama", layers=2), vocab=tokenizer.size, context=context)
    model = random_model(config)
    return Parts("tiny", model, tokenizer, template, prove(model))
