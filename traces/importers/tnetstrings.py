"""Tagged netstrings, the coding of mitmproxy's flow files: `LENGTH:DATA` and a letter for the type.

Read here since the package that writes them brings a whole proxy along. Source: tnetstrings.org and mitmproxy's
additions (`;` for text beside `,` for bytes).
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from traces.errors import MalformedRow

MAX_DEPTH = 64
_DIGITS = 12


def records(file: BinaryIO, limit: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Offset, length and bytes of each record of a file; `None` for one above `limit` bytes, which is passed over.

    Raises `MalformedRow` where the file breaks off or is no netstring.
    """
    offset = file.tell()
    while head := file.read(_DIGITS + 1):
        digits, colon, _ = head.partition(b":")
        if not colon or not digits.isdigit():
            raise MalformedRow(f"byte {offset}: want a length and a colon, got {head[:20]!r}")
        length = len(digits) + 1 + int(digits) + 1
        file.seek(offset)
        raw = file.read(length) if length <= limit else None
        if raw is not None and len(raw) < length:
            raise MalformedRow(f"byte {offset}: the flow breaks off after {len(raw)} of {length} bytes")
        yield offset, length, raw
        offset += length
        file.seek(offset)


def loads(raw: bytes) -> Any:
    """The value of one record. Raises `MalformedRow`."""
    value, end = _value(raw, 0, 0)
    if end != len(raw):
        raise MalformedRow(f"{len(raw) - end} bytes too many behind a value")
    return value


def _value(raw: bytes, start: int, depth: int) -> tuple[Any, int]:
    colon = raw.find(b":", start, start + _DIGITS + 1)
    digits = raw[start:colon]
    if colon < 0 or not digits.isdigit():
        raise MalformedRow(f"byte {start}: want a length and a colon")
    end = colon + 1 + int(digits)
    if end >= len(raw) or depth > MAX_DEPTH:
        raise MalformedRow(f"byte {start}: a value of {int(digits)} bytes does not fit")
    return _typed(raw, colon + 1, end, depth), end + 1


def _typed(raw: bytes, start: int, end: int, depth: int) -> Any:
    data, kind = raw[start:end], raw[end : end + 1]
    if kind == b",":
        return data
    if kind == b";":
        return data.decode(errors="replace")
    if kind == b"~":
        return None
    if kind == b"!":
        return data == b"true"
    if kind in (b"#", b"^"):
        return _number(data, kind, start)
    if kind == b"]":
        return _list(raw, start, end, depth)
    if kind == b"}":
        pairs = _list(raw, start, end, depth)
        names = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in pairs[::2]]
        if len(pairs) % 2 or not all(isinstance(name, str) for name in names):
            raise MalformedRow(f"byte {start}: want an object of names and values")
        return dict(zip(names, pairs[1::2], strict=True))
    raise MalformedRow(f"byte {end}: type {kind!r} is not known")


def _number(data: bytes, kind: bytes, start: int) -> int | float:
    try:
        return int(data) if kind == b"#" else float(data)
    except ValueError:
        raise MalformedRow(f"byte {start}: want a number, got {data[:20]!r}") from None


def _list(raw: bytes, start: int, end: int, depth: int) -> list[Any]:
    found = []
    while start < end:
        value, start = _value(raw, start, depth + 1)
        found.append(value)
    if start != end:
        raise MalformedRow(f"byte {end}: a value goes over the end of its list")
    return found
