"""The command line: the only place where the parts are put together. Sub-commands are loaded when called."""

import contextlib
import gc
import importlib
import os
import sys
from enum import IntEnum
from typing import Any, NoReturn

import click


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    UNREADABLE = 3
    PROVIDER = 4
    STOPPED = 130


GARBAGE = 50_000
"""New objects between two looks for cycles. Python's 700 costs a seventh of a short audit: imports make no garbage."""

# Name, module and attribute of each command, and its one line of help: listing them must not import them.
COMMANDS = {
    "audit": ("tui.commands.audit", "Say for each call whether the cache worked, why not, and what it cost."),
    "report": ("tui.commands.report", "Write an audit as a page: HTML or Markdown."),
    "tui": ("tui.commands.tui", "Browse what the cache cost and why it missed, in the terminal."),
    "now": ("tui.commands.now", "Say which sessions' caches are still warm, and what resuming each would cost."),
    "diff": ("tui.commands.diff", "Show where two prompts first differ, and what that costs the cache."),
    "lint": ("tui.commands.lint", "Check request bodies for cache mistakes before they are sent."),
    "rules": ("tui.commands.rules", "Show the providers' cache rules with status, date and source."),
    "prices": ("tui.commands.prices", "Show the dated prices of a model; check the price list."),
    "run": ("tui.commands.run", "Run a coding agent whose prompt prefix stays cached, its whole cost on one ledger."),
    "compare": ("tui.commands.compare", "Run the same tasks under several strategies; compare results, cost and time."),
    "record": ("tui.commands.record", "Run an agent and record its calls; show what the cache did."),
    "proxy": ("tui.commands.proxy", "Record all calls that agents make through an address."),
    "purge": ("tui.commands.purge", "Delete recorded calls for good."),
    "probe": ("tui.commands.probe", "Measure what a provider's prompt cache really does."),
    "serve": ("tui.commands.serve", "Serve a model whose prompt cache behaves like a hosted API's."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order in which help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; `None` where there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click does, with the nearest command named where there is none."""
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and turn every foreseen failure into one line on stderr and an exit code.

        Here and not around `main`, because click's own answer to these is exit code 1, which means findings. Where the
        reader of stdout went away (`| head`), there is nothing more to say.
        """
        gc.set_threshold(GARBAGE)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("stopped", ExitCode.STOPPED)
        except BrokenPipeError:
            _drop_output()
            sys.exit(ExitCode.DONE)
        except OSError as error:  # what has a file's name is explained where that file is used; this is a full disk
            _drop_output()
            place = error.filename or "output"
            fail(f"{place}: {error.strerror or error}; free some space or write elsewhere", ExitCode.UNREADABLE)
        except MemoryError:
            fail("out of memory; audit fewer files at once", ExitCode.UNREADABLE)


def warn(message: str) -> None:
    """One line on stderr, in which nothing acts on a terminal: it may hold names from a trace or a command line."""
    from auditor.visible import visible

    with contextlib.suppress(OSError):  # nobody can be told that stderr is full, and exit codes still speak
        click.echo(visible(" ".join(message.split())), err=True)


def fail(message: str, code: ExitCode) -> NoReturn:
    """End the process with one line on stderr."""
    warn(f"cachewright: {message}")
    sys.exit(code)


def _drop_output() -> None:
    """Send what is still to be written to nowhere, so that the flush at exit does not fail once more."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cachewright", message="%(version)s")
def main() -> None:
    """Say why an LLM agent's prompt cache missed, what each miss cost, and what would have avoided it."""
