"""HTTP bodies of captures as text: base64, gzip and deflate undone, as far as they go."""

import base64
import binascii
import zlib

import orjson

from traces import rows
from traces.errors import MalformedRow
from traces.schema import JsonObject

LIMIT = 64 * 2**20
"""Bytes of an unpacked body at most."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def from_base64(text: str) -> bytes:
    """Raises `MalformedRow` for text that is no base64."""
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError) as error:
        raise MalformedRow(f"body is no base64 ({error})") from None


def unpacked(data: bytes, coding: str = "") -> str:
    """The text of a body that may still be packed; one that was cut gives what stands before the cut.

    `coding` is the content-encoding header, which recorders keep after unpacking, so the bytes themselves decide.
    Raises `MalformedRow` for a coding that is not known here.
    """
    if data.startswith(_GZIP):
        data = _inflated(data, 47)
    elif coding == "deflate" and data[:1] == b"\x78":
        data = _inflated(data, 15)
    elif data.startswith(_ZSTD) or (coding == "br" and not _is_text(data)):
        raise MalformedRow(f"body is packed with {'zstd' if data.startswith(_ZSTD) else 'br'}; record it unpacked")
    return data.decode(errors="replace")


def json_object(text: str) -> JsonObject | None:
    """A body as an object, `None` where it is none."""
    try:
        value = rows.loads(text.encode())
    except (MalformedRow, UnicodeEncodeError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _inflated(data: bytes, bits: int) -> bytes:
    try:
        return zlib.decompressobj(bits).decompress(data, LIMIT)
    except zlib.error as error:
        raise MalformedRow(f"packed body is damaged ({error})") from None


def _is_text(data: bytes) -> bool:
    try:
        data[:4096].decode()
    except UnicodeDecodeError as error:
        return error.start > 4090
    return True
