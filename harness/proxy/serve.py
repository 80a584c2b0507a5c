"""Run the proxy: bind, serve, and stop without cutting off replies that are still coming."""

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.errors import BadRoute
from harness.proxy.client_side import ClientSide
from harness.proxy.metrics import Metrics
from harness.proxy.routes import Routes
from harness.recorder.recorder import Recorder

BACKLOG = 1024
GRACE_S = 5.0
"""How long open replies may go on once a stop was asked for."""

MOST_FILES = 65_536

SWITCH_S = 0.0001
"""How long the recorder's thread may keep the interpreter while traffic waits (CPython's default is 50 times that)."""


@dataclass(slots=True)
class Proxy:
    """A proxy that is listening on `port`."""

    routes: Routes
    metrics: Metrics
    recorder: Recorder = field(init=False)
    open_ones: set[ClientSide] = field(default_factory=set)
    server: asyncio.Server | None = None
    port: int = 0

    def busy(self) -> bool:
        """Whether a call is under way; may be asked by any thread."""
        return any(one.tap is not None for one in tuple(self.open_ones))

    async def listen(self, host: str, port: int) -> None:
        """Bind and serve. Raises BadRoute where the address is taken or no address of this machine."""
        loop = asyncio.get_running_loop()
        try:
            self.server = await loop.create_server(self._client, host, port, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadRoute(f"--listen {host}:{port}: cannot be used ({reason.lower()}); name another port") from None
        bound: socket.socket = self.server.sockets[0]
        self.port = bound.getsockname()[1]
        sys.setswitchinterval(SWITCH_S)
        loop.set_exception_handler(self._fault)

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """One line in place of asyncio's traceback, which would quote what passes here."""
        error = context.get("exception")
        reason = (error.strerror or "error").lower() if isinstance(error, OSError) else type(error).__name__
        self.recorder.say(f"a connection failed in the proxy: {reason}", "fault")

    def _client(self) -> ClientSide:
        return ClientSide(self.routes, self.recorder.open, self._page, self.open_ones)

    def _page(self, path: bytes) -> bytes | None:
        if path.partition(b"?")[0] != b"/metrics":
            return None
        return self.metrics.text(self.recorder.health, len(self.open_ones)).encode()

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Take no more connections, let open replies end for `grace_s` seconds, close the rest."""
        if self.server is not None:
            self.server.close()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self.busy() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for one in list(self.open_ones):
            one.transport.abort()
        await asyncio.sleep(0)


def more_files() -> None:
    """Allow as many open files as this process may: each call takes two, and 1,024 is a common default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def until_signal(proxy: Proxy, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then stop. `ready` is called once these do no harm any more."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    ready()
    await stopped.wait()
    await proxy.stop()
