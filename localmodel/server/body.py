"""Reading what a client sends: the key, the caller, and a body within its limits."""

import asyncio
import zlib
from hmac import compare_digest

from starlette.requests import ClientDisconnect, Request

from localmodel.server.errors import BadRequest, TooLarge, Unauthorised, WrongEncoding
from localmodel.server.settings import Limits
from traces.errors import MalformedRow
from traces.rows import loads
from traces.schema import JsonObject

_SESSION = ("x-claude-code-session-id", "x-session-id", "session-id")
_AGENT = "x-claude-code-agent-id"
_WIDTH = 128


def keys_of(request: Request) -> list[str]:
    """The API keys sent: `x-api-key`, then a bearer token, on every path; some clients send both."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    found = [request.headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
    return [key for key in found if key]


def authorised(request: Request, allowed: list[str]) -> str | None:
    """The request's key, `None` where it has none.

    Raises `Unauthorised` where keys were given at start and none of those sent is one of them.
    """
    sent = keys_of(request)
    right = [key for key in sent if _among(key, allowed)] if allowed else sent
    if allowed and not right:
        raise Unauthorised("invalid x-api-key; send one that was given with --api-key, as x-api-key or Bearer")
    return right[0] if right else None


def _among(key: str, allowed: list[str]) -> bool:
    # Every key is compared, so that the time says nothing about which of them is close.
    equal = [compare_digest(key.encode(errors="replace"), one.encode(errors="replace")) for one in allowed]
    return any(equal)


def session_of(request: Request) -> tuple[str, str]:
    """(session, agent) that the client names in its headers; ("serve", "main") where it names none."""
    session = next((found for name in _SESSION if (found := request.headers.get(name))), "serve")
    return session[:_WIDTH], request.headers.get(_AGENT, "main")[:_WIDTH]


def betas_of(request: Request) -> tuple[str, ...]:
    """The `anthropic-beta` values, all of them accepted."""
    text = ",".join(request.headers.getlist("anthropic-beta"))
    return tuple(word.strip()[:_WIDTH] for word in text.split(",") if word.strip())


async def json_body(request: Request, limits: Limits) -> JsonObject:
    """The request's JSON object. Raises `ServerError` for what is too large, too slow, or no JSON object."""
    try:
        async with asyncio.timeout(limits.body_s):
            raw = await _raw(request, limits.body_bytes)
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {limits.body_s:g} s") from None
    raw = _decoded(raw, request.headers.get("content-encoding", "identity").lower(), limits.body_bytes)
    try:
        value = loads(raw)
    except MalformedRow as error:
        raise BadRequest(f"the body is {str(error).replace(' of the row', '')}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is no JSON object")
    return value


async def _raw(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise BadRequest("the client went away") from None
    return b"".join(chunks)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body exceeds the maximum of {limit} bytes")


def _decoded(raw: bytes, encoding: str, limit: int) -> bytes:
    """The body without its content-encoding, never unpacked beyond the limit."""
    if encoding in ("", "identity"):
        return raw
    if encoding not in ("gzip", "deflate"):
        raise WrongEncoding(f"content-encoding {encoding[:40]!r} is not read; send identity, gzip or deflate")
    unpacker = zlib.decompressobj(wbits=47)
    try:
        made = unpacker.decompress(raw, limit + 1)
    except zlib.error:
        raise BadRequest(f"the body is not {encoding}, which content-encoding says it is") from None
    if len(made) > limit:
        raise _too_large(limit)
    return made


async def gone(request: Request) -> None:
    """Return when the client has closed its connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
