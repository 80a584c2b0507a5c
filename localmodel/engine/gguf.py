"""Reader of GGUF files (versions 2 and 3, little endian): header, metadata and tensor index over a memory map.

The format is llama.cpp's (ggml/docs/gguf.md). Nothing is believed: every length is compared with what is left of the
file before it is used, so a damaged or hostile file ends in one line and takes no memory. No torch in here: what a
tensor's bytes mean is in `weights.py`.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from localmodel.engine.errors import BadWeights, MissingModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 1 << 16
MAX_METADATA = 1 << 16
MAX_NAME = 1 << 16
MAX_DIMENSIONS = 4
MAX_DEPTH = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# number -> (name, elements of a block, bytes of a block); ggml.h
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in torch's order (slowest first), `offset` and `nbytes` within the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file. `data` is the whole of it, mapped; close by dropping the last reference."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data: mmap.mmap


def open_gguf(path: Path) -> GgufFile:
    """Map `path` and read its index (a second for a vocabulary of 50,000). Raises MissingModel or BadWeights."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise BadWeights(f"{path}: {size} bytes are too few for a GGUF header (24), the download is incomplete")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise MissingModel(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return _Reader(path, data, size).read()
    except BadWeights:
        data.close()
        raise


class _Reader:
    """A position in the map; each step checks that the file holds what it promises."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path, self._data, self._size, self._at = path, data, size, 0
        self._readers: dict[int, Callable[[int], Any]] = {_STRING: self._text, _ARRAY: self._array}

    def read(self) -> GgufFile:
        if self._data[:4] != MAGIC:
            raise self._bad(f"begins with {self._data[:4]!r}, not {MAGIC!r}, this is no GGUF file")
        self._at = 4
        version = self._number("I")
        if version not in VERSIONS:
            raise self._bad(f"GGUF version {version} is not among {VERSIONS} (or big endian), convert it anew")
        tensors = self._count(self._number("Q"), MAX_TENSORS, "tensors")
        keys = self._count(self._number("Q"), MAX_METADATA, "metadata keys")
        metadata = dict(self._pair() for _ in range(keys))
        infos = [self._info() for _ in range(tensors)]
        return GgufFile(self._path, metadata, self._placed(infos, metadata), self._data)

    def _bad(self, fact: str) -> BadWeights:
        return BadWeights(f"{self._path}: {fact}")

    def _take(self, count: int) -> int:
        """The place of the next `count` bytes, which are then passed."""
        place = self._at
        if count > self._size - place:
            left = self._size - place
            raise self._bad(f"at byte {place}: {count} bytes are promised, {left} are left; the file is cut or damaged")
        self._at = place + count
        return place

    def _number(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self._data, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, count: int, limit: int, what: str) -> int:
        if count > limit:
            raise self._bad(f"at byte {self._at}: {count} {what}, at most {limit} are accepted; the file is damaged")
        return count

    def _text(self, depth: int = 0) -> str:
        length = self._number("Q")
        place = self._take(length)
        return self._data[place : place + length].decode("utf-8", errors="surrogateescape")

    def _pair(self) -> tuple[str, Any]:
        return self._name(), self._value(self._number("I"), 0)

    def _name(self) -> str:
        name = self._text()
        if len(name) > MAX_NAME:
            raise self._bad(f"at byte {self._at}: a name of {len(name)} characters, at most {MAX_NAME} are accepted")
        return name

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        reader = self._readers.get(kind)
        if reader is None or depth > MAX_DEPTH:
            raise self._bad(f"at byte {self._at}: value type {kind} at depth {depth} is unknown, the file is damaged")
        return reader(depth)

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            place = self._take(count * struct.calcsize("<" + code))
            return list(struct.unpack_from(f"<{count}{code}", self._data, place))
        # Each element takes eight bytes at least, so a promise beyond the file is seen before anything is read.
        self._count(count, (self._size - self._at) // 8, "array elements")
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._name()
        dimensions = self._count(self._number("I"), MAX_DIMENSIONS, f"dimensions of tensor {name}")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, self._number("I"), shape[::-1], self._number("Q")

    def _placed(
        self, infos: list[tuple[str, int, tuple[int, ...], int]], metadata: dict[str, Any]
    ) -> dict[str, TensorInfo]:
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 1 << 20:
            raise self._bad(f"general.alignment is {align!r}, expected a number from 1 to {1 << 20}")
        base = -(-self._at // align) * align
        found: dict[str, TensorInfo] = {}
        for name, kind, shape, offset in infos:
            if name in found:
                raise self._bad(f"tensor {name} is there twice, the file is damaged")
            found[name] = self._place(name, kind, shape, base + offset)
        return found

    def _place(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> TensorInfo:
        if kind not in TYPES:
            raise self._bad(f"tensor {name} has the unknown type {kind}, convert the model to Q8_0 or BF16")
        label, block, size = TYPES[kind]
        row = shape[-1] if shape else 1
        if row % block or not all(shape):
            raise self._bad(f"tensor {name} of shape {shape} cannot be {label}, which packs {block} elements")
        nbytes = prod(shape) // block * size
        if offset + nbytes > self._size:
            raise self._bad(
                f"tensor {name} ends at byte {offset + nbytes}, the file has {self._size}; the download is incomplete"
            )
        return TensorInfo(name, label, shape, offset, nbytes)
