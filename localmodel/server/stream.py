"""Sending a reply while watching whether the client is still there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localmodel.server.body import gone

Item = TypeVar("Item")
Result = TypeVar("Result")

STUCK_S = 60.0
"""A client that takes nothing for this long is treated as gone: it would hold its slot for ever."""


class Stopped(Exception):
    """The server stops and can wait no longer."""


async def paced(
    items: AsyncGenerator[Item, None], every_s: float, most_s: float, stop: asyncio.Event
) -> AsyncGenerator[Item | None, None]:
    """The items, and `None` for every `every_s` seconds of silence.

    Raises `TimeoutError` after `most_s` in all, and `Stopped` when `stop` is set; the items are closed in any case.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + most_s
    stopping = asyncio.ensure_future(stop.wait())
    pending: asyncio.Task[Item] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(_next(items))
            left = end - loop.time()
            timeout = max(0.0, min(every_s, left))
            await asyncio.wait({pending, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if pending.done():
                ready, pending = pending, None
                try:
                    item = ready.result()
                except StopAsyncIteration:
                    return
                yield item
            elif stop.is_set():
                raise Stopped
            elif left <= 0:
                raise TimeoutError
            else:
                yield None
    finally:
        waiting: list[asyncio.Future[Any]] = [stopping] if pending is None else [stopping, pending]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await items.aclose()


async def _next(items: AsyncGenerator[Item, None]) -> Item:
    return await anext(items)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`, or `None` where the client went away first; the work is then cancelled."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """A reply of server-sent events. `chunks` is closed when the client goes away; `ended` is called at last."""

    media_type = "text/event-stream"

    def __init__(
        self, request: Request, chunks: AsyncGenerator[bytes, None], headers: dict[str, str], ended: Callable[[], None]
    ) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._chunks = chunks
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head at once, then each chunk as it comes."""
        try:
            await unless_gone(self._request, self._send(send))
        except TimeoutError:
            return  # the client takes nothing: closing the connection is all that is left
        finally:
            self._ended()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in chunks:
                async with asyncio.timeout(STUCK_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
