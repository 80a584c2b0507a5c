"""A tiny random model of each family, and the default model where it is installed. All skip where torch is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localmodel.engine.config import Family, ModelConfig
from localmodel.engine.errors import MissingModel
from localmodel.engine.fetch import default_model
from localmodel.engine.threads import wait_passively

wait_passively()  # before anything imports torch: tests share the machine

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


@pytest.fixture(scope="session")
def tiny() -> Callable[[str, str], Any]:
    """`tiny(shape, dtype)`: a PagedModel with seeded random weights."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    from localmodel.engine.model import PagedModel
    from localmodel.engine.weights import Weights

    def build(name: str, dtype: str) -> Any:
        config, random = shape(name), torch.Generator().manual_seed(7)
        kept = getattr(torch, dtype)

        def draw(*size: int) -> Any:
            return (torch.randn(size, generator=random) * 2 * size[-1] ** -0.5).to(kept)

        def norm(size: int) -> Any:
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

    return build


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    """The default model's file."""
    try:
        return default_model()
    except MissingModel as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smol(gguf_path: Path) -> Any:
    """The default model in the dtype that suits this machine."""
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    from localmodel.engine.model import PagedModel
    from localmodel.engine.weights import load

    return PagedModel(load(gguf_path))
