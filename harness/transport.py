"""The recorder as an `httpx2` transport: for programs that use the SDKs in process, without a proxy in between.

    with recorder(Path("calls.db")) as made:
        http = httpx2.AsyncClient(transport=RecordingTransport(made, run="nightly"))
        client = anthropic.AsyncAnthropic(http_client=http)

What is sent and what comes back are the inner transport's own; only a copy is taken. The copy of a reply is that of
the wire, so it is decoded as the proxy's is.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from harness.proxy.routes import Origin, Target, api_of
from harness.recorder.recorder import Recorder
from harness.recorder.tap import Opened, Tap


class RecordingTransport(httpx2.AsyncBaseTransport):
    """Records what goes through `inner` (default: httpx2's own), under the name `run`."""

    def __init__(
        self, recorder: Recorder, inner: httpx2.AsyncBaseTransport | None = None, *, run: str | None = None
    ) -> None:
        self._recorder, self._run = recorder, run
        self._inner = inner or httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and record it with its reply."""
        tap = _sent(self._recorder, request, await request.aread(), self._run)
        with _sending(tap):
            response = await self._inner.handle_async_request(request)
        return _answered(tap, response)

    async def aclose(self) -> None:
        """Close the inner transport; the recorder is its owner's to close."""
        await self._inner.aclose()


class SyncRecordingTransport(httpx2.BaseTransport):
    """The same for clients that are not asynchronous."""

    def __init__(
        self, recorder: Recorder, inner: httpx2.BaseTransport | None = None, *, run: str | None = None
    ) -> None:
        self._recorder, self._run = recorder, run
        self._inner = inner or httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and record it with its reply."""
        tap = _sent(self._recorder, request, request.read(), self._run)
        with _sending(tap):
            response = self._inner.handle_request(request)
        return _answered(tap, response)

    def close(self) -> None:
        """Close the inner transport; the recorder is its owner's to close."""
        self._inner.close()


class _Tee(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A reply on its way, each piece noted as it passes; `inner` is of the one kind or the other, as its transport."""

    def __init__(self, inner: Any, tap: Tap) -> None:
        self._inner, self._tap = inner, tap

    def __iter__(self) -> Iterator[bytes]:
        with _receiving(self._tap):
            for piece in self._inner:
                yield self._noted(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _receiving(self._tap):
            async for piece in self._inner:
                yield self._noted(piece)

    def _noted(self, piece: bytes) -> bytes:
        self._tap.response(piece)
        self._tap.work()
        return piece

    def close(self) -> None:
        self._tap.end("client_closed")  # says nothing where the end was seen
        self._inner.close()

    async def aclose(self) -> None:
        self._tap.end("client_closed")
        await self._inner.aclose()


@contextlib.contextmanager
def _sending(tap: Tap) -> Iterator[None]:
    try:
        yield
    except BaseException:
        tap.end("unreachable")
        raise


@contextlib.contextmanager
def _receiving(tap: Tap) -> Iterator[None]:
    """The end of a reply; who stops reading before it closes the stream, which says so."""
    try:
        yield
    except httpx2.TransportError:
        tap.end("upstream_closed")
        raise
    tap.end("complete")


def _sent(recorder: Recorder, request: httpx2.Request, body: bytes, run: str | None) -> Tap:
    """The tap of a request that is about to go out whole."""
    url, path = request.url, request.url.raw_path
    port = url.port or (443 if url.scheme == "https" else 80)
    target = Target(Origin("", url.scheme, url.host, port), path, run=run, api=api_of(path))
    tap = recorder.open(Opened(request.method.encode(), target, request.headers.raw))
    tap.request(body)
    tap.request_done()
    return tap


def _answered(tap: Tap, response: httpx2.Response) -> httpx2.Response:
    """The reply as it came, its body watched."""
    tap.response_head(response.status_code, response.headers.raw)
    response.stream = _Tee(response.stream, tap)
    return response
