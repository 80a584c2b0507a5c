"""Content codings taken off the recorder's copy. The wire path never decodes anything."""

import sys
import zlib
from typing import Any, Protocol

MAX_BODY = 256 * 2**20
"""Decoded bytes kept of one body; beyond it the copy is cut and says so."""

_STEP = 2**20

_MARKS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}


class Decoder(Protocol):
    """Takes a body in pieces. `note` says what is wrong with the copy, "" where nothing is."""

    note: str

    def feed(self, data: bytes) -> bytes:
        """What these bytes decode to."""
        ...


class Plain:
    """No coding, or one that is not known: the copy is what was on the wire."""

    def __init__(self, note: str = "") -> None:
        self.note = note

    def feed(self, data: bytes) -> bytes:
        return data


class Unpacker:
    """One coding, piece by piece, each step bounded so that no bomb goes off. Damage ends the copy with a note."""

    def __init__(self, coding: str) -> None:
        self.note = ""
        self._coding = coding
        self._engine = _engine(coding)
        self._size = 0

    @property
    def whole(self) -> bool:
        """Whether the coding's own end was seen."""
        if self.note:
            return False
        return bool(self._engine.is_finished() if self._coding == "br" else self._engine.eof)

    def feed(self, data: bytes) -> bytes:
        if self.note:
            return b""
        parts: list[bytes] = []
        try:
            self._run(data, parts)
        except Exception as error:  # three libraries, each with errors of its own
            self.note = f"{self._coding} data is damaged ({type(error).__name__}); the copy ends there"
        return b"".join(parts)

    def _run(self, data: bytes, parts: list[bytes]) -> None:
        while data or not self._hungry():
            piece = self._step(data)
            self._size += len(piece)
            parts.append(piece)
            if self._size > MAX_BODY:
                self.note = f"decodes to more than {MAX_BODY} bytes; the copy ends there"
                return
            data = self._rest()
            if data and self._coding != "br" and self._engine.eof:
                data, self._engine = self._engine.unused_data, _engine(self._coding)  # members and frames may follow
            elif not piece:
                return

    def _step(self, data: bytes) -> bytes:
        engine = self._engine
        if self._coding == "br":
            return bytes(engine.process(data, output_buffer_limit=_STEP))
        return bytes(engine.decompress(data, _STEP))

    def _rest(self) -> bytes:
        if self._coding == "br":
            return b""
        if self._engine.eof:
            return bytes(self._engine.unused_data)
        return bytes(getattr(self._engine, "unconsumed_tail", b""))

    def _hungry(self) -> bool:
        """Whether more output needs more input."""
        if self._coding == "br":
            return bool(self._engine.can_accept_more_data())
        if self._coding == "zstd":
            return bool(self._engine.needs_input or self._engine.eof)
        return True


def _engine(coding: str) -> Any:
    if coding == "br":
        import brotli

        return brotli.Decompressor()
    if coding == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return zstd.ZstdDecompressor()
    return zlib.decompressobj(zlib.MAX_WBITS | 32)


def decoder(coding: str, start: bytes) -> Decoder:
    """The decoder for a `Content-Encoding` value ("" for none) of a body that begins with `start`.

    A body that carries the mark of gzip or zstd is decoded without being announced: some servers forget to.
    """
    if not coding and not start.startswith(tuple(_MARKS)):
        return Plain()
    names = [name.strip().lower().removeprefix("x-") for name in coding.split(",") if name.strip()]
    names = [name for name in names if name != "identity"]
    if not names:
        mark = next((name for sign, name in _MARKS.items() if start.startswith(sign)), "")
        return Unpacker(mark) if mark else Plain()
    if len(names) > 1 or names[0] not in ("gzip", "deflate", "br", "zstd"):
        return Plain(f"content-encoding {coding[:40]!r} is not known here; the body is kept undecoded")
    return Unpacker(names[0])
