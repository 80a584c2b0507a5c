"""For tests of the proxy: a proxy in a thread, an upstream that works with raw bytes, and a client that does too."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditor.store import Store
from harness.proxy.routes import Routes, origin_of
from harness.proxy.serve import Proxy
from traces.exchange import Exchange
from tui.commands.recording import recording


@dataclass
class Connection:
    """One connection at the upstream: what came in so far, and a socket to answer through."""

    socket: socket.socket
    raw: bytes = b""

    def head(self) -> bytes:
        """Read up to the end of a head, and return what came in up to there."""
        while b"\r\n\r\n" not in self.raw:
            self._more()
        return self.raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def body(self, length: int) -> bytes:
        """Read a body of `length` bytes behind the head."""
        start = len(self.head())
        while len(self.raw) < start + length:
            self._more()
        return self.raw[start : start + length]

    def request(self) -> tuple[bytes, bytes]:
        """Read one request with a Content-Length or chunks: (head, body); the next one starts afresh."""
        head = self.head()
        low = head.lower()
        if b"transfer-encoding: chunked" in low:
            while not self.raw.endswith(b"0\r\n\r\n"):
                self._more()
            body = dechunked(self.raw[len(head) :])
        else:
            length = int(low.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in low else 0
            body = self.body(length)
        self.raw = b""
        return head, body

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def reset(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def _more(self) -> None:
        data = self.socket.recv(2**16)
        if not data:
            raise EOFError
        self.raw += data


@contextmanager
def upstream(handle: Callable[[Connection], None]) -> Iterator[str]:
    """A server that hands each connection to `handle` in a thread and closes it afterwards; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def serve() -> None:
        while True:
            try:
                found, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(found,), daemon=True).start()

    def one(found: socket.socket) -> None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with found, suppress(EOFError, OSError):
            handle(Connection(found))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@dataclass
class Running:
    """A proxy that records into `db`, and what it said."""

    proxy: Proxy
    db: Path
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.proxy.port

    @contextmanager
    def client(self) -> Iterator[socket.socket]:
        with socket.create_connection(self.address, timeout=20) as found:
            yield found


@contextmanager
def proxied(db: Path, *upstreams: str, **options: Any) -> Iterator[Running]:
    """A proxy in a thread of its own; after the block all that is finished is in the database."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    said: list[str] = []
    try:
        with recording(Routes([origin_of(one) for one in upstreams]), db, say=said.append, **options) as proxy:
            asyncio.run_coroutine_threadsafe(proxy.listen("127.0.0.1", 0), loop).result(10)
            try:
                yield Running(proxy, db, said)
            finally:
                asyncio.run_coroutine_threadsafe(proxy.stop(5.0), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def recorded(db: Path) -> list[Exchange]:
    """All exchanges of a database, oldest first."""
    with Store.open(db) as store:
        return list(store.exchanges())


def post(path: str, body: bytes, *fields: str) -> bytes:
    """A request with a Content-Length."""
    lines = [f"POST {path} HTTP/1.1", "Host: proxy.test", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer(body: bytes, *fields: str, status: str = "200 OK") -> bytes:
    """A reply with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunks(*pieces: bytes) -> list[bytes]:
    """Pieces of a chunked body, the last one included."""
    return [*(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece), b"0\r\n\r\n"]


def dechunked(raw: bytes) -> bytes:
    """The body of a complete chunked one."""
    body = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if not length:
            return body
        body, raw = body + raw[:length], raw[length + 2 :]


def read_all(client: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    while piece := client.recv(2**16):
        data += piece
    return data


def read_reply(client: socket.socket) -> tuple[bytes, bytes]:
    """One reply on a connection that stays open: (head, body), chunks put together."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(client)
    head, _, body = data.partition(b"\r\n\r\n")
    low = head.lower() + b"\r\n"
    if b"transfer-encoding: chunked" in low:
        while not body.endswith(b"0\r\n\r\n"):
            body += _received(client)
        return head, dechunked(body)
    length = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _received(client)
    return head, body


def _received(client: socket.socket) -> bytes:
    data = client.recv(2**16)
    if not data:
        raise EOFError
    return data
