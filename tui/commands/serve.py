"""`cachewright serve`: the local API server, run as a program of its own.

The command imports nothing of the server: it hands its options over in the environment and becomes the server's
process, so that signals and the exit code are the server's own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import click

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
def command(
    host: str,
    port: int,
    model: str,
    rules: str,
    sets: tuple[str, ...],
    api_keys: tuple[str, ...],
    script: Path | None,
    record: Path | None,
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
        "rules": rules,
        "sets": sets,
        "api_keys": api_keys,
        "script": None if script is None else str(script),
        "record": None if record is None else str(record),
    }
    # Not as arguments: API keys would stand in the list of processes.
    environment = {**os.environ, "CACHEWRIGHT_SERVE": json.dumps(settings)}
    program = [sys.executable, "-P", "-m", "localmodel.server"]
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(sys.executable, program, environment)
    sys.exit(subprocess.run(program, env=environment, check=False).returncode)
