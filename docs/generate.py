"""Prints docs/cli.md: the --help of `cachewright` and of each of its commands, as the program itself words them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
HEAD = "# Command line\n\nWritten by `make docs` from the program's own `--help`; do not edit.\n"


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The context of `command` and of all that stands below it, in the order in which help lists them."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is None:
                raise LookupError(f"{context.command_path} lists the command {child} but cannot load it")
            if not found.hidden:
                yield from contexts(found, child, context)


def section(context: click.Context) -> str:
    """One chapter: the command's path, then its help in a fence."""
    return f"\n## {context.command_path}\n\n```text\n{context.get_help().rstrip()}\n```\n"


def page(main: click.Command) -> str:
    """The whole of docs/cli.md."""
    return HEAD + "".join(section(context) for context in contexts(main, "cachewright"))


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    sys.path.insert(0, str(ROOT))
    from tui.cli import main

    sys.stdout.buffer.write(page(main).encode())
