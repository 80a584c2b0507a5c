"""Weights: dequantisation equal to the `gguf` package, damage in model folders, identity."""

import json
import mmap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from localmodel.engine.config import from_gguf, from_hf  # noqa: E402
from localmodel.engine.errors import BadWeights, EngineError, MissingModel  # noqa: E402
from localmodel.engine.gguf import GgufFile, TensorInfo, open_gguf  # noqa: E402
from localmodel.engine.weights import dequantise, digest, load, load_gguf  # noqa: E402

METADATA = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64, "llama.context_length": 128,
    "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.feed_forward_length": 96,
}  # fmt: skip
HF = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf", reason="the package gguf is not installed (oracle of dequantisation)")


@pytest.mark.parametrize(
    ("name", "block", "scales"),
    [
        ("F32", 4, slice(None)), ("F16", 2, slice(None)), ("BF16", 2, slice(None)), ("Q4_0", 18, slice(2)),
        ("Q4_1", 20, slice(4)), ("Q8_0", 34, slice(2)), ("Q4_K", 144, slice(4)), ("Q6_K", 210, slice(208, 210)),
    ],
)  # fmt: skip
def test_dequantises_as_the_gguf_package_does(tmp_path: Path, gguf: Any, name: str, block: int, scales: slice) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    random = numpy.random.default_rng(2)
    raw = random.integers(0, 256, size=(6, 4 * block), dtype=numpy.uint8)
    raw.reshape(-1, block)[:, scales] &= 0xBF  # no exponent of all ones: no NaN
    kind = getattr(gguf.GGMLQuantizationType, name)
    wanted = gguf.dequantize(raw, kind)
    path = tmp_path / "raw"
    path.write_bytes(bytes(5) + raw.tobytes())
    with path.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    info = TensorInfo("w", name, tuple(wanted.shape), 5, raw.nbytes)
    found = dequantise(GgufFile(path, {}, {"w": info}, data), info).float().numpy()
    assert numpy.array_equal(found, wanted, equal_nan=True)


def test_every_tensor_of_the_default_model_equals_the_gguf_package(gguf_path: Path, gguf: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    file = open_gguf(gguf_path)
    reader = gguf.GGUFReader(str(gguf_path))
    assert len(reader.tensors) == len(file.tensors) == 272
    for tensor in reader.tensors[:: 1 if len(reader.tensors) < 50 else 9]:
        found = dequantise(file, file.tensors[tensor.name]).numpy()
        assert numpy.array_equal(found, gguf.dequantize(tensor.data, tensor.tensor_type)), tensor.name


def test_a_gguf_without_a_layer_is_refused_by_name(gguf_path: Path) -> None:
    file = open_gguf(gguf_path)
    del file.tensors["blk.3.attn_k.weight"]
    with pytest.raises(BadWeights, match=r"tensor blk\.3\.attn_k\.weight is missing"):
        load_gguf(file)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported, only llama"),
        ({"general.architecture": None}, "None is not supported"),
        ({"llama.block_count": 0}, "layers is 0"),
        ({"llama.block_count": 1 << 40}, "layers is 1099511627776"),
        ({"llama.attention.head_count": "x"}, "heads is 'x'"),
        ({"llama.attention.head_count_kv": 3}, "do not divide evenly"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling yarn"),
        ({"llama.attention.layer_norm_rms_epsilon": 7.0}, "makes no sense"),
    ],
)
def test_absurd_gguf_metadata_are_one_line(change: dict[str, Any], fact: str) -> None:
    assert from_gguf(METADATA, vocab=100, tied=True, place="m").head_dim == 16
    with pytest.raises(EngineError, match=fact):
        from_gguf(METADATA | change, vocab=100, tied=True, place="m")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"model_type": "gemma"}, "'gemma' is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"attention_bias": True}, "biases of llama"),
        ({"use_sliding_window": True}, "sliding windows"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "lacks a number"),
    ],
)
def test_absurd_hf_configurations_are_one_line(change: dict[str, Any], fact: str) -> None:
    assert from_hf(HF, place="c").groups == 2
    with pytest.raises(EngineError, match=fact):
        from_hf(HF | change, place="c")


def test_damaged_folders_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    with pytest.raises(MissingModel, match=r"config\.json: cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadWeights, match="is no JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(HF))
    with pytest.raises(MissingModel, match=r"holds no model\.safetensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(BadWeights, match="cannot be opened"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../secret"}}))
    with pytest.raises(BadWeights, match="a file of the same folder"):
        load(tmp_path)


def test_identity_follows_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"ab")
    first = digest([path])
    path.write_bytes(b"ac")
    assert digest([path]) != first
    other = tmp_path / "v"
    other.write_bytes(b"c")
    path.write_bytes(b"ab")
    assert digest([path, other]) != digest([other, path])
    assert digest([path]) == first
