"""Records of the spool -> one `Exchange`, with the `Call` that it means."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import orjson

from harness.proxy.routes import DEFAULT_RUN
from harness.recorder.assemble import Reply, of_json, of_stream
from harness.recorder.journal import Kind, Record
from harness.recorder.links import Linked, Links
from harness.recorder.sse import Event, events
from traces.errors import MalformedRow
from traces.exchange import Exchange
from traces.schema import Call, JsonObject, Usage
from traces.schema import Kind as CallKind
from traces.wire.usage import of_response

_MS = 1_000_000
# Sessions and agents as clients name them: Claude Code, Codex, opencode.
_SESSION = ("x-claude-code-session-id", "session-id", "session_id", "x-session-id", "x-session-affinity")
_AGENT = ("x-claude-code-agent-id", "x-cachewright-agent")
_SUBAGENT = ("x-claude-code-agent-id", "x-parent-session-id")
_REQUEST_ID = ("request-id", "x-request-id")
_HOSTS = ("deepseek", "openrouter", "moonshot", "mistral", "bedrock", "vertex", "azure", "x.ai", "minimax", "z.ai")

CHARS_PER_TOKEN = 4
"""For an estimate of output where the provider gave none; marked as an estimate wherever it is shown."""


@dataclass(slots=True)
class _Raw:
    """The records of one call, put together."""

    open: JsonObject
    started: int
    request: bytes = b""
    head: JsonObject | None = None
    head_at: int = 0
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    end: JsonObject | None = None
    ended: int = 0


def exchange_of(records: Iterable[Record], links: Links, seq: int) -> Exchange | None:
    """The exchange that one call's records tell; `None` where not even its beginning was written."""
    raw = _gathered(records)
    if raw is None:
        return None
    body = b"".join(data for _, data in raw.pieces)
    stream = bool(raw.head and raw.head["stream"]) and not raw.open["redacted"]
    found = list(events(body)) if stream else []
    reply = of_stream(found, raw.open["api"]) if stream else of_json(body)
    if raw.open["redacted"] and reply.message is not None:
        told = reply.message["redacted"]
        reply = Reply(reply.message, told["finished"], told["error"], seen=told["seen"])
    end = raw.end or {"outcome": "interrupted", "wire": len(body), "note": "", "coding_whole": True}
    request = _object(raw.request)
    ok = end["outcome"] == "complete" and (raw.head or {}).get("status", 0) < 400 and not reply.error
    run = raw.open["run"] or _named(raw.open["headers"], _SESSION) or _session_in(request) or DEFAULT_RUN
    linked = links.add(run, raw.open["id"], request, raw.open["digest"], ok) if raw.open["api"] else Linked()
    facts = _facts(raw, end, reply, found, linked)
    return Exchange(
        id=raw.open["id"],
        started_at=_time(raw.started),
        method=raw.open["method"],
        path=raw.open["path"],
        upstream=raw.open["upstream"],
        outcome=end["outcome"],
        status=raw.head["status"] if raw.head else None,
        conversation=linked.conversation,
        request=None if raw.open["redacted"] or not raw.request else raw.request,
        response=None if raw.open["redacted"] or not body else body,
        facts=facts,
        call=_call(raw, run, request, reply, facts, linked, seq) if raw.open["api"] else None,
    )


def _gathered(records: Iterable[Record]) -> _Raw | None:
    raw: _Raw | None = None
    for kind, at, data in records:
        if kind is Kind.OPEN:
            raw = _Raw(orjson.loads(data), at)
        elif raw is None:
            continue
        elif kind is Kind.REQUEST:
            raw.request += data
        elif kind is Kind.HEAD:
            raw.head, raw.head_at = orjson.loads(data), at
        elif kind is Kind.RESPONSE:
            raw.pieces.append((at, data))
        else:
            raw.end, raw.ended = orjson.loads(data), at
    return raw


def _facts(raw: _Raw, end: JsonObject, reply: Reply, found: list[Event], linked: Linked) -> JsonObject:
    """Everything about an attempt that is no column; see docs/proxy.md."""
    request = {key: raw.open[key] for key in ("headers", "wire", "size", "digest", "masked", "note")}
    facts: JsonObject = {
        "request": request,
        "result": _result(raw, end, reply),
        "times": _times(raw, end, reply, found),
    }
    if raw.head is not None:
        response = {key: end[key] for key in ("wire", "note", "cut") if end.get(key)}
        if not end["coding_whole"]:
            response["transport"] = "incomplete: the coding's own end never came"
        facts["response"] = {"headers": raw.head["headers"], **response}
    if raw.open["redacted"]:
        facts["redacted"] = True
    if linked.links:
        facts["links"] = linked.links
    output = _usage(reply.message, raw).output_tokens
    if reply.seen and output is None:
        tokens = -(-reply.seen // CHARS_PER_TOKEN)
        method = f"{reply.seen} characters received / {CHARS_PER_TOKEN}"
        facts["estimate"] = {"output_tokens": tokens, "method": method}
    if raw.open["api"] == "chat" and raw.head and raw.head["stream"] and output is None and reply.finished:
        facts["hint"] = 'no usage: the client did not ask for it; send "stream_options": {"include_usage": true}'
    return facts


def _result(raw: _Raw, end: JsonObject, reply: Reply) -> str:
    """What came of it: complete, error (of the provider, also inside a stream), or aborted."""
    if reply.error or (raw.head is not None and raw.head["status"] >= 400) or end["outcome"] == "unreachable":
        return "error"
    whole = end["outcome"] == "complete" and (reply.finished or raw.open["api"] is None or not raw.pieces)
    return "complete" if whole else "aborted"


def _times(raw: _Raw, end: JsonObject, reply: Reply, found: list[Event]) -> JsonObject:
    """Milliseconds since the request began: head, first byte of the body, first token, end, and each event."""
    times: JsonObject = {}
    if raw.head_at:
        times["head_ms"] = _ms(raw.head_at - raw.started)
    if end.get("first_byte"):
        times["first_byte_ms"] = _ms(end["first_byte"] - raw.started)
    ends = list(accumulate(len(data) for _, data in raw.pieces))
    arrived = [raw.pieces[min(bisect_left(ends, event.end), len(ends) - 1)][0] for event in found]
    if reply.first is not None:
        times["first_token_ms"] = _ms(arrived[reply.first] - raw.started)
    elif not found and "first_byte_ms" in times and reply.message is not None:
        times["first_token_ms"] = times["first_byte_ms"]
    if raw.ended:
        times["end_ms"] = _ms(raw.ended - raw.started)
    if arrived:
        times["events_ms"] = [_ms(at - raw.started) for at in arrived]
    return times


def _call(
    raw: _Raw, run: str, request: JsonObject | None, reply: Reply, facts: JsonObject, linked: Linked, seq: int
) -> Call:
    headers = raw.open["headers"]
    first = facts["times"].get("first_token_ms")
    failed = raw.head is None or raw.head["status"] >= 400
    model = (request or {}).get("model")
    return Call(
        id=raw.open["id"],
        trace=run,
        provider=_provider(raw),
        started_at=_time(raw.started),
        seq=seq,
        agent=raw.open["agent"] or _named(headers, _AGENT) or "main",
        kind=_kind(raw, request, linked),
        attempt=linked.attempt,
        api="messages" if raw.open["api"] == "count" else raw.open["api"],
        host=raw.open["upstream"].partition("://")[2].partition("/")[0],
        key_fp=raw.open["key_fp"],
        model=model if isinstance(model, str) else None,
        betas=tuple(_betas(headers)),
        first_token_at=None if first is None or failed else _time(raw.started + int(first * _MS)),
        ended_at=_time(raw.ended) if raw.ended else None,
        status=raw.head["status"] if raw.head else 0,
        request=request,
        response=reply.message,
        usage=_usage(reply.message, raw),
    )


def _kind(raw: _Raw, request: JsonObject | None, linked: Linked) -> CallKind:
    if raw.open["api"] == "count":
        return "count"
    if "retry_of" in linked.links:
        return "retry"
    if request is not None and request.get("max_tokens") == 0:
        return "prewarm"
    return "subagent" if _named(raw.open["headers"], _SUBAGENT) else "main"


def _usage(message: JsonObject | None, raw: _Raw) -> Usage:
    """Reported usage; a figure that cannot be one leaves all unknown. A count of tokens is no usage."""
    if message is None or raw.open["api"] in (None, "count"):
        return Usage()
    try:
        return of_response(message, _provider(raw))
    except MalformedRow:
        return Usage()


def _provider(raw: _Raw) -> str:
    host = raw.open["upstream"].lower()
    known = next((name for name in _HOSTS if name in host), None)
    return known or ("anthropic" if raw.open["api"] in ("messages", "count") else "openai")


def _betas(headers: list[list[str]]) -> list[str]:
    return [
        beta.strip()
        for name, value in headers
        if name.lower() == "anthropic-beta"
        for beta in value.split(",")
        if beta.strip()
    ]


def _named(headers: list[list[str]], names: tuple[str, ...]) -> str | None:
    found = {name.lower(): value for name, value in headers}
    return next((found[name] for name in names if found.get(name)), None)


def _session_in(request: JsonObject | None) -> str | None:
    """The session as OpenAI clients name it: one cache key a session."""
    key = (request or {}).get("prompt_cache_key")
    return key if isinstance(key, str) and key else None


def _object(body: bytes) -> JsonObject | None:
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).replace(microsecond=ns // 1000 % 1_000_000)


def _ms(ns: int) -> float:
    return round(ns / _MS, 3)
