"""Options that several commands share."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from auditor.tables import Table

Command = TypeVar("Command", bound=Callable[..., Any])


MOST_NAMED = 20
"""Rows left out and the like are named one by one up to here; the rest are counted."""


class Moment(click.ParamType[datetime]):
    """A date or an ISO time. Where it names no zone it is one of `--tz`, of a command that has this option, else UTC;
    `utc`: of UTC always."""

    name = "date"

    def __init__(self, *, utc: bool = False) -> None:
        self._utc = utc

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment, in UTC."""
        try:
            moment = datetime.fromisoformat(value)
            zone = UTC if self._utc or ctx is None else ctx.params.get("tz", UTC)
            return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).astimezone(UTC)
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


class Dollars(click.ParamType[Decimal]):
    """An amount of money above 0."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """The amount."""
        try:
            amount = Decimal(str(value).removeprefix("$"))
        except InvalidOperation:
            amount = Decimal(0)
        if not amount.is_finite() or amount <= 0:
            self.fail(f"{value!r} is no amount of dollars above 0", param, ctx)
        return amount


class Zone(click.ParamType[tzinfo]):
    """A time zone by its name in the IANA database."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tzinfo:
        """The zone."""
        from zoneinfo import ZoneInfo

        if isinstance(value, tzinfo):
            return value
        try:
            return UTC if value.upper() == "UTC" else ZoneInfo(value)
        except (ValueError, OSError, LookupError):  # no such file, or a path that leads out of the database
            self.fail(f"{value!r} is no time zone such as Europe/Madrid or UTC", param, ctx)


def zone_option(command: Command) -> Command:
    """`--tz NAME`: the zone of days and times in reports for people."""
    text = "Time zone of days and times, also of those asked for, such as Europe/Madrid."
    # Eager, so that it is known when the moments asked for are read.
    return click.option("--tz", type=Zone(), default=UTC, is_eager=True, metavar="NAME", show_default="UTC", help=text)(
        command
    )


def form_options(command: Command) -> Command:
    """`--csv` and `--markdown`: forms of a table beside text and JSON."""
    command = click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")(command)
    return click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV.")(command)


def echo_table(table: "Table", *, json: bool, csv: bool, markdown: bool) -> None:
    """Print a table in the one form that was asked for."""
    from auditor import tables

    if json + csv + markdown > 1:
        raise click.UsageError("--json, --csv and --markdown are forms of one output; give one of them")
    if json:
        echo_json(tables.as_json(table))
    elif csv or markdown:
        click.echo(tables.as_csv(table) if csv else tables.as_markdown(table), nl=False)
    else:
        click.echo(tables.as_text(table))


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
