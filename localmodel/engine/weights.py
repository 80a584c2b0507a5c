"""Weights of a model as torch tensors, by the names of this engine, from a GGUF file or a Hugging Face folder.

Names: `embed`, `norm`, `head` (absent when tied), and for layer i `i.attn_norm`, `i.qkv`, `i.qkv_bias`, `i.q_norm`,
`i.k_norm`, `i.o`, `i.ffn_norm`, `i.gate_up`, `i.down`; matrices are [out, in] as `torch.nn.functional.linear` takes
them, q, k and v (and gate and up) in one. Values are dequantised to float32 and rounded once to the dtype asked for.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import xxhash

from localmodel.engine.backend import default_dtype
from localmodel.engine.config import ModelConfig, from_gguf, from_hf
from localmodel.engine.errors import BadWeights, MissingModel, UnsupportedModel
from localmodel.engine.gguf import GgufFile, TensorInfo, open_gguf

CHUNK = 1 << 24
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_WIDE = "norm"  # the weights of norms stay in float32: they are few, and the norm multiplies in float32


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model on one device. `identity` is a digest of the files' bytes, `rope_factors` are divisors."""

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    identity: str
    rope_factors: torch.Tensor | None = None


class Source(Protocol):
    """Where tensors come from, by the names of Hugging Face's llama, as float32 or in their own float type."""

    place: str

    def get(self, name: str) -> torch.Tensor:
        """The tensor. Raises BadWeights if it is missing."""
        ...


def load(path: Path, *, dtype: torch.dtype | None = None, device: str = "cpu") -> Weights:
    """Weights from a `.gguf` file or a folder with config.json and safetensors; dtype as `load_gguf` says.

    Raises MissingModel, BadWeights or UnsupportedModel.
    """
    if path.is_dir():
        return _load_hf(path, dtype or default_dtype(device), device)
    return load_gguf(open_gguf(path), dtype=dtype, device=device)


def load_gguf(file: GgufFile, *, dtype: torch.dtype | None = None, device: str = "cpu") -> Weights:
    """Weights from an open GGUF file. dtype left out: bfloat16 where the device multiplies it, else float32."""
    dtype = dtype or default_dtype(device)
    source = _GgufSource(file)
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise BadWeights(f"{file.path}: tensor token_embd.weight is missing, the file is no complete model")
    config = from_gguf(
        file.metadata, vocab=embed.shape[0], tied="output.weight" not in file.tensors, place=str(file.path)
    )
    source.config = config
    factors = source.raw("rope_freqs.weight").to(device) if "rope_freqs.weight" in file.tensors else None
    return Weights(config, _assemble(config, source, dtype, device), digest([file.path]), factors)


def _load_hf(folder: Path, dtype: torch.dtype, device: str) -> Weights:
    config = from_hf(_json(folder / "config.json"), place=str(folder / "config.json"))
    source = _HfSource(folder)
    files = [folder / "config.json", *source.files]
    return Weights(config, _assemble(config, source, dtype, device), digest(files))


def digest(files: Iterable[Path]) -> str:
    """Identity of weights: xxh3-128 over size and bytes of each file, in order (10 GB/s; not against forgery)."""
    state = xxhash.xxh3_128()
    for path in files:
        state.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                state.update(piece)
    return state.hexdigest()


def _assemble(config: ModelConfig, source: Source, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    dim, ffn = config.dim, config.ffn
    found: dict[str, torch.Tensor] = {}

    def put(name: str, *parts: tuple[str, tuple[int, ...]]) -> None:
        kept = torch.float32 if name.endswith(_WIDE) else dtype
        tensors = [_shaped(source, part, shape).to(kept) for part, shape in parts]
        found[name] = (tensors[0] if len(tensors) == 1 else torch.cat(tensors)).contiguous().to(device)

    put("embed", ("model.embed_tokens.weight", (config.vocab, dim)))
    put("norm", ("model.norm.weight", (dim,)))
    if not config.tied:
        put("head", ("lm_head.weight", (config.vocab, dim)))
    for i in range(config.layers):
        attn, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        put(f"{i}.attn_norm", (f"model.layers.{i}.input_layernorm.weight", (dim,)))
        put(f"{i}.qkv", *((f"{attn}{n}_proj.weight", (size, dim)) for n, size in (("q", q), ("k", kv), ("v", kv))))
        if config.family == "qwen2":
            put(f"{i}.qkv_bias", *((f"{attn}{n}_proj.bias", (size,)) for n, size in (("q", q), ("k", kv), ("v", kv))))
        if config.family == "qwen3":
            put(f"{i}.q_norm", (f"{attn}q_norm.weight", (config.head_dim,)))
            put(f"{i}.k_norm", (f"{attn}k_norm.weight", (config.head_dim,)))
        put(f"{i}.o", (f"{attn}o_proj.weight", (dim, q)))
        put(f"{i}.ffn_norm", (f"model.layers.{i}.post_attention_layernorm.weight", (dim,)))
        put(f"{i}.gate_up", (f"{mlp}gate_proj.weight", (ffn, dim)), (f"{mlp}up_proj.weight", (ffn, dim)))
        put(f"{i}.down", (f"{mlp}down_proj.weight", (dim, ffn)))
    return found


def _shaped(source: Source, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = source.get(name)
    if tuple(tensor.shape) != shape:
        raise BadWeights(f"{source.place}: tensor {name} has shape {tuple(tensor.shape)}, configured is {shape}")
    return tensor


_GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class _GgufSource:
    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.place = str(file.path)
        self.config: ModelConfig | None = None

    def get(self, name: str) -> torch.Tensor:
        stem, _, kind = name.rpartition(".")
        if stem in _GGUF_TOP:
            return self.raw(f"{_GGUF_TOP[stem]}.{kind}")
        _, _, layer, part = stem.split(".", 3)
        found = self.raw(f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}")
        config = self.config
        if config is not None and config.family == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            return _unpermute(found, config.heads if part.endswith("q_proj") else config.kv_heads)
        return found

    def raw(self, name: str) -> torch.Tensor:
        """A tensor by its own name, dequantised."""
        info = self._file.tensors.get(name)
        if info is None:
            raise BadWeights(f"{self.place}: tensor {name} is missing, the file is no complete model")
        return dequantise(self._file, info)


def _unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of q and k rows (pairs interleaved) for rotary halves; convert_hf_to_gguf.py `permute`."""
    if rows.shape[0] % (2 * heads):
        raise BadWeights(f"a matrix of {rows.shape[0]} rows cannot be split among {heads} heads")
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def dequantise(file: GgufFile, info: TensorInfo) -> torch.Tensor:
    """A tensor of a GGUF file: F32, F16 and BF16 as they are, quantised ones as float32, equal to `gguf.dequantize`.

    Raises UnsupportedModel for types that need the `gguf` package where that is missing.
    """
    raw = _bytes(file, info)
    if info.type in _FLOATS:
        return raw.view(_FLOATS[info.type]).view(info.shape)
    blocks = _BLOCKS.get(info.type)
    if blocks is None:
        return _by_package(file, info)
    return blocks(raw).reshape(info.shape)


def _bytes(file: GgufFile, info: TensorInfo) -> torch.Tensor:
    # A copy: torch must not hold a read-only map (it warns), and views by dtype need an aligned start.
    return torch.frombuffer(bytearray(file.data[info.offset : info.offset + info.nbytes]), dtype=torch.uint8)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """16 bytes -> 32 numbers: the low halves first, then the high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _q4_0(raw: torch.Tensor) -> torch.Tensor:
    blocks = raw.view(-1, 18)
    return (_nibbles(blocks[:, 2:]).to(torch.int8) - 8).float() * _half(blocks, 0)


def _q4_1(raw: torch.Tensor) -> torch.Tensor:
    blocks = raw.view(-1, 20)
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(raw: torch.Tensor) -> torch.Tensor:
    blocks = raw.view(-1, 34)
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}


def _by_package(file: GgufFile, info: TensorInfo) -> torch.Tensor:
    try:
        import gguf
        import numpy
    except ImportError:
        raise UnsupportedModel(
            f"{file.path}: tensor {info.name} is {info.type}, which needs `pip install gguf` (or convert it to Q8_0)"
        ) from None
    kind = getattr(gguf.GGMLQuantizationType, info.type)
    raw = numpy.frombuffer(file.data, dtype=numpy.uint8, count=info.nbytes, offset=info.offset)
    try:
        found = gguf.dequantize(raw.reshape(*info.shape[:-1], -1), kind)
    except NotImplementedError:
        raise UnsupportedModel(f"{file.path}: tensor {info.name} is {info.type}, which gguf cannot unpack") from None
    return torch.from_numpy(numpy.array(found, dtype=numpy.float32))


class _HfSource:
    def __init__(self, folder: Path) -> None:
        try:
            from safetensors import safe_open
        except ImportError:
            raise UnsupportedModel(f"{folder}: needs safetensors: pip install 'cachewright[local]'") from None
        self._folder, self.place, self._open = folder, str(folder), safe_open
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._where: dict[str, str] = _weight_map(index)
        else:
            self._where = dict.fromkeys(self._names("model.safetensors"), "model.safetensors")
        self.files = [folder / name for name in sorted(set(self._where.values()))]

    def _names(self, file: str) -> list[str]:
        if not (self._folder / file).is_file():
            raise MissingModel(f"{self._folder}: holds no {file}, give a folder with config.json and safetensors")
        with self._safe(file) as opened:
            return list(opened.keys())

    def _safe(self, file: str) -> Any:
        try:
            return self._open(str(self._folder / file), framework="pt")
        except Exception as error:  # safetensors raises its own class for a bad header and OSError for a missing file
            raise BadWeights(f"{self._folder / file}: cannot be opened: {_first_line(error)}") from None

    def get(self, name: str) -> torch.Tensor:
        file = self._where.get(name)
        if file is None:
            raise BadWeights(f"{self.place}: tensor {name} is missing, the folder is no complete model")
        with self._safe(file) as opened:
            found: torch.Tensor = opened.get_tensor(name)
        return found


def _weight_map(index: Path) -> dict[str, str]:
    found = _json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise BadWeights(f"{index}: weight_map is missing or no map of names to files")
    for name in set(found.values()):
        if Path(name).name != name:  # a model folder must not reach outside itself
            raise BadWeights(f"{index}: weight_map names {name!r}, expected a file of the same folder")
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise MissingModel(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadWeights(f"{path}: is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadWeights(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
