"""How many generations run, and how many may wait."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from localmodel.server.errors import Overloaded
from localmodel.server.settings import Limits


class Gate:
    """`slots` generations at once, `queue` more in order of arrival; beyond that requests are turned away at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.slots)
        self.waiting = 0
        self.running = 0

    def check(self) -> None:
        """Raise `Overloaded` where the queue is full."""
        if self.waiting >= self._limits.queue:
            raise Overloaded(
                f"{self.waiting} requests wait already, the limit is {self._limits.queue}; try again later"
            )

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None, None]:
        """Wait for a slot and hold it. Raises `Overloaded` where the queue has filled up since `check`."""
        if self._slots.locked():
            self.check()
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
