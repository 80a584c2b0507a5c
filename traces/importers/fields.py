"""Fields of other tools' rows: what is absent is `None` or empty, what has another type than it should costs the row.

Names and ids are lenient (a name of another type is no name), structure, times and counts are strict.
"""

from datetime import UTC, datetime
from sys import intern
from typing import Any

from traces import rows, times
from traces.errors import MalformedRow
from traces.importers.transcripts import REDACTED
from traces.schema import JsonObject, Usage
from traces.wire.usage import checked, count, shown

SECONDS, MILLISECONDS, NANOSECONDS = 1, 1_000, 1_000_000_000


def obj(row: JsonObject, *path: str) -> JsonObject:
    """The object at a path of names, empty where it is absent. Raises `MalformedRow` for another type."""
    value = _at(row, path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedRow(f"{'.'.join(path)}: want an object, got {shown(value)}")
    return value


def items(row: JsonObject, *path: str) -> list[Any]:
    """The list at a path of names, empty where it is absent. Raises `MalformedRow` for another type."""
    value = _at(row, path)
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedRow(f"{'.'.join(path)}: want a list, got {shown(value)}")
    return value


def text(row: JsonObject, *path: str) -> str | None:
    """A name at a path, held once however often it comes; `None` where it is absent, empty, redacted or no text."""
    value = _at(row, path)
    if not isinstance(value, str) or not value or value in REDACTED:
        return None
    # A lone surrogate cannot go to a store or a screen.
    return intern(value if value.isascii() else value.encode(errors="replace").decode())


def first(row: JsonObject, *names: str) -> Any:
    """The first value that is not null under several names of one figure."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def moment(value: object, name: str, unit: int = SECONDS) -> datetime | None:
    """A time: ISO 8601 text, or a number since 1970 (in text too) of which `unit` make a second.

    `None` for null and for the ends of a calendar, which programs write for it. Raises `MalformedRow` for what is no
    time.
    """
    if value is None:
        return None
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        return rows.parse_time(value, name)[0]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MalformedRow(f"{name}: want a time, got {shown(value)}")
    try:
        # In whole microseconds: a float of nanoseconds since 1970 is off by hundreds of them.
        if isinstance(value, float):
            return times.measured(datetime.fromtimestamp(value / unit, UTC))
        whole, rest = divmod(int(value), unit)
        time = datetime.fromtimestamp(whole, UTC).replace(microsecond=rest * 1_000_000 // unit)
        return times.measured(time)
    except (ValueError, OverflowError, OSError):
        raise MalformedRow(f"{name}: want a time, got {shown(value)}") from None


def exclusive(raw: JsonObject, *, rest: Any, read: Any, write: Any, output: Any, written: bool = True) -> Usage:
    """Usage of a tool whose input figure leaves out what was read and written; arguments are names in `raw`.

    `written=False`: the provider has no class of written tokens, so that a 0 means nothing was reported.
    """
    parts = [count(raw.get(name), f"usage.{name}") for name in (rest, read, write, output)]
    fresh, hit, made, out = parts
    if not written and not made:
        made = None
    whole = None if fresh is None or hit is None else fresh + hit + (made or 0)
    return checked(Usage(whole, hit, made, output_tokens=out))


def inclusive(raw: JsonObject, *, whole: str, read: str, output: str | None = None) -> Usage:
    """Usage of a tool whose input figure is the whole prompt and that knows no written tokens."""
    out = None if output is None else count(raw.get(output), f"usage.{output}")
    return checked(Usage(count(raw.get(whole), f"usage.{whole}"), count(raw.get(read), f"usage.{read}"), None, None,
                         None, out))  # fmt: skip


def _at(row: JsonObject, path: tuple[str, ...]) -> Any:
    value: Any = row
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
