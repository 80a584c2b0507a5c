"""`cachewright record`: run a command with its model calls going through a recording proxy of its own."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tui.cli import ExitCode, fail, warn

if TYPE_CHECKING:
    from harness.proxy.serve import Proxy


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--upstream", metavar="URL", help="Where to forward to; default: what the command would use itself.")
@click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="Database; default: the store.")
@click.option("--watch", is_flag=True, help="Print one line a call: what the cache did, cost, verdict and cause.")
@click.option("--redact", type=click.Choice(["bodies"]), help="Keep lengths and digests of bodies only.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND…")
def command(upstream: str | None, db: Path | None, watch: bool, redact: str | None, arguments: tuple[str, ...]) -> None:
    """Run COMMAND and record the calls that it makes to models; its exit status is this one's.

    Base URLs are set for the command only: ANTHROPIC_BASE_URL, OPENAI_BASE_URL and the known clients' own settings
    (Claude Code, Codex, Pi, opencode, aider, llm, the SDKs, LiteLLM). No configuration file is touched.
    """
    from auditor.errors import AuditError
    from harness.errors import HarnessError
    from harness.proxy.routes import Routes
    from tui.commands.child import run_child
    from tui.commands.clients import prepared, upstreams_of
    from tui.commands.recording import recording

    run = f"run-{os.urandom(4).hex()}"
    try:
        origins = upstreams_of(os.environ, upstream)
        with recording(Routes(origins), db, redact=redact is not None, watch=watch) as proxy, _in_thread(proxy) as port:
            url = f"http://127.0.0.1:{port}/run/{run}"
            with prepared(arguments, os.environ, url, upstream) as (words, environment):
                status = run_child(words, environment)
            health = proxy.recorder.health
    except HarnessError as error:
        fail(str(error), ExitCode.USAGE)
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)
    place = f" --db {db}" if db is not None else ""
    warn(f"recorded {health.stored} attempts as {run}; see them with: cachewright audit{place}")
    sys.exit(status)


@contextlib.contextmanager
def _in_thread(proxy: "Proxy") -> Iterator[int]:
    """The proxy beside the command: signals stay with the main thread, which only waits for the command."""
    import asyncio

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()

    def call(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(step(), loop).result()

    try:
        call(lambda: proxy.listen("127.0.0.1", 0))
        yield proxy.port
        call(lambda: proxy.stop(0.0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not loop.is_running():
            loop.close()
