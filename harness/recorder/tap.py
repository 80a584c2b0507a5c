"""The tap on one call: its copy of what passes, decoded, masked, and appended to the spool.

Runs inside the proxy's event loop and never raises: where it fails, the call goes on unrecorded and the gap is counted.
What passes is only noted, with its time; `work` does the rest once the bytes are on their way, and `end` before the
client gets the last of them, so that a call whose end was seen is in the spool.
The request is kept in memory until it is whole, a reply until its next event is whole (or to its end, for replies that
are no event stream), so that masking sees whole texts. A long request is masked beside the event loop, in a thread.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Lock
from time import time_ns
from typing import Any, Protocol, TypeVar

import orjson

from harness.proxy.heads import Headers, value_of
from harness.proxy.routes import Target
from harness.recorder.decode import MAX_BODY, Decoder, decoder
from harness.recorder.journal import Kind, Record, Segment
from harness.recorder.redact import redacted_reply, redacted_request
from harness.recorder.secrets import Masker

HOLD_BYTES = 2**20
"""Bytes of a reply that is no event stream to keep back at most before they are written."""

REDACT_BYTES = 64 * 2**20
"""Bytes of a reply kept in memory where bodies are redacted."""

BIG = 64 * 2**10
"""Bytes of a request from which on its copy is worked on beside the event loop: a megabyte takes milliseconds."""

T = TypeVar("T")

_BORDERS = (b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\r")


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that is about to be forwarded."""

    method: bytes
    target: Target
    headers: Headers


class Sink(Protocol):
    """What the tap needs of the recorder."""

    masker: Masker
    redact: bool
    lock: Lock  # taps of programs that record in process may belong to several threads

    def place(self) -> tuple[Segment, int]:
        """A segment and a number for a call that begins."""
        ...

    def aside(self, step: Callable[[], T]) -> Future[T]:
        """Run a step in a thread of its own, after those before it."""
        ...

    def finished(self, tap: "Tap") -> None:
        """A call is whole in the spool."""
        ...

    def gap(self, reason: str) -> None:
        """A call is not recorded."""
        ...


@dataclass(slots=True)
class Tap:
    """One call being recorded. Methods may be called in any order after `request`; after `end` they do nothing."""

    sink: Sink
    opened: Opened
    id: str
    started: int = field(default_factory=time_ns)
    segment: Segment | None = None
    number: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    _ended: bool = False
    _sent: list[bytes] = field(default_factory=list)
    _size: int = 0
    _request_whole: bool = False
    _request_written: bool = False
    _head: tuple[int, int, Headers] | None = None
    _came: list[tuple[int, bytes]] = field(default_factory=list)
    _status: int = 0
    _stream: bool = False
    _decoder: Decoder | None = None
    _coding: str = ""
    _held: bytearray = field(default_factory=bytearray)
    _facts: dict[str, Any] = field(default_factory=lambda: {"wire": 0, "decoded": 0})
    _known: Mapping[bytes, bytes] = field(default_factory=dict)
    _aside: Future[list[Record]] | None = None
    _pending: list[Record] = field(default_factory=list)

    def request(self, piece: bytes) -> None:
        """A piece of the request's body."""
        self._size += len(piece)
        if not self._ended and self._size <= MAX_BODY:
            self._sent.append(piece)

    def request_done(self) -> None:
        """The request is whole."""
        self._request_whole = True

    def response_head(self, status: int, headers: Headers) -> None:
        """The reply's head has come."""
        if not self._ended:
            self._head = (time_ns(), status, headers)

    def response(self, piece: bytes) -> None:
        """A piece of the reply's body."""
        if not self._ended:
            self._came.append((time_ns(), piece))

    def work(self) -> None:
        """Spool what was noted so far."""
        if not self._ended:
            self._guarded(self._catch_up)

    def end(self, outcome: str) -> None:
        """The call has ended: complete, client_closed, upstream_closed or unreachable."""
        if not self._request_whole:
            self._facts["request_cut"] = outcome != "complete" or None
            self._request_whole = True
        self.work()
        aside = self._aside
        if aside is not None:
            wait((aside,))  # without the lock, which the thread may want first
        if not self._ended:
            self._guarded(self._write_end, outcome)
            self._ended = True

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            with self.sink.lock:
                step(*arguments)
        except OSError as error:
            self._fail(f"the spool cannot be written ({(error.strerror or 'error').lower()})")
        except Exception as error:  # whatever it is, the traffic goes on
            self._fail(f"{type(error).__name__} in {step.__name__}")

    def _fail(self, reason: str) -> None:
        self._ended = True
        self._sent, self._came, self._held = [], [], bytearray()
        if self.segment is not None:
            self.segment.release()
        self.sink.gap(reason)

    def _append(self, *records: Record) -> None:
        """Write records, or keep them while the request's own are not ready."""
        self._pending += records
        if self._aside is not None:
            if not self._aside.done():
                return
            self._pending[:0] = self._aside.result()
            self._aside = None
        if self._pending:
            if self.segment is None:
                self.segment, self.number = self.sink.place()
            self.segment.append(self.number, self._pending, self.places)
            self._pending = []

    def _catch_up(self) -> None:
        if self._request_whole and not self._request_written:
            self._write_request()
        if self._head is not None:
            head, self._head = self._head, None
            self._note_head(*head)
        came, self._came = self._came, []
        for at, piece in came:
            self._take(at, piece)

    def _write_request(self) -> None:
        masker, target, headers = self.sink.masker, self.opened.target, self.opened.headers
        wire, self._sent, self._request_written = b"".join(self._sent), [], True
        key = masker.learn(headers, target.path)
        self._known = masker.known
        facts = {
            "id": self.id,
            "method": self.opened.method.decode("latin-1"),
            "path": masker.text(target.path).decode("utf-8", "replace"),
            "upstream": target.origin.url,
            "run": target.run,
            "agent": target.agent,
            "api": target.api,
            "key_fp": key,
            "headers": masker.headers(headers),
            "wire": self._size,
            "redacted": self.sink.redact,
        }
        if len(wire) < BIG:
            self._append(*self._request_records(wire, facts))
            return
        self._aside = self.sink.aside(lambda: self._request_records(wire, facts))
        self.sink.aside(lambda: self._guarded(self._append))

    def _request_records(self, wire: bytes, facts: dict[str, Any]) -> list[Record]:
        """The request's records; changes nothing, so that any thread may run it."""
        masker = self.sink.masker
        coding = (value_of(self.opened.headers, b"content-encoding") or b"").decode("latin-1")
        unpacker = decoder(coding, wire[:4])
        plain = unpacker.feed(wire) if wire else b""
        body = masker.body(plain, self._known)
        facts |= {"size": len(plain), "digest": masker.digest(plain), "masked": body != plain, "note": unpacker.note}
        if len(wire) < self._size:
            facts["note"] = f"longer than {MAX_BODY} bytes; the copy ends before"
        if self.sink.redact:
            body = redacted_request(body, masker)
        records = [Record(Kind.OPEN, self.started, orjson.dumps(facts))]
        if body:
            records.append(Record(Kind.REQUEST, self.started, body))
        return records

    def _note_head(self, at: int, status: int, headers: Headers) -> None:
        self._status = status
        self._coding = (value_of(headers, b"content-encoding") or b"").decode("latin-1")
        self._stream = status < 400 and b"text/event-stream" in (value_of(headers, b"content-type") or b"").lower()
        facts = {"status": status, "headers": self.sink.masker.headers(headers), "stream": self._stream}
        # Goes to disk with the first bytes behind it.
        self._pending.append(Record(Kind.HEAD, at, orjson.dumps(facts)))

    def _take(self, at: int, piece: bytes) -> None:
        facts = self._facts
        facts["wire"] += len(piece)
        if self._decoder is None:
            facts["first_byte"] = at
            self._decoder = decoder(self._coding, piece[:4])
        plain = self._decoder.feed(piece)
        facts["decoded"] += len(plain)
        if facts["decoded"] > (REDACT_BYTES if self.sink.redact else MAX_BODY):
            facts["cut"] = True
            return
        self._held += plain
        if self.sink.redact:
            return
        cut = _whole_events(self._held, len(plain)) if self._stream else 0
        if not cut and len(self._held) > HOLD_BYTES:
            cut = len(self._held) - self.sink.masker.held_back(bytes(self._held[-4096:]), self._known)
        if cut:
            self._flush(at, cut)

    def _flush(self, at: int, count: int) -> None:
        data = bytes(self._held[:count])
        del self._held[:count]
        self._append(Record(Kind.RESPONSE, at, self._masked(data)))

    def _masked(self, data: bytes) -> bytes:
        """Texts of errors quote URLs, which nobody asked to keep word for word."""
        error = self._status >= 400 or b'"error"' in data
        return (self.sink.masker.text if error else self.sink.masker.body)(data, self._known)

    def _write_end(self, outcome: str) -> None:
        if self.sink.redact and self._held:
            body = redacted_reply(bytes(self._held), self._stream, self.opened.target.api, self.sink.masker)
            self._held = bytearray()
            self._pending.append(Record(Kind.RESPONSE, time_ns(), body))
        records = []
        if self._held:
            records.append(Record(Kind.RESPONSE, time_ns(), self._masked(bytes(self._held))))
            self._held = bytearray()
        note = self._decoder.note if self._decoder is not None else ""
        whole = getattr(self._decoder, "whole", True)
        facts = {**self._facts, "outcome": outcome, "note": note, "coding_whole": whole}
        records.append(Record(Kind.END, time_ns(), orjson.dumps(facts)))
        self._append(*records)
        self.sink.finished(self)


def _whole_events(held: bytearray, fresh: int) -> int:
    """Where the last whole event ends (0: none is whole), if only the last `fresh` bytes are new.

    An event is masked as a whole, wherever the network has cut it.
    """
    if held.endswith(b"\n\n"):
        return len(held)
    start = max(0, len(held) - fresh - 3)
    ends = (at + len(border) for border in _BORDERS if (at := held.rfind(border, start)) >= 0)
    return max(ends, default=0)
