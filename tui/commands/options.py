"""Options that several commands share."""

import json
import math
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
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):  # a zone can move the first and the last day out of the calendar
            self.fail(f"{value!r} is no date such as 2026-09-01 or 2026-09-01T12:00Z", param, ctx)


class Limit(click.ParamType[float]):
    """A number to compare with; NaN is none: no result could ever fail it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if math.isnan(limit):
            self.fail(f"{value!r} is no number", param, ctx)
        return limit


LIMIT = Limit()


def echo_json(value: object) -> None:
    """Print a report as JSON. What orjson refuses but traces may hold (lone surrogates) is escaped instead."""
    import orjson

    try:
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    except TypeError:
        click.echo(json.dumps(value, indent=2))


def moment_option(command: Command) -> Command:
    """`--at DATE`: judge as of that moment."""
    return click.option("--at", type=Moment(), metavar="DATE", help="Moment to judge by; default: now.")(command)
