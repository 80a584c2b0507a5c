"""Putting the server together and running it until it is told to stop."""

import errno
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from types import FrameType

import uvicorn

from localmodel.engine.threads import wait_briefly
from localmodel.rules.types import CacheState
from localmodel.server.app import application
from localmodel.server.clock import monotonic_clock
from localmodel.server.errors import BadSettings
from localmodel.server.kept import PAGES, Kept
from localmodel.server.ledger import Ledger
from localmodel.server.model import Backend
from localmodel.server.record import Recorder
from localmodel.server.ruleset import ServedRules, ruleset
from localmodel.server.scripted import ScriptedBackend, read_script
from localmodel.server.service import Service
from localmodel.server.settings import Limits, Settings

KEEP_ALIVE_S = 75
SCRIPTED = "scripted"


def build(settings: Settings, limits: Limits | None = None, backend: Backend | None = None) -> Service:
    """The service that `settings` ask for, or the same with another model.

    Raises `BadSettings`, one line: option, fact, remedy.
    """
    rules, clock = ruleset(settings.rules, settings.sets), monotonic_clock()
    recorder = Recorder(settings.record) if settings.record else None
    with ExitStack() as until_ready:
        kept = until_ready.enter_context(closing(Kept(settings.kv))) if settings.kv else None
        backend = backend or backend_of(settings)
        state = CacheState() if kept is None else _entered(kept, backend, rules, settings, clock())
        until_ready.pop_all()
    return Service(settings, limits or Limits(), backend, Ledger(rules, clock, state, kept), recorder)


def _entered(kept: Kept, backend: Backend, rules: ServedRules, settings: Settings, now: datetime) -> CacheState:
    """The entries that a folder holds of this model under these rules; what was found there is told."""
    words = " ".join([settings.rules, *(f"--set {one}" for one in settings.sets)])
    state = kept.enter({**backend.identity, "rules": rules.base.digest}, words, now)
    for line in kept.said:
        print(f"cachewright: {line}", file=sys.stderr, flush=True)
    return state


def backend_of(settings: Settings) -> Backend:
    """The model behind `--model`, with its pages in the folder of `--kv` where there is one. Raises `BadSettings`."""
    if settings.model == SCRIPTED:
        if settings.fast:
            raise BadSettings("--fast: the scripted model has no weights; leave it out, or choose another --model")
        return ScriptedBackend(read_script(settings.script) if settings.script else None)
    if settings.script is not None:
        raise BadSettings(f"--script {settings.script}: only the scripted model has one; add --model scripted")
    wait_briefly()
    try:
        from localmodel.server.local import open_backend
    except ModuleNotFoundError as error:
        raise BadSettings(
            f"--model {settings.model}: needs the package {error.name}, which is not installed; "
            "pip install 'cachewright[local]', or use --model scripted"
        ) from None
    pages = None if settings.kv is None else settings.kv / PAGES
    return open_backend(settings.model, fast=settings.fast, pages=pages, disk_bytes=round(settings.kv_gib * 2**30))


def listen(host: str, port: int) -> socket.socket:
    """A socket that already takes connections, so that the URL can be told before the first request."""
    try:
        family, _, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named so that asyncio turns delays off (TCP_NODELAY): a reply would wait 40 ms for its body.
        with ExitStack() as until_listening:
            found = until_listening.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(2048)
            until_listening.pop_all()
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a host's name at all
        number, why = (error.errno, error.strerror) if isinstance(error, OSError) else (None, "no host's name")
        other = "port" if number in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise BadSettings(f"--host {host} --port {port}: cannot listen: {why}; choose another {other}") from None
    return found


def url_of(found: socket.socket) -> str:
    """The base URL of a listening socket."""
    host, port = found.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, which tells the service when it begins to stop; `should_exit` stops it."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests and wait for the open ones."""
        self._service.stop()
        await super().shutdown(sockets)


def server(service: Service, ready: Callable[[], None]) -> Server:
    """The HTTP server for `service`; `ready` is called once it takes requests."""
    return Server(
        uvicorn.Config(
            application(service, ready),
            http="h11",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            # Longer than the service's own grace, so that only what hangs is cut off.
            timeout_graceful_shutdown=int(service.limits.grace_s) + 5,
        ),
        service,
    )


def run(settings: Settings, announce: Callable[[str, str], None]) -> None:
    """Serve until SIGINT or SIGTERM; open replies get a few seconds.

    `announce` is told the URL and what model runs when it is ready.
    """
    # uvicorn stops gracefully on these and then raises them again: by then the work is done, and done well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stopped)
    service = build(settings)
    found = listen(settings.host, settings.port)
    server(service, lambda: announce(url_of(found), service.backend.about)).run(sockets=[found])


def _stopped(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
