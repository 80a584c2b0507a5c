"""`cachewright proxy`: the recording proxy, standing."""

from pathlib import Path

import click

from tui.cli import ExitCode, fail, warn

HOST = "127.0.0.1"


@click.command()
@click.option("--listen", default=f"{HOST}:8378", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="[NAME=]URL",
    help="Where to forward to; repeatable. Default: the APIs of Anthropic, OpenAI and DeepSeek.",
)
@click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="Database; default: the store.")
@click.option("--watch", is_flag=True, help="Print one line a call: what the cache did, cost, verdict and cause.")
@click.option("--redact", type=click.Choice(["bodies"]), help="Keep lengths and digests of bodies only.")
def command(listen: str, upstreams: tuple[str, ...], db: Path | None, watch: bool, redact: str | None) -> None:
    """Record all calls that agents make through this address, until SIGINT or SIGTERM.

    Make http://HOST:PORT a client's base URL. Prefixes of the path tag what is recorded: /run/NAME names the run,
    /agent/NAME the agent, /to/NAME the upstream. GET /metrics counts for Prometheus.
    """
    import asyncio

    from auditor.errors import AuditError
    from harness.errors import HarnessError
    from harness.proxy.routes import Routes, origin_of
    from harness.proxy.serve import more_files, until_signal
    from tui.commands.recording import recording

    host, port = address(listen)

    async def serve() -> None:
        await proxy.listen(host, port)
        if host not in (HOST, "localhost", "::1"):
            warn(f"{host} is not a loopback address: whoever reaches it can use this proxy and is recorded")
        names = ", ".join(f"{origin.name or 'all'} = {origin.url}" for origin in routes.origins)
        await until_signal(proxy, lambda: click.echo(f"listening on http://{host}:{proxy.port} (forwards to {names})"))

    try:
        routes = Routes([origin_of(spec) for spec in upstreams])
        more_files()
        with recording(routes, db, redact=redact is not None, watch=watch) as proxy:
            asyncio.run(serve())
    except HarnessError as error:
        fail(str(error), ExitCode.USAGE)
    except AuditError as error:
        fail(str(error), ExitCode.UNREADABLE)


def address(listen: str) -> tuple[str, int]:
    """HOST:PORT taken apart. Raises click.UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen}: want HOST:PORT, such as {HOST}:8378")
    return host, int(port)
