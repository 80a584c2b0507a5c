"""A recorded HTTP request with its reply as a `Call`: what all raw captures share.

The body is kept as sent. Of headers and URL only the host, the betas and a fingerprint of the key are carried on.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from traces.canonical import digest, dump
from traces.errors import MalformedRow
from traces.importers import bodies, streams
from traces.importers.endpoints import Endpoint, betas_of, endpoint, fingerprint
from traces.importers.fields import text
from traces.schema import Call, JsonObject, Kind, Place, Usage
from traces.wire.usage import of_response

T = TypeVar("T")

_SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "session_id", "x-session-id", "thread-id")
_SESSION_IN_USER = re.compile(r"session(?:_id)?[\"':_ ]+([0-9a-fA-F-]{36})")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a capture tells of one request. `reply` is the body as an object or as text (JSON or events).

    `headers` by lower-case name; `name` is the id where the reply has none; `trace` where the request names none.
    """

    place: Place
    name: str
    trace: str
    method: str
    url: str
    headers: Mapping[str, str]
    body: JsonObject | None
    started: datetime | None = None
    first: datetime | None = None
    ended: datetime | None = None
    status: int | None = None
    reply: JsonObject | str | None = None
    seq: int = 0


def call_of(sent: Exchange) -> Call | None:
    """The call, or `None` for a request that asks no model (a list of models, a ping).

    Raises `MalformedRow` for usage that cannot be.
    """
    whom = endpoint(sent.url, sent.headers, sent.body or {})
    if whom.api is None or sent.method.upper() != "POST":
        return None
    response = folded(sent.reply)
    name = text(response, "id") if response else None
    agent = sent.headers.get("x-claude-code-agent-id")
    return Call(
        id=name or sent.name,
        trace=_session(sent) or sent.trace,
        provider=whom.provider,
        started_at=sent.started,
        seq=sent.seq or sent.place.line,
        agent=agent or "main",
        kind=_kind(whom, sent.body or {}, agent),
        api="messages" if whom.api == "count" else whom.api,
        host=whom.host,
        key_fp=fingerprint(sent.headers),
        model=whom.model or (text(response, "model") if response else None),
        betas=betas_of(sent.headers),
        first_token_at=_after(sent.started, sent.first),
        ended_at=_after(sent.started, sent.ended),
        status=sent.status,
        request=sent.body,
        response=response,
        usage=_usage(response, whom),
        place=sent.place,
    )


def folded(reply: JsonObject | str | None) -> JsonObject | None:
    """A reply as the final message; `None` where there was none or it cannot be read."""
    if isinstance(reply, str):
        return streams.fold(streams.events(reply)) if streams.looks_like_events(reply) else bodies.json_object(reply)
    return reply


@dataclass(slots=True)
class Attempts:
    """Numbers the attempts of one request: the same body again in the same trace after it failed."""

    latest: dict[str, tuple[bytes, int, bool]] = field(default_factory=dict)

    def numbered(self, call: Call) -> Call:
        """The call with its number; clients repeat a failed request without saying so."""
        if call.request is None:
            return call
        body = digest(dump(call.request))
        before = self.latest.get(call.trace)
        again = before is not None and before[0] == body and before[2]
        attempt = before[1] + 1 if again and before is not None else 1
        self.latest[call.trace] = (body, attempt, call.failed or (call.status is None and call.response is None))
        return call if attempt == 1 else replace(call, attempt=attempt)


def status_of(value: object) -> int | None:
    """An HTTP status; `None` for what is none, as the 0 of an aborted request and the 101 of a WebSocket."""
    return value if type(value) is int and 200 <= value <= 999 else None


def _usage(response: JsonObject | None, whom: Endpoint) -> Usage:
    if response is None or whom.api == "count":
        return Usage()
    # Whoever serves the Messages API, its bare input figure is the remainder.
    return of_response(response, "anthropic" if whom.api == "messages" else whom.provider)


def _kind(whom: Endpoint, body: JsonObject, agent: str | None) -> Kind:
    if whom.api == "count":
        return "count"
    if body.get("max_tokens") == 0 or body.get("generate") is False:
        return "prewarm"
    return "subagent" if agent else "main"


def _session(sent: Exchange) -> str | None:
    for name in _SESSION_HEADERS:
        if sent.headers.get(name):
            return sent.headers[name]
    body: dict[str, Any] = sent.body or {}
    user = text(body, "metadata", "user_id")
    found = _SESSION_IN_USER.search(user) if user else None
    return found[1] if found else text(body, "prompt_cache_key")


def _after(start: datetime | None, time: datetime | None) -> datetime | None:
    return None if start is None or time is None or time < start else time


def readable(body: Callable[[], T], what: str, said: list[str]) -> T | None:
    """A body, or `None` where it cannot be unpacked: `said` then says so. The call is kept, it was made and billed."""
    try:
        return body()
    except MalformedRow as error:
        said.append(f"{what} {error}")
        return None


def object_or_none(value: object, name: str) -> JsonObject | None:
    """A body that may be absent, an object, or its JSON text. Raises `MalformedRow` for a text that is no object."""
    if isinstance(value, str) and value.strip():
        found = bodies.json_object(value)
        if found is None:
            raise MalformedRow(f"{name}: want a JSON object, got text that is none")
        return found
    return value if isinstance(value, dict) else None
