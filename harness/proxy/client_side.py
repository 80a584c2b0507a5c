"""The client's half of the proxy: one connection from a client, and the one to the upstream that it is paired with.

Connections are paired and never pooled. An upstream that closes an idle connection closes the client's with it, so a
client sees what it would see without the proxy, and no request has to be sent twice. Nothing times out here: the
client's own patience decides (clients wait up to 600 s).
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus

import httptools
import orjson

from harness.errors import BadRoute
from harness.proxy.heads import HEAD_BYTES, LAST_CHUNK, Headers, chunk, is_chunked, request_head, value_of
from harness.proxy.routes import Origin, Routes
from harness.proxy.server_side import ServerSide
from harness.recorder.tap import Opened, Tap
from localmodel.prometheus import KIND

OpenTap = Callable[[Opened], Tap]
Page = Callable[[bytes], bytes | None]
"""The proxy's own pages by path (`/metrics`): a text, or `None` for what is to be forwarded."""


@dataclass(slots=True)
class Inbound:
    """One request as it comes in. `waiting` holds pieces of the body that cannot be forwarded yet."""

    method: bytes
    url: bytes
    headers: Headers
    old: bool
    keep_alive: bool
    chunked: bool
    waiting: list[bytes] = field(default_factory=list)
    complete: bool = False


class ClientSide(asyncio.Protocol):
    """Parses what a client sends and forwards it piece by piece; `ServerSide` writes the replies back."""

    def __init__(self, routes: Routes, open_tap: OpenTap, page: Page, open_ones: "set[ClientSide]") -> None:
        self._routes = routes
        self._open_tap = open_tap
        self._page = page
        self._open_ones = open_ones
        self.transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Inbound] = deque()
        self._reading: Inbound | None = None
        self._url, self._fields = b"", Headers()
        self._head_bytes = 0
        self._out: list[bytes] = []
        self._server: ServerSide | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.tap: Tap | None = None

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open_ones.add(self)

    def data_received(self, data: bytes) -> None:
        """Forward what this data completes, in one write."""
        self._head_bytes = self._head_bytes + len(data) if self._reading is None else 0
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"a head of more than {HEAD_BYTES} bytes")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here: the request goes on without the offer
        except httptools.HttpParserError as error:
            self._malformed(type(error).__name__)
            return
        self._send_up()
        if self._server is not None:
            self._server.settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: what it asked for is cancelled upstream at once."""
        self._open_ones.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self.tap is not None:
            self.tap.end("client_closed")
            self.tap = None
        if self._server is not None:
            self._server.drop()
            self._server = None

    def pause_writing(self) -> None:
        """The client reads slowly: let the upstream wait."""
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._server is not None:
            self._server.transport.resume_reading()

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._url, self._fields, self._reading = b"", Headers(), None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # later ones are trailers
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        old = parser.get_http_version() == "1.0"
        keep = parser.should_keep_alive() and not old
        self._head_bytes = 0
        self._reading = Inbound(parser.get_method(), self._url, fields, old, keep, is_chunked(fields))
        self._queue.append(self._reading)
        if len(self._queue) == 1:
            self._start()
        else:
            self.transport.pause_reading()  # sent ahead: it waits for its turn

    def on_body(self, body: bytes) -> None:
        inbound = self._reading
        assert inbound is not None
        if inbound is self._active and self._server is not None:
            self._forward(inbound, body)
        else:
            inbound.waiting.append(body)

    def on_message_complete(self) -> None:
        inbound = self._reading
        if inbound is None:
            return
        inbound.complete = True
        if inbound is self._active and self._server is not None:
            self._forward_end(inbound)

    # One request at a time.

    @property
    def _active(self) -> Inbound | None:
        return self._queue[0] if self._queue else None

    def _start(self) -> None:
        """Begin with the request at the front of the queue."""
        inbound = self._queue[0]
        own = self._page(inbound.url) if inbound.method == b"GET" else None
        if own is not None:
            self._answer(b"200 OK", KIND.encode(), own)
            return
        if b"websocket" in (value_of(inbound.headers, b"upgrade") or b"").lower():
            self._refuse(426, "WebSockets are not recorded; use HTTP")  # Codex then does so at once
            return
        try:
            if inbound.method == b"CONNECT" or not inbound.url.startswith(b"/"):
                raise BadRoute("this is no forward proxy; make its address the base URL of the client")
            target = self._routes.find(inbound.url, inbound.headers, inbound.method)
        except BadRoute as error:
            self._refuse(404, str(error))
            return
        self.tap = self._open_tap(Opened(inbound.method, target, inbound.headers))
        server = self._server
        if server is not None and server.origin == target.origin and not server.closed:
            self._forward_head(server, inbound, target.path)
            return
        if server is not None:
            server.drop()
            self._server = None
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(target.origin, inbound, target.path))

    async def _connect(self, origin: Origin, inbound: Inbound, path: bytes) -> None:
        loop = asyncio.get_running_loop()
        context = tls() if origin.scheme == "https" else None
        try:
            _, server = await loop.create_connection(
                lambda: ServerSide(self, origin), origin.host, origin.port, ssl=context, happy_eyeballs_delay=0.25
            )
        except (OSError, ssl.SSLError) as error:
            self._connecting = None
            if self.tap is not None:
                self.tap.end("unreachable")
                self.tap = None
            self._refuse(502, f"{origin.authority}: cannot be reached ({reason_of(error)}); check --upstream")
            return
        self._connecting = None
        self._server = server
        self.transport.resume_reading()
        self._forward_head(server, inbound, path)
        self._send_up()

    def _forward_head(self, server: ServerSide, inbound: Inbound, path: bytes) -> None:
        server.expect(inbound.method == b"HEAD", inbound.old, inbound.keep_alive)
        self._out.append(request_head(inbound.method, path, server.origin.authority.encode(), inbound.headers))
        for piece in inbound.waiting:
            self._forward(inbound, piece)
        inbound.waiting.clear()
        if inbound.complete:
            self._forward_end(inbound)

    def _forward(self, inbound: Inbound, piece: bytes) -> None:
        if self.tap is not None:
            self.tap.request(piece)
        self._out.append(chunk(piece) if inbound.chunked else piece)

    def _forward_end(self, inbound: Inbound) -> None:
        if self.tap is not None:
            self.tap.request_done()
        if inbound.chunked:
            self._out.append(LAST_CHUNK)

    def _send_up(self) -> None:
        if self._out and self._server is not None:
            self._server.transport.writelines(self._out)
            if self.tap is not None:
                self.tap.work()  # behind the write: the upstream need not wait for it
        self._out = []

    # What the server's half tells.

    @property
    def request_complete(self) -> bool:
        """Whether the request that is being answered has come in whole."""
        return self._active is not None and self._active.complete

    def finished(self, keep_alive: bool) -> None:
        """The reply was forwarded to its end: take the next request, or close."""
        inbound = self._queue.popleft()
        self.tap = None
        if not (keep_alive and inbound.keep_alive and inbound.complete):
            self.close()
        elif self._queue:
            self._start()
            self._send_up()
        else:
            self.transport.resume_reading()

    def lost_server(self) -> None:
        """The upstream has closed: so would the client see it."""
        if self.tap is not None:
            self.tap.end("upstream_closed")
            self.tap = None
        self._server = None
        self.transport.close()

    def close(self) -> None:
        """Close both connections, once what was written has been sent."""
        if self._server is not None:
            self._server.drop()
            self._server = None
        self.transport.close()

    def _malformed(self, kind: str) -> None:
        """What came in is no request. Nothing may be put into a reply that is under way."""
        if self.tap is None:
            self._refuse(400, f"not HTTP/1.1: {kind}")
            return
        self.tap.end("client_closed")
        self.tap = None
        self.close()

    def _refuse(self, status: int, message: str) -> None:
        """An error of the proxy's own, in a shape that clients of both API families show to their user."""
        if self.transport.is_closing():
            return
        words = b"%d %s" % (status, HTTPStatus(status).phrase.encode())
        error = {"type": "proxy_error", "message": f"cachewright proxy: {message}"}
        body = orjson.dumps({"type": "error", "error": error})
        self._answer(words, b"application/json", body, b"x-cachewright-proxy: refused\r\n")

    def _answer(self, status: bytes, kind: bytes, body: bytes, extra: bytes = b"") -> None:
        head = b"HTTP/1.1 " + status + b"\r\ncontent-type: " + kind + b"\r\n" + extra
        head += b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(head + body)
        self.close()


@cache
def tls() -> ssl.SSLContext:
    """Certificates are checked as by any client; HTTP/1.1 is what this proxy speaks."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def reason_of(error: OSError) -> str:
    """What went wrong, in words without addresses of memory or repeated numbers."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'handshake failed'}"
    return (error.strerror or str(error) or type(error).__name__).lower()
