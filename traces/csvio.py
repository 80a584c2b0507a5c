"""Usage tables in CSV: one call a row, token counts and times only.

The header's names decide; order, case, a byte order mark, quotes, CRLF and `;` or tab as separator do not matter.

* `total_input`, with optional `write` and `read`: the whole input and its parts. Times are `start` (from an unknown
  beginning) and `duration`, as mm:ss, hh:mm:ss or seconds. The provider is "anthropic" unless a column says otherwise.
* `tokens`: the whole input, of which nothing more is known. Same times.
* `input_tokens` and `provider`, with optional `cache_read`, `cache_write`, `cached_tokens`: the provider's own figures,
  so that Anthropic's input is what was neither read nor written and any other provider's is the whole.
* in both: `row` (a number), `id`, `trace`, `agent`, `model`, `output_tokens`, `started_at` (ISO 8601), `duration`.

Only `total_input`, `tokens`, or `input_tokens` with `provider`, must be there; unknown columns are ignored. An empty or
absent cell is unknown, which is not 0. A cell that holds something else than its column wants costs the row.
"""

import csv
import difflib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from traces.errors import MalformedRow, UnreadableInput
from traces.rows import Context, time_of
from traces.schema import Call, Place, Usage
from traces.wire.usage import checked, count, counts_remainder, normalise, shown

HEADERS = (
    "row,start,duration,total_input,write,read",
    "id,provider,input_tokens,cache_read,cache_write,cached_tokens",
)
COLUMNS = (
    *("row", "id", "provider", "model", "trace", "agent", "started_at", "start", "duration"),
    *("total_input", "write", "read", "output_tokens"),
)
"""Columns that `write_table` gives, in order."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for the unknown beginning of a table whose times are offsets."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_ .()/-]{0,60}")
_MAX_SECONDS = 10**9


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one usage table, in the file's order, and the separator of its cells."""

    columns: tuple[str, ...]
    separator: str

    def call(self, line: bytes, place: Place, context: Context) -> Call:
        """The call in one line (with its line end); raises `MalformedRow` naming column and value."""
        cells = self._cells(line)
        usage, provider = _usage(cells)
        started, relative = _start(cells, place, context)
        duration = _seconds(cells, "duration")
        number = _count(cells, "row")
        name = cells.get("id") or cells.get("row")
        return Call(
            id=name or f"{context.stem}:{place.line}",
            trace=cells.get("trace") or context.stem,
            provider=provider,
            started_at=started,
            seq=place.line if number is None else number,
            agent=cells.get("agent") or "main",
            model=cells.get("model"),
            ended_at=_end(started, duration),
            usage=usage,
            clock="relative" if relative else "utc",
            place=place,
        )

    def _cells(self, line: bytes) -> Mapping[str, str]:
        """Cells by column, stripped, without the empty ones. Short rows end in unknown cells; long ones are refused,
        since a thousands separator would otherwise shift every figure after it."""
        cells = _split(_decoded(line), self.separator)
        surplus = [cell for cell in cells[len(self.columns) :] if cell]
        if surplus:
            raise MalformedRow(f"{len(cells)} cells under a header of {len(self.columns)}; quote cells with separators")
        filled = {name: cell for name, cell in zip(self.columns, cells, strict=False) if cell}
        if not filled:
            raise MalformedRow("all cells are empty")
        return filled


def looks_like_header(line: bytes) -> bool:
    """Whether a first line is a row of column names rather than a damaged line of another format."""
    try:
        text = line.decode()
        cells = _split(text, _separator(text))
    except (UnicodeDecodeError, MalformedRow):
        return False
    words = [cell for cell in cells if cell]
    return len(words) > 1 and all(_WORD.fullmatch(word) for word in words)


def knows(line: bytes) -> bool:
    """Whether a line that looks like a header has the columns of a usage table."""
    columns = _header(line).columns
    return "total_input" in columns or {"input_tokens", "provider"} <= set(columns)


def table(line: bytes, file: str) -> Table:
    """The table under a header line. Raises `UnreadableInput`, naming the nearest header, where columns are missing."""
    found = _header(line)
    columns = found.columns
    if ("total_input" in columns) == ("input_tokens" in columns):
        raise UnreadableInput(f"{file}:1: {_unknown(columns)}")
    if "input_tokens" in columns and "provider" not in columns:
        raise UnreadableInput(f"{file}:1: column provider is missing; without it input_tokens has no known meaning")
    doubled = sorted({name for name in columns if name and columns.count(name) > 1})
    if doubled:
        raise UnreadableInput(f"{file}:1: column {doubled[0]} stands there {columns.count(doubled[0])} times")
    return found


def _header(line: bytes) -> Table:
    text = line.decode()
    separator = _separator(text)
    columns = tuple(cell.lower() for cell in _split(text, separator))
    if not {"total_input", "input_tokens"} & set(columns):
        columns = tuple("total_input" if name == "tokens" else name for name in columns)
    return Table(columns, separator)


def write_table(calls: Iterable[Call], file: BinaryIO) -> None:
    """Write the calls' token counts and times as a usage table that `Table` reads back.

    Bodies, kinds, hosts and lifetimes of writes are not in it: for those write native JSON Lines.
    """
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    try:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for call in calls:
            values = _cell_values(call)
            rows.writerow([_one_line(values[name]) for name in COLUMNS])
    finally:
        text.detach()  # the caller's file stays open


def _cell_values(call: Call) -> dict[str, str | int | float | None]:
    start = call.started_at
    relative = call.clock == "relative"
    return {
        "row": call.seq,
        "id": call.id,
        "provider": call.provider,
        "model": call.model,
        "trace": call.trace,
        "agent": call.agent,
        "started_at": None if start is None or relative else start.isoformat().replace("+00:00", "Z"),
        "start": _plain(start - EPOCH) if start and relative else None,
        "duration": _plain(call.ended_at - start) if start and call.ended_at else None,
        "total_input": call.usage.input_tokens,
        "write": call.usage.write_tokens,
        "read": call.usage.read_tokens,
        "output_tokens": call.usage.output_tokens,
    }


def _one_line(value: str | int | float | None) -> str | int | float | None:
    """Names without line breaks: the reader takes each line for a row, so that an open quote costs one row only."""
    return " ".join(value.split()) if isinstance(value, str) else value


def _usage(cells: Mapping[str, str]) -> tuple[Usage, str]:
    names = ("total_input", "read", "write", "input_tokens", "cache_read", "cache_write", "cached_tokens")
    given = {name: _count(cells, name) for name in names}
    output = _count(cells, "output_tokens")
    provider = cells.get("provider", "anthropic")
    if "provider" not in cells and "input_tokens" in cells:
        raise MalformedRow("provider is empty; without it input_tokens has no known meaning")
    if given["input_tokens"] is None:
        usage = Usage(given["total_input"], given["read"], given["write"], output_tokens=output)
        return checked(usage), provider
    return normalise(_provider_fields(given, output, provider), provider), provider


def _provider_fields(given: Mapping[str, int | None], output: int | None, provider: str) -> dict[str, object]:
    """The row as the provider would have reported it; `cached_tokens` and `cache_read` are two names of one figure."""
    cached, read, write = given["cached_tokens"], given["cache_read"], given["cache_write"]
    common: dict[str, object] = {"input_tokens": given["input_tokens"], "output_tokens": output}
    if counts_remainder(provider):
        read = cached if read is None else read
        return common | {"cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    cached = read if cached is None else cached
    return common | {"input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": write}}


def _start(cells: Mapping[str, str], place: Place, context: Context) -> tuple[datetime | None, bool]:
    """The call's start and whether it counts from an unknown beginning."""
    if "started_at" in cells:
        return time_of(cells["started_at"], "started_at", place, context), False
    offset = _seconds(cells, "start")
    return (None, False) if offset is None else (EPOCH + offset, True)


def _end(start: datetime | None, duration: timedelta | None) -> datetime | None:
    if start is None or duration is None:
        return None
    try:
        return start + duration
    except OverflowError:
        raise MalformedRow(f"duration: {duration.total_seconds():.0f} s after started_at is past year 9999") from None


def _seconds(cells: Mapping[str, str], name: str) -> timedelta | None:
    """A span written as seconds, mm:ss or hh:mm:ss (seconds may have decimals)."""
    text = cells.get(name)
    if text is None:
        return None
    match = re.fullmatch(r"(?:(?:([0-9]{1,9}):)?([0-9]{1,9}):)?([0-9]{1,9}(?:\.[0-9]{1,9})?)", text)
    hours, minutes, seconds = match.groups() if match else (None, None, None)
    if seconds is None or (minutes and float(seconds) >= 60) or (hours and int(minutes or 0) >= 60):
        raise MalformedRow(f"{name}: want mm:ss, hh:mm:ss or seconds, got {shown(text)}")
    total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)
    if total > _MAX_SECONDS:
        raise MalformedRow(f"{name} is {shown(text)}, more than {_MAX_SECONDS} seconds")
    return timedelta(seconds=total)


def _count(cells: Mapping[str, str], name: str) -> int | None:
    text = cells.get(name)
    if text is None:
        return None
    match = re.fullmatch(r"(-?[0-9]{1,30})(?:\.0{1,9})?", text)
    if not match:
        raise MalformedRow(f"{name}: want a whole number, got {shown(text)}")
    return count(int(match[1]), name)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise MalformedRow(f"not UTF-8 (byte {error.start} of the row)") from None


def _split(text: str, separator: str) -> list[str]:
    """Cells of one line: a quote left open ends with its row, so that it cannot swallow the rows after it."""
    if "\0" in text:
        raise MalformedRow(f"binary (NUL byte at character {text.index(chr(0))} of the row)")
    try:
        cells = next(csv.reader([text.rstrip("\r\n")], delimiter=separator), [])
    except csv.Error as error:
        raise MalformedRow(f"no CSV row ({error})") from None
    return [cell.strip() for cell in cells]


def _separator(text: str) -> str:
    return max((",", ";", "\t"), key=text.count)


def _unknown(columns: tuple[str, ...]) -> str:
    """What is wrong with a header, and the known one that shares most columns with it."""

    def likeness(header: str) -> float:
        known = header.split(",")
        close = sum(bool(difflib.get_close_matches(name, known, 1, 0.75)) for name in columns)
        return close / len(known)

    if "total_input" in columns:
        return "both total_input and input_tokens are there; keep the one that is meant"
    header = ascii(",".join(columns))[1:-1][:120]
    return f"unknown CSV header {header}; nearest known is {max(HEADERS, key=likeness)}"


def _plain(span: timedelta) -> int | float:
    seconds = span.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
