"""Rows of the store's tables, and the values they stand for.

Text goes into SQLite as text, except where it has lone surrogates, which SQLite refuses: those go as bytes. Times are
ISO text in UTC with microseconds. JSON is packed text (`auditor.store_bodies`). Absent stays NULL and 0 stays 0.
"""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import asdict

from auditor.errors import StoreError
from auditor.store_bodies import digest, dumps, loads, pack, split, unpack
from traces.schema import Call, JsonObject, Label, Place, Usage
from traces.wire.labels import without_label

_USAGE = ("input_tokens", "read_tokens", "write_tokens", "write_5m_tokens", "write_1h_tokens", "output_tokens")
_PLACE = ("file", "line", "offset", "length")
_TIMES = ("started_at", "first_token_at", "ended_at")
_TEXTS = ("id", "trace", "provider", "agent", "parent", "kind", "clock", "api", "host", "key_fp", "model", "file")
_WHOLE = ("seq", "attempt", "status", *_USAGE, "line", "offset", "length")
_PLAIN = (
    *("id", "trace", "provider", "started_at", "seq", "agent", "parent", "kind", "attempt", "api", "host", "key_fp"),
    *("model", "first_token_at", "ended_at", "status", "clock"),
)

CALL_COLUMNS = (
    *("key", "id", "trace", "provider", "started_at", "seq", "agent", "parent", "kind", "attempt", "api", "host"),
    *("key_fp", "model", "betas", "first_token_at", "ended_at", "status", "clock", *_USAGE, *_PLACE),
    *("facts", "label", "tokens", "response", "request", "blocks"),
)
OUTCOME_COLUMNS = (
    *("call", "read_tokens", "write_tokens", "uncached_tokens", "verdict", "cause", "lost_tokens", "diagnosis"),
)


class DamagedRow(ValueError):
    """A stored row is not what was written; `Store` says so as a `StoreError`."""


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Take whatever goes wrong in reading a stored row for what it means: others than this program changed it."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, StopIteration, RecursionError) as error:
        raise DamagedRow(f"{what}: {error or type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What one ruleset says about one call, in tokens; `None` is unknown. `call` is the call's `call_key`."""

    call: bytes
    read_tokens: int | None
    write_tokens: int | None
    uncached_tokens: int | None
    verdict: str
    cause: str | None = None
    lost_tokens: int | None = None
    diagnosis: JsonObject | None = None


class Body(NamedTuple):
    """What a call's key and row are made of: JSON texts, and the digests of all blocks in order, 16 bytes each.

    `fresh` holds the texts of the blocks that are new, by digest.
    """

    skeleton: bytes | None
    blocks: bytes
    response: bytes | None
    fresh: dict[bytes, bytes]


def call_key(call: Call) -> bytes:
    """Return the 16 bytes that identify a recorded call in the store, the same before and after storing it.

    They digest trace, id, attempt, start, request and response. Rows without bodies are told apart by `seq` and
    usage as well, which is all they have. Raises StoreError for bodies nested too deeply to be written as JSON.
    """
    return _key(call, body_of(call))


def body_of(call: Call, known: Container[bytes] = (), pending: Container[bytes] = ()) -> Body:
    """Take a call apart; `known` and `pending` hold the digests of blocks whose texts are not wanted.

    Raises StoreError for bodies nested too deeply to be written as JSON.
    """
    try:
        response = None if call.response is None else dumps(call.response)
        if call.request is None:
            return Body(None, b"", response, {})
        skeleton, blocks = split(call.request)
        names, fresh = _digests(blocks, known, pending)
        return Body(dumps(skeleton), names, response, fresh)
    except RecursionError as error:
        raise StoreError(f"{_where(call)}: nested too deeply for JSON; leave this row out") from error


def _digests(blocks: list[Any], known: Container[bytes], pending: Container[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    # Each text is dropped before the next is written: bodies are long, and most of their blocks are known.
    names: list[bytes] = []
    fresh: dict[bytes, bytes] = {}
    for block in blocks:
        text = dumps(block)
        name = digest(text)
        names.append(name)
        if name not in known and name not in pending:
            fresh[name] = text
    return b"".join(names), fresh


def _key(call: Call, body: Body) -> bytes:
    facts: list[Any] = [call.trace, call.id, call.attempt, _iso(call.started_at)]
    if body.skeleton is None and body.response is None:
        facts += [call.seq, *_usage_values(call.usage)]
    parts = (dumps(facts), body.skeleton or b"", body.blocks, body.response or b"")
    return digest(b"".join(map(digest, parts)))


def call_row(call: Call, body: Body) -> tuple[Any, ...]:
    """Return the values of `CALL_COLUMNS`. Raises StoreError for a number that SQLite cannot hold."""
    place = call.place
    row = (
        _key(call, body), sql_text(call.id), sql_text(call.trace), sql_text(call.provider), _iso(call.started_at),
        call.seq, sql_text(call.agent), sql_text(call.parent), call.kind, call.attempt, sql_text(call.api),
        sql_text(call.host), sql_text(call.key_fp), sql_text(call.model), dumps(call.betas).decode(),
        _iso(call.first_token_at), _iso(call.ended_at), call.status, call.clock,
        *_usage_values(call.usage),
        *((None,) * 4 if place is None else (sql_text(place.file), place.line, place.offset, place.length)),
        None if call.facts is None else pack(dumps(call.facts)),
        None if call.label is None else dumps(asdict(call.label)).decode(),
        None if call.tokens is None else pack(dumps(dict(call.tokens))),
        None if body.response is None else pack(body.response),
        None if body.skeleton is None else pack(body.skeleton),
        None if body.skeleton is None else body.blocks,
    )  # fmt: skip
    for value in row:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise StoreError(f"{_where(call)}: the number {value:.3g} has more than 64 bits; leave this row out")
    return row


def call_of(row: tuple[Any, ...], request: JsonObject | None) -> Call:
    """Return the call that `call_row` wrote; `request` is its body, put together again."""
    values = dict(zip(CALL_COLUMNS, row, strict=True))
    for name in _WHOLE:
        if values[name] is not None and type(values[name]) is not int:
            raise DamagedRow(f"{name} is no whole number")
    if type(values["key"]) is not bytes:
        raise DamagedRow("key is no digest")
    for name in _TEXTS:
        values[name] = _string(values[name])
    for name in _TIMES:
        values[name] = None if values[name] is None else datetime.fromisoformat(values[name])
    place = None if values["file"] is None else Place(*(values[name] for name in _PLACE))
    facts, label = without_label(json_value(values["facts"]))
    return Call(
        **{name: values[name] for name in _PLAIN},
        betas=tuple(loads(values["betas"].encode())),
        facts=facts,
        label=label if values["label"] is None else Label(**loads(values["label"].encode())),
        tokens=json_value(values["tokens"]),
        response=json_value(values["response"]),
        request=request,
        usage=Usage(**{name: values[name] for name in _USAGE}),
        place=place,
        key=values["key"],
    )


def outcome_row(row: OutcomeRow) -> tuple[Any, ...]:
    """Return the values of `OUTCOME_COLUMNS`."""
    diagnosis = None if row.diagnosis is None else pack(dumps(row.diagnosis))
    tokens = (row.read_tokens, row.write_tokens, row.uncached_tokens)
    return (row.call, *tokens, row.verdict, row.cause, row.lost_tokens, diagnosis)


def outcome_of(row: tuple[Any, ...]) -> OutcomeRow:
    """Return the outcome that `outcome_row` wrote."""
    values = dict(zip(OUTCOME_COLUMNS, row, strict=True))
    return OutcomeRow(**values | {"diagnosis": json_value(values["diagnosis"])})


def sql_text(value: str | None) -> str | bytes | None:
    """Return a value that SQLite takes: bytes in place of text with lone surrogates (as in odd file names)."""
    if value is None or value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def json_value(data: bytes | None) -> Any:
    """Return the value of a JSON column. Raises zlib.error for damaged data."""
    return None if data is None else loads(unpack(data))


def text_of(value: str | bytes) -> str:
    """Return the text that `sql_text` gave to SQLite."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _string(value: str | bytes | None) -> str | None:
    return None if value is None else text_of(value)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")


def _usage_values(usage: Usage) -> tuple[int | None, ...]:
    return tuple(getattr(usage, name) for name in _USAGE)


def _where(call: Call) -> str:
    return str(call.place) if call.place else f"call {call.id}"
