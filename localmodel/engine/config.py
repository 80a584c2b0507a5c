"""The shape of a Llama-family decoder, from GGUF metadata or from a Hugging Face config.json.

Families: llama (Llama 1-3, SmolLM2), qwen2 (biases on q, k, v) and qwen3 (RMS norm on each head of q and k).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from localmodel.engine.errors import BadWeights, UnsupportedModel

Family: TypeAlias = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
_LIMITS = {"layers": 1024, "dim": 1 << 17, "heads": 1024, "kv_heads": 1024, "head_dim": 1024, "ffn": 1 << 19,
           "vocab": 1 << 22, "context": 1 << 26}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of low frequencies ("llama3" in config.json); `context` is the first training's length."""

    factor: float
    low: float
    high: float
    context: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """All sizes in elements, `context` in tokens. `tied`: the output head is the embedding matrix."""

    family: Family
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float
    norm_eps: float
    tied: bool = True
    rope_scaling: RopeScaling | None = None

    @property
    def groups(self) -> int:
        """Query heads for each KV head."""
        return self.heads // self.kv_heads


def from_gguf(metadata: Mapping[str, Any], *, vocab: int, tied: bool, place: str) -> ModelConfig:
    """The shape that GGUF metadata describe. Raises BadWeights (a key is missing or absurd) or UnsupportedModel."""
    family = _family(metadata.get("general.architecture"), place)

    def need(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{key}", default)
        if value is None:
            raise BadWeights(f"{place}: metadata lack {family}.{key}, the file is no complete model")
        return value

    if metadata.get(f"{family}.rope.scaling.type", "none") != "none":
        raise UnsupportedModel(f"{place}: rope scaling {metadata[f'{family}.rope.scaling.type']} is not supported")
    heads, dim = need("attention.head_count"), need("embedding_length")
    config = ModelConfig(
        family=family,
        layers=need("block_count"),
        dim=dim,
        heads=heads,
        kv_heads=need("attention.head_count_kv", heads),
        head_dim=need("attention.key_length", dim // heads if _positive(heads) and _positive(dim) else 0),
        ffn=need("feed_forward_length"),
        vocab=vocab,
        context=need("context_length"),
        rope_base=float(need("rope.freq_base", 10000.0)),
        norm_eps=float(need("attention.layer_norm_rms_epsilon", 1e-5)),
        tied=tied,
    )
    return _checked(config, place)


def from_hf(document: Mapping[str, Any], *, place: str) -> ModelConfig:
    """The shape that a config.json describes. Raises BadWeights or UnsupportedModel."""
    family = _family(document.get("model_type"), place)

    def need(key: str, default: Any = None) -> Any:
        value = document.get(key)
        value = default if value is None else value
        if value is None:
            raise BadWeights(f"{place}: {key} is missing, the file describes no complete model")
        return value

    if document.get("use_sliding_window"):
        raise UnsupportedModel(f"{place}: use_sliding_window is true, sliding windows are not supported")
    if document.get("mlp_bias") or (family == "llama" and document.get("attention_bias")):
        raise UnsupportedModel(f"{place}: biases of {family} layers are not supported")
    heads, dim = need("num_attention_heads"), need("hidden_size")
    rope = document.get("rope_parameters") or {}
    scaling = document.get("rope_scaling") or rope
    config = ModelConfig(
        family=family,
        layers=need("num_hidden_layers"),
        dim=dim,
        heads=heads,
        kv_heads=need("num_key_value_heads", heads),
        head_dim=need("head_dim", dim // heads if _positive(heads) and _positive(dim) else 0),
        ffn=need("intermediate_size"),
        vocab=need("vocab_size"),
        context=need("max_position_embeddings"),
        rope_base=float(need("rope_theta", rope.get("rope_theta", 10000.0))),
        norm_eps=float(need("rms_norm_eps", 1e-6)),
        tied=bool(document.get("tie_word_embeddings", False)),
        rope_scaling=_scaling(scaling, place),
    )
    return _checked(config, place)


def _family(name: Any, place: str) -> Family:
    for family in FAMILIES:
        if family == name:
            return family
    raise UnsupportedModel(f"{place}: architecture {name!r} is not supported, only {', '.join(FAMILIES)}")


def _scaling(found: Mapping[str, Any], place: str) -> RopeScaling | None:
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in ("default", None):
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"{place}: rope scaling {kind!r} is not supported, only llama3")
    try:
        low, high = float(found["low_freq_factor"]), float(found["high_freq_factor"])
        return RopeScaling(float(found["factor"]), low, high, int(found["original_max_position_embeddings"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadWeights(f"{place}: rope scaling llama3 lacks a number: {error}") from None


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _checked(config: ModelConfig, place: str) -> ModelConfig:
    for name, limit in _LIMITS.items():
        value = getattr(config, name)
        if not _positive(value) or value > limit:
            raise BadWeights(f"{place}: {name} is {value!r}, expected a number from 1 to {limit}")
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise BadWeights(
            f"{place}: {config.heads} heads over {config.kv_heads} KV heads of {config.head_dim} do not divide evenly"
        )
    if not (config.rope_base > 0 and 0 < config.norm_eps < 1):
        raise BadWeights(f"{place}: rope base {config.rope_base} or norm epsilon {config.norm_eps} makes no sense")
    return config
