"""The upstream's half of the proxy: replies are forwarded as they arrive, none of their bytes is looked into.

The recorder's tap notes each piece and works on it once it was forwarded; only the end waits until the call is spooled,
so that a call whose end the client has seen is on disk.
"""

import asyncio
from typing import TYPE_CHECKING

import httptools

from harness.proxy.heads import HEAD_BYTES, LAST_CHUNK, Headers, chunk, is_chunked, response_head, value_of
from harness.proxy.routes import Origin

if TYPE_CHECKING:
    from harness.proxy.client_side import ClientSide

_WITHOUT_BODY = (204, 304)


class ServerSide(asyncio.Protocol):
    """One connection to an upstream, which serves one client's connection."""

    def __init__(self, client: "ClientSide", origin: Origin) -> None:
        self.origin = origin
        self.closed = False
        self.transport: asyncio.Transport
        self._client: ClientSide | None = client
        self._parser = httptools.HttpResponseParser(self)
        self._head_only = self._dechunk = False
        self._keep_alive = True
        self._out: list[bytes] = []
        self._head_bytes = 0
        self._forget()

    def _forget(self) -> None:
        """Wait for the next head: that of the next reply, or the final one after an interim reply."""
        self._fields, self._reason = Headers(), b""
        self._status = 0
        self._chunked = self._to_the_end = self._complete = False

    def expect(self, head_only: bool, dechunk: bool, keep_alive: bool) -> None:
        """A request was forwarded: what its reply may hold, and whether the client wants to go on after it."""
        self._head_only, self._dechunk, self._keep_alive = head_only, dechunk, keep_alive
        self._parser = httptools.HttpResponseParser(self)
        self._forget()

    def drop(self) -> None:
        """Cancel whatever is going on: nobody waits for it any more."""
        self._client = None
        self.closed = True
        self.transport.abort()

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Forward what this data holds, in one write."""
        client = self._client
        if client is None:
            return
        self._head_bytes = 0 if self._status else self._head_bytes + len(data)
        try:
            if self._head_bytes > HEAD_BYTES:
                raise httptools.HttpParserError("a head without end")
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._write(client)
            self._fail()
            return
        self._write(client)
        self.settle()

    def settle(self) -> None:
        """End the exchange once both halves are whole; a reply may come before its request has been sent."""
        client = self._client
        if client is not None and self._complete and client.request_complete:
            if not self._keep_alive:
                self.drop()
            client.finished(self._keep_alive)

    def eof_received(self) -> None:
        """The upstream has said all: the end of a body that nothing else ends."""
        client = self._client
        if client is not None and self._to_the_end and not self._complete:
            self.on_message_complete()
            client.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed or reset: the client sees the same."""
        self.closed = True
        if self._client is not None:
            self._fail()

    def pause_writing(self) -> None:
        """The upstream reads slowly: let the client wait."""
        if self._client is not None:
            self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """The upstream has caught up."""
        if self._client is not None:
            self._client.transport.resume_reading()

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._forget()

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        client, fields = self._client, self._fields
        assert client is not None
        status = self._status = self._parser.get_status_code()
        self._head_bytes = 0
        if status < 200:
            self._out.append(response_head(status, self._reason, fields, close=False, dechunk=False))
            return
        bodiless = self._head_only or status in _WITHOUT_BODY
        self._chunked = is_chunked(fields)
        self._to_the_end = not (bodiless or self._chunked or value_of(fields, b"content-length"))
        self._keep_alive = self._keep_alive and self._parser.should_keep_alive() and not self._to_the_end
        if client.tap is not None:
            client.tap.response_head(status, fields)
        close = not self._keep_alive
        self._out.append(response_head(status, self._reason, fields, close=close, dechunk=self._dechunk))
        if self._head_only:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        client = self._client
        assert client is not None
        if client.tap is not None:
            client.tap.response(body)
        self._out.append(chunk(body) if self._chunked and not self._dechunk else body)

    def on_message_complete(self) -> None:
        client = self._client
        if client is None or self._complete or self._status < 200:
            return
        self._complete = True
        if client.tap is not None:
            client.tap.end("complete")
        if self._chunked and not self._dechunk and not self._head_only:
            self._out.append(LAST_CHUNK)

    def _write(self, client: "ClientSide") -> None:
        if self._out:
            client.transport.writelines(self._out)
            self._out = []
            if client.tap is not None:
                client.tap.work()

    def _fail(self) -> None:
        """The reply broke off, or is none."""
        client, self._client = self._client, None
        self.closed = True
        if client is not None:
            client.lost_server()
        self.transport.abort()
