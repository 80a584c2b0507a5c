"""One row of the native format <-> `Call`: JSON text, validation at the boundary, defaults, aliases.

Reading is lenient about what is left out and strict about what is there: unknown keys are ignored, null means absent,
a field of the wrong type costs the row. Every reason is one line that names the field, what it held and what it wants.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from sys import intern
from typing import Annotated, Any, Literal, NoReturn

import orjson
from msgspec.structs import asdict

# Looking for pydantic plugins in all installed packages takes a tenth of a short audit; there are none for us.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from typing import Required  # pydantic refuses typing.TypedDict before Python 3.12

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from traces import times
from traces.errors import MalformedRow
from traces.schema import SCHEMA, Call, Finds, JsonObject, Kind, Label, Place, Usage
from traces.wire.labels import without_label
from traces.wire.usage import MAX_COUNT, normalise, of_response, shown

MAX_DEPTH = 1024
"""Deepest nesting of JSON that is read (orjson's own limit); real requests stay below 50."""

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_WANT = {
    "int_type": "a whole number",
    "string_type": "text",
    "dict_type": "an object",
    "list_type": "a list",
}


class NotJson(MalformedRow):
    """The text of a row breaks off or is no JSON: in a growing file's last line, that may still change."""


@with_config(ConfigDict(strict=True))
class LabelRow(TypedDict, total=False):
    """A provider's own comparison of two requests, as `traces.schema.Label`."""

    value: Required[str]
    finds: Required[Finds]
    what: str | None
    missed_tokens: _Count | None


@with_config(ConfigDict(strict=True))
class Row(TypedDict, total=False):
    """A row as pydantic checks it. `session` and `first_byte_at` are older names of `trace` and `first_token_at`."""

    schema: str | None
    seq: _Count | None
    id: str | int | None
    trace: str | None
    session: str | None
    agent: str | None
    parent: str | None
    kind: Kind | None
    attempt: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None
    provider: str | None
    api: str | None
    host: str | None
    key_fp: str | None
    model: str | None
    betas: list[str] | None
    started_at: str | None
    first_token_at: str | None
    first_byte_at: str | None
    ended_at: str | None
    clock: Literal["utc", "relative"] | None
    status: Annotated[int, Field(ge=0, le=999)] | None
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    tokens: dict[str, _Count] | None
    usage: Any
    facts: dict[str, Any] | None
    label: LabelRow | None


@dataclass(slots=True)
class Context:
    """What the rows of one file share. `warn` hears of facts in a row that is kept nevertheless."""

    stem: str
    warn: Callable[[Place, str], None]
    warned: set[str] = field(default_factory=set)

    def once(self, place: Place, key: str, reason: str) -> None:
        """Warn for the first row only: a habit of the whole file is not news in each line."""
        if key not in self.warned:
            self.warned.add(key)
            self.warn(place, reason)


def from_line(line: bytes, place: Place, context: Context) -> Call:
    """The call in one line of native JSONL (a byte order mark already removed); raises `MalformedRow`."""
    return to_call(loads(line), place, context)


def loads(line: bytes) -> object:
    """JSON of one line. Raises `NotJson` or `MalformedRow` naming what is wrong and where.

    orjson first; text that it refuses but JSON allows (lone surrogates) goes to the standard library.
    Whole numbers beyond 64 bits come back as floats.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as refusal:
        if refusal.msg.startswith("depth limit"):
            _too_deep()
    return _loads_slowly(line)


def to_call(raw: object, place: Place, context: Context) -> Call:
    """The call that a decoded row describes. Raises `MalformedRow`; see the module for what is lenient."""
    if not isinstance(raw, dict):
        raise MalformedRow(f"not an object but {shown(raw)}; a row is one JSON object")
    row = _validated(raw)
    provider = _required(row)
    request, response = row.get("request"), row.get("response")
    usage = normalise(row["usage"], provider) if "usage" in row else of_response(response or {}, provider)
    started = time_of(row.get("started_at"), "started_at", place, context)
    first = time_of(row.get("first_token_at") or row.get("first_byte_at"), "first_token_at", place, context)
    ended = time_of(row.get("ended_at"), "ended_at", place, context)
    facts, label = without_label(row.get("facts"))
    name = row.get("id")
    seq = row.get("seq")
    # Names that all rows of a session share are held once, not once a row.
    return Call(
        id=f"{context.stem}:{place.line}" if name is None else str(name),
        trace=intern(row.get("trace") or row.get("session") or context.stem),
        provider=intern(provider),
        started_at=started,
        seq=place.line if seq is None else seq,
        agent=intern(row.get("agent") or "main"),
        parent=row.get("parent"),
        kind=row.get("kind") or "main",
        attempt=row.get("attempt") or 1,
        api=_shared(row.get("api")),
        host=_shared(row.get("host")),
        key_fp=_shared(row.get("key_fp")),
        model=_shared(row.get("model") or _model(request) or _model(response)),
        betas=tuple(row.get("betas") or ()),
        first_token_at=_not_before(started, first, "first_token_at", place, context),
        ended_at=_not_before(started, ended, "ended_at", place, context),
        status=row.get("status"),
        request=request,
        response=response,
        tokens=row.get("tokens"),
        usage=usage,
        facts=facts,
        label=_label(row.get("label")) or label,
        clock=row.get("clock") or "utc",
        place=place,
    )


def to_line(call: Call) -> bytes:
    """The row of one call, without a newline; `from_line` gives the same call back, its place aside.

    Raises `MalformedRow` for a body that is no JSON (a foreign type, NaN, nested deeper than Python can follow).
    """
    row: JsonObject = {"schema": SCHEMA, "seq": call.seq, "id": call.id, "trace": call.trace, "agent": call.agent}
    row |= {"parent": call.parent, "kind": call.kind, "attempt": call.attempt, "provider": call.provider}
    optional = {
        "api": call.api,
        "host": call.host,
        "key_fp": call.key_fp,
        "model": call.model,
        "betas": list(call.betas) or None,
        "clock": None if call.clock == "utc" else call.clock,
        "started_at": _iso(call.started_at),
        "first_token_at": _iso(call.first_token_at),
        "ended_at": _iso(call.ended_at),
        "status": call.status,
        "request": call.request,
        "response": call.response,
        "tokens": None if call.tokens is None else dict(call.tokens),
        "facts": call.facts,
        "label": None if call.label is None else asdict(call.label),
    }
    row |= {name: value for name, value in optional.items() if value is not None}
    if not _told_by_response(call):
        row["usage"] = usage_row(call.usage)
    return _dumps(row)


def usage_row(usage: Usage) -> JsonObject | None:
    """Usage in normalised names. Read and write are always named: it is they that mark the input as the whole."""
    if usage == Usage():
        return None
    row: JsonObject = {"input_tokens": usage.input_tokens}
    row |= {"read_tokens": usage.read_tokens, "write_tokens": usage.write_tokens}
    rest = {"write_5m_tokens": usage.write_5m_tokens, "write_1h_tokens": usage.write_1h_tokens}
    rest["output_tokens"] = usage.output_tokens
    return row | {name: value for name, value in rest.items() if value is not None}


def parse_time(text: str, name: str) -> tuple[datetime | None, bool]:
    """As `times.parsed`. Raises `MalformedRow`."""
    try:
        return times.parsed(text)
    except (ValueError, OverflowError):
        raise MalformedRow(f"{name}: want an ISO 8601 time, got {shown(text)}") from None


def _warn_naive(place: Place, context: Context, name: str) -> None:
    """Say once a file that its times name no offset."""
    context.once(place, "naive", f"{name} names no offset from UTC; times without one are read as UTC")


@cache
def _adapter() -> TypeAdapter[Row]:
    return TypeAdapter(Row)


def _validated(raw: JsonObject) -> Row:
    _known_schema(raw.get("schema"))
    try:
        return _adapter().validate_python(raw)
    except ValidationError as error:
        raise MalformedRow(_reason(error)) from None


def _known_schema(schema: object) -> None:
    if schema is None or schema == SCHEMA:
        return
    family, _, version = SCHEMA.rpartition("/")
    match = re.fullmatch(rf"{re.escape(family)}/([0-9]{{1,9}})", schema) if isinstance(schema, str) else None
    if match and int(match[1]) > int(version):
        raise MalformedRow(f"{schema} is newer than this program reads: /{version}; update the program")
    raise MalformedRow(f"schema: want {SCHEMA}, got {shown(schema)}")


def _reason(error: ValidationError) -> str:
    """One line for the first thing that pydantic found wrong."""
    detail = error.errors(include_url=False)[0]
    name = detail["loc"][0]
    where = f"{name}" if name not in ("tokens", "betas") else ".".join(_bare(step) for step in detail["loc"])
    value, kind = detail["input"], detail["type"]
    if kind in ("greater_than_equal", "less_than_equal"):
        bounds = detail["ctx"]
        limit = f"less than {bounds['ge']}" if "ge" in bounds else f"more than {bounds['le']}"
        return f"{where} is {shown(value)}, {limit}"
    want = f"one of {detail['ctx']['expected']}" if kind == "literal_error" else _WANT.get(kind, "another type")
    want = "text or a whole number" if name == "id" else want
    return f"{where}: want {want}, got {shown(value)}"


def _bare(step: object) -> str:
    """A step of a field's path; ASCII, so that a key cannot break the message's line."""
    return ascii(step)[1:-1][:80] if isinstance(step, str) else f"{step}"


def _required(row: Row) -> str:
    provider = (row.get("provider") or "").strip()
    if not provider:
        raise MalformedRow('provider is missing; add for example "provider":"anthropic"')
    facts = [name for name in ("request", "response", "usage") if row.get(name) is not None]
    if not facts and "usage" not in row:
        raise MalformedRow("none of request, response and usage is there; a row needs one of them")
    if row.get("started_at") is None and "usage" not in facts and "response" not in facts:
        raise MalformedRow("started_at is missing, and the row has neither response nor usage to count without it")
    return provider


def _label(row: LabelRow | None) -> Label | None:
    return None if row is None else Label(row["value"], row["finds"], row.get("what"), row.get("missed_tokens"))


def _shared(name: str | None) -> str | None:
    return None if name is None else intern(name)


def _model(body: JsonObject | None) -> str | None:
    name = body.get("model") if body else None
    return name if isinstance(name, str) and name else None


def time_of(text: str | None, name: str, place: Place, context: Context) -> datetime | None:
    """A row's time, with a warning where it is unknown all the same or names no offset. Raises `MalformedRow`."""
    if text is None:
        return None
    time, told = parse_time(text, name)
    if time is None:
        context.warn(place, f"{name} is {shown(text)}, which no clock showed; it is left out")
    elif not told:
        _warn_naive(place, context, name)
    return time


def _not_before(
    start: datetime | None, time: datetime | None, name: str, place: Place, context: Context
) -> datetime | None:
    """The time, or `None` with a warning where the clock ran backwards since the start."""
    if start is None or time is None or time >= start:
        return time
    seconds = (start - time).total_seconds()
    context.warn(place, f"{name} is {seconds:.3f} s before started_at; it is left out, check the recorder's clock")
    return None


def _loads_slowly(line: bytes) -> object:
    if b"\0" in line:
        raise MalformedRow(f"binary (NUL byte at byte {line.index(0)} of the row)")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        torn = error.reason == "unexpected end of data"
        raise (NotJson if torn else MalformedRow)(f"not UTF-8 (byte {error.start} of the row)") from None
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON (column {error.pos + 1}: {error.msg.lower()})") from None
    except RecursionError:
        _too_deep()
    except ValueError:
        raise MalformedRow("holds a whole number of more than 4300 digits") from None
    return _encodable(value)


def _encodable(value: object) -> object:
    """Refuse lone surrogates outside the bodies: ids and names go to a store and to a screen."""
    for name, text in value.items() if isinstance(value, dict) else ():
        try:
            name.encode()
            text.encode() if isinstance(text, str) else None
        except UnicodeEncodeError:
            raise MalformedRow(f"{_bare(name)}: want text without lone surrogates, got {shown(text)}") from None
    return value


def _too_deep() -> NoReturn:
    raise MalformedRow(f"nested deeper than {MAX_DEPTH} levels") from None


def _no_number(name: str) -> NoReturn:
    raise MalformedRow(f"holds {name}, which JSON does not have")


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise MalformedRow(f"holds a number too large for a double ({text[:20]})")
    return value


def _told_by_response(call: Call) -> bool:
    """Whether reading `response` alone gives this very usage, so that the row need not repeat it."""
    if call.response is None:
        return call.request is not None and call.usage == Usage()
    try:
        return of_response(call.response, call.provider) == call.usage
    except MalformedRow:
        return False


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _dumps(row: JsonObject) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError as refusal:  # whole numbers beyond 64 bits, lone surrogates, more than 254 levels
        try:
            return json.dumps(row, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise MalformedRow(f"call {row['id']}: cannot be written as JSON ({refusal})") from None
