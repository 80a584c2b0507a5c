"""Options that several commands share."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class Moment(click.ParamType[datetime]):
    """A date or an ISO time, read as UTC where it names no zone."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment, in UTC."""
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no date such as 2026-09-01 or 2026-09-01T12:00Z", param, ctx)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def moment_option(command: Command) -> Command:
    """`--at DATE`: judge as of that moment."""
    return click.option("--at", type=Moment(), metavar="DATE", help="Moment to judge by; default: now.")(command)
