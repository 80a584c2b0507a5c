"""The GGUF reader: what it reads, and one clear line for each kind of damage. Needs no torch."""

import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from localmodel.engine.errors import BadWeights, EngineError, MissingModel
from localmodel.engine.gguf import open_gguf

Tensor = tuple[str, tuple[int, ...], int, int]


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


KEYS = (
    key("general.architecture", 8, text("llama")),
    key("llama.block_count", 4, struct.pack("<I", 2)),
    key("llama.rope.freq_base", 6, struct.pack("<f", 0.5)),
    key("general.flag", 7, b"\x01"),
    key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("é")),
    key("tokenizer.ggml.token_type", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
)
TENSORS: tuple[Tensor, ...] = (("w", (4, 2), 0, 0), ("v", (32,), 2, 32))
DATA = struct.pack("<8f", *range(8)) + bytes(18)


def gguf(
    keys: Sequence[bytes] = KEYS,
    tensors: Sequence[Tensor] = TENSORS,
    data: bytes = DATA,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file; `counts` lies about the numbers of tensors and keys. Shapes are in the file's order, fastest first."""
    head = magic + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys)))) + b"".join(keys)
    for name, size, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(size)}QIQ", len(size), *size, kind, offset)
    return head + bytes(-len(head) % 32) + data


def test_reads_metadata_and_places_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    file = open_gguf(path)
    assert file.metadata == {
        "general.architecture": "llama", "llama.block_count": 2, "llama.rope.freq_base": 0.5, "general.flag": True,
        "tokenizer.ggml.tokens": ["a", "é"], "tokenizer.ggml.token_type": [1, -2, 3],
    }  # fmt: skip
    first, second = file.tensors["w"], file.tensors["v"]
    assert (first.shape, first.type, second.type, second.nbytes) == ((2, 4), "F32", "Q4_0", 18)
    assert struct.unpack("<8f", file.data[first.offset : first.offset + first.nbytes]) == tuple(range(8))


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (b"", "0 bytes are too few"),
        (gguf()[:23], "23 bytes are too few"),
        (gguf(magic=b"GGML"), "no GGUF file"),
        (gguf(version=1), "version 1"),
        (gguf(version=3 << 24), "big endian"),
        (gguf()[:200], "the file is cut or damaged"),
        (gguf()[:-1], "the download is incomplete"),
        (gguf(counts=(2, 1 << 60)), "metadata keys, at most"),
        (gguf(counts=(1 << 60, 6)), "tensors, at most"),
        (gguf(counts=(2, 7)), "damaged"),
        (gguf([key("k", 8, struct.pack("<Q", 1 << 63))]), "the file is cut or damaged"),
        (gguf([key("k", 9, struct.pack("<IQ", 4, 1 << 62))]), "the file is cut or damaged"),
        (gguf([key("k", 9, struct.pack("<IQ", 8, 1 << 40))]), "array elements, at most"),
        (gguf([key("k", 9, struct.pack("<IQ", 9, 1) * 9)]), "at depth 5"),
        (gguf([key("k", 13, b"")]), "value type 13"),
        (gguf([key("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment is 0"),
        (gguf(tensors=[("w", (4,) * 5, 0, 0)]), "5 dimensions of tensor w"),
        (gguf(tensors=[("w", (4, 2), 99, 0)]), "tensor w has the unknown type 99"),
        (gguf(tensors=[("w", (31,), 2, 0)]), "tensor w of shape"),
        (gguf(tensors=[("w", (0, 2), 0, 0)]), "tensor w of shape"),
        (gguf(tensors=[("w", (1 << 60, 1 << 60), 0, 0)]), "tensor w ends at byte"),
        (gguf(tensors=[("w", (4, 2), 0, 1 << 63)]), "tensor w ends at byte"),
        (gguf(tensors=[TENSORS[0], TENSORS[0]]), "tensor w is there twice"),
    ],
)
def test_damage_is_one_clear_line(tmp_path: Path, raw: bytes, fact: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(BadWeights) as found:
        open_gguf(path)
    line = str(found.value)
    assert fact in line
    assert line.startswith(str(path))
    assert "\n" not in line


def test_every_cut_and_many_random_damages_end_in_an_engine_error_or_a_file(tmp_path: Path) -> None:
    path, sound, draw = tmp_path / "m.gguf", gguf(), random.Random(1)
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        with pytest.raises(EngineError):
            open_gguf(path)
    for _ in range(500):
        broken = bytearray(sound)
        for _ in range(draw.randrange(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        path.write_bytes(broken)
        with suppress(EngineError):
            open_gguf(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match="cannot be read: No such file"):
        open_gguf(tmp_path / "none.gguf")
