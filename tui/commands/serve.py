"""`cachewright serve`: the local API server, run as a program of its own.

The command imports nothing of the server: it hands its options over in the environment and becomes the server's
process, so that signals and the exit code are the server's own. With `--db` this process stays and keeps the store.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import click

from tui.cli import ExitCode, fail, warn

PROGRAM = [sys.executable, "-P", "-m", "localmodel.server"]

_EPILOG = (
    "Under --rules anthropic the OpenAI dialects are treated as automatic caching: one breakpoint on the last block."
)


@click.command(epilog=_EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8377, show_default=True, help="0 takes a free one.")
@click.option(
    "--model",
    metavar="default|scripted|PATH",
    default="default",
    show_default=True,
    help="Model to serve; scripted needs no weights and answers from a script.",
)
@click.option("--fast", is_flag=True, help="Weights of 8 bits, KV of 4: faster, with bits that vary (CPU only).")
@click.option("--rules", metavar="NAME|FILE", default="anthropic", show_default=True, help="Ruleset the cache follows.")
@click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="One rule's value, such as ttl.5m=20, lookback.positions=5, min_tokens=100 or any rule id; repeatable.",
)
@click.option("--api-key", "api_keys", metavar="KEY", multiple=True, help="Key to demand; repeat for several clients.")
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replies of the scripted model (TOML or JSON); without it the model echoes.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append each call to this file as a native trace (JSON Lines) for `cachewright audit`.",
)
@click.option(
    "--db",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Store each call in this database as it ends, for `cachewright audit --db` and `cachewright tui --db`.",
)
@click.option(
    "--kv",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cache in this folder, so that it outlives a restart: its entries, and pages of a real model.",
)
@click.option(
    "--kv-gib",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True, max=2**20),
    default=8.0,
    show_default=True,
    help="Bound on those pages; beyond it the least recently used go.",
)
def command(
    host: str,
    port: int,
    model: str,
    fast: bool,
    rules: str,
    sets: tuple[str, ...],
    api_keys: tuple[str, ...],
    script: Path | None,
    record: Path | None,
    db: Path | None,
    kv: Path | None,
    kv_gib: float,
) -> None:
    """Serve a model whose prompt cache behaves like a hosted API's.

    Speaks Anthropic Messages and OpenAI Chat Completions and Responses. Prints one line with its URL when it is ready
    and stops on SIGINT or SIGTERM. Every reply says in x-cachewright-* headers what the cache did and why; so does
    GET /cachewright/calls.
    """
    settings = {
        "host": host,
        "port": port,
        "model": model,
        "fast": fast,
        "rules": rules,
        "sets": sets,
        "api_keys": api_keys,
        "script": None if script is None else str(script),
        "record": None if record is None else str(record),
        "kv": None if kv is None else str(kv),
        "kv_gib": kv_gib,
    }
    if db is not None and record is not None:
        fail("--record and --db: give one of them; `cachewright audit FILE --db DB` stores a file", ExitCode.USAGE)
    if db is not None:
        sys.exit(_stored(db, settings))
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(sys.executable, PROGRAM, _environment(settings))
    sys.exit(subprocess.run(PROGRAM, env=_environment(settings), check=False).returncode)


def _environment(settings: dict[str, object]) -> dict[str, str]:
    """Settings do not go as arguments: API keys would stand in the list of processes."""
    for name, value in settings.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            option = {"sets": "set", "api_keys": "api-key"}.get(name, name)
            fail(f"--{option}: its value is no UTF-8 text; give one that is", ExitCode.USAGE)
    return {**os.environ, "CACHEWRIGHT_SERVE": json.dumps(settings)}


def _stored(db: Path, settings: dict[str, object]) -> int:
    """Run the server with its record in a pipe, which a thread of this process takes to the store."""
    from auditor.errors import AuditError
    from auditor.store import Store
    from tui.commands.child import run_child

    try:
        Store.open(db).close()
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)
    out, into = os.pipe()
    keeper = threading.Thread(target=_keep, args=(db, out), name="store")
    keeper.start()
    try:
        return run_child(PROGRAM, _environment(settings | {"record": f"/dev/fd/{into}"}), pass_fds=(into,))
    finally:
        os.close(into)  # the server has ended, so this is the pipe's end
        keeper.join()


def _keep(db: Path, pipe: int) -> None:
    """Store each call that comes through a pipe. What cannot be stored is told; the server goes on in any case."""
    from auditor.errors import AuditError
    from auditor.store import Store
    from traces.errors import TraceError
    from traces.rows import Context, from_line
    from traces.schema import Place

    context = Context(db.stem, lambda place, reason: warn(f"{place}: {reason}"))
    store = None
    with open(pipe, "rb") as rows, contextlib.ExitStack() as stack:
        for number, row in enumerate(rows, 1):
            try:
                store = store or stack.enter_context(Store.open(db))
                store.add([from_line(row, Place(f"{db}", number), context)])
            except (TraceError, AuditError) as error:
                warn(f"call {number} was not stored: {error}")
