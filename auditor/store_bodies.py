"""A request body taken apart into a skeleton and content blocks, and put together again exactly.

The calls of one agent repeat almost all of their bodies. Each content block (a tool, a system text, a part of a
message) is stored once under its digest; what is left of a body, its skeleton, is small. Cache markers are not
content: they stay in the skeleton, so that a block with and without `cache_control` is one stored block.

References stand in the places where blocks stood, and what a reference looks like follows from the place alone, so
that no body can be mistaken for one:

    a text that was one block (system, a message's content)     ""
    an item of a list of blocks                                 0
    the same with a marker                                      [position of the marker's key, marker]

A message without parts (an item of `input` in the Responses format) is one block. A body of any other shape has no
blocks and is its own skeleton.

JSON text is orjson's. What orjson cannot write or would write differently (integers beyond 64 bits, lone surrogates,
deep nesting, NaN) is the standard library's text behind one blank, which is still JSON.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import orjson

from traces.schema import JsonObject

DIGEST_BYTES = 16
"""Length of the digests of blocks and calls: 2^64 blocks before a collision becomes likely."""

WORTH_PACKING = 512
"""Bytes below which compression gains less than it costs."""

_SMALL_WINDOW = 1 << 13

# Their order is the order of a body's blocks, and so part of the format of stored files, as the names are.
_BLOCK_LISTS = ("tools", "system", "instructions")
_MESSAGE_LISTS = ("messages", "input", "contents")
_PARTS = ("content", "tool_calls", "parts")
_MARKER = "cache_control"


def digest(data: bytes) -> bytes:
    """Return the 16 bytes under which `data` is stored."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def dumps(value: Any) -> bytes:
    """Return JSON text of `value` from which `loads` gives the same value, keys in the same order.

    Raises RecursionError for nesting that the standard library cannot write either.
    """
    try:
        text = orjson.dumps(value)
    except TypeError:
        return _dumps_slowly(value)
    # orjson writes NaN and the infinities as null without a word.
    if b"null" in text and orjson.loads(text) != value:
        return _dumps_slowly(value)
    return text


def loads(text: bytes) -> Any:
    """Return the value that `dumps` wrote."""
    return json.loads(text) if text.startswith(b" ") else orjson.loads(text)


def _dumps_slowly(value: Any) -> bytes:
    return b" " + json.dumps(value, separators=(",", ":")).encode()


def pack(text: bytes) -> bytes:
    """Compress JSON text at zlib's level 1 where that helps.

    Short texts get a window of 8 kB: setting up the usual one takes longer than compressing them. The first byte is
    then "X", else "x"; no JSON text begins so.
    """
    if len(text) <= WORTH_PACKING:
        return text
    small = len(text) <= _SMALL_WINDOW
    packer = zlib.compressobj(1, wbits=13, memLevel=6) if small else zlib.compressobj(1)
    packed = packer.compress(text) + packer.flush()
    return packed if len(packed) < len(text) else text


def unpack(data: bytes) -> bytes:
    """Undo `pack`. Raises zlib.error for damaged data."""
    return zlib.decompress(data) if data.startswith((b"x", b"X")) else data


def split(body: JsonObject) -> tuple[JsonObject, list[Any]]:
    """Take a request body apart: its skeleton and its blocks without markers, in the order of their references."""
    blocks: list[Any] = []
    skeleton = body.copy()
    for key in _BLOCK_LISTS:
        if key in skeleton:
            skeleton[key] = _split_place(skeleton[key], blocks, _split_block)
    for key in _MESSAGE_LISTS:
        if key in skeleton:
            skeleton[key] = _split_place(skeleton[key], blocks, _split_message)
    return skeleton, blocks


def join(skeleton: JsonObject, texts: Iterator[bytes]) -> JsonObject:
    """Put a body together again from its skeleton, which it replaces, and the texts of its blocks in order."""
    for key in _BLOCK_LISTS:
        if key in skeleton:
            skeleton[key] = _join_place(skeleton[key], texts, _join_block)
    for key in _MESSAGE_LISTS:
        if key in skeleton:
            skeleton[key] = _join_place(skeleton[key], texts, _join_message)
    return skeleton


def _split_place(value: Any, blocks: list[Any], split_item: Callable[[Any, list[Any]], Any]) -> Any:
    if isinstance(value, list):
        return [split_item(each, blocks) for each in value]
    if isinstance(value, str):
        blocks.append(value)
        return ""
    return value


def _split_message(message: Any, blocks: list[Any]) -> Any:
    if not isinstance(message, dict):
        return _split_block(message, blocks)
    skeleton = None
    for key in _PARTS:
        if key in message:
            skeleton = skeleton or message.copy()
            skeleton[key] = _split_place(message[key], blocks, _split_block)
    return skeleton or _split_block(message, blocks)


def _split_block(block: Any, blocks: list[Any]) -> Any:
    if not isinstance(block, dict) or _MARKER not in block:
        blocks.append(block)
        return 0
    blocks.append({key: value for key, value in block.items() if key != _MARKER})
    return [list(block).index(_MARKER), block[_MARKER]]


def _join_place(value: Any, texts: Iterator[bytes], join_item: Callable[[Any, Iterator[bytes]], Any]) -> Any:
    if isinstance(value, list):
        return [join_item(each, texts) for each in value]
    return loads(next(texts)) if value == "" else value


def _join_message(message: Any, texts: Iterator[bytes]) -> Any:
    if not isinstance(message, dict):
        return _join_block(message, texts)
    for key in _PARTS:
        if key in message:
            message[key] = _join_place(message[key], texts, _join_block)
    return message


def _join_block(reference: Any, texts: Iterator[bytes]) -> Any:
    block = loads(next(texts))
    if reference == 0:
        return block
    position, marker = reference
    entries = list(block.items())
    entries.insert(position, (_MARKER, marker))
    return dict(entries)
