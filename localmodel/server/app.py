"""The ASGI application: paths, prefixes, errors in the shape of the dialect that was spoken."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localmodel.prometheus import KIND
from localmodel.server import anthropic, body, chat, dialect, responses
from localmodel.server.errors import BackendFailed, BadRequest, NotFound, ServerError, WrongMethod
from localmodel.server.openapi import description
from localmodel.server.schema import CountTokensRequest, parse
from localmodel.server.service import Service
from traces.canonical import dump
from traces.schema import JsonObject

LOG = logging.getLogger("cachewright.serve")

_DIALECTS = {
    "/v1/messages": anthropic.DIALECT,
    "/v1/chat/completions": chat.DIALECT,
    "/v1/responses": responses.DIALECT,
}
_OTHERS = ("/cachewright/calls", "/metrics", "/openapi.json")


def application(service: Service, ready: Callable[[], None] = lambda: None) -> ASGIApp:
    """The application for `service`; `ready` is called once it takes requests."""
    pages = Pages(service)
    routes = [
        *(Route(path, partial(_served, service, spoken), methods=["POST"]) for path, spoken in _DIALECTS.items()),
        Route("/v1/messages/count_tokens", pages.count_tokens, methods=["POST"]),
        Route("/v1/models", pages.models),
        Route("/v1/models/{name:path}", pages.model),
        Route("/cachewright/calls", pages.calls),
        Route("/metrics", pages.metrics),
        Route("/openapi.json", pages.openapi),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        ready()
        yield
        service.close()

    handlers = {ServerError: _refused, HTTPException: _unrouted, Exception: _broken}
    return WithoutPrefix(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers))


class WithoutPrefix:
    """Drops whatever stands in front of a known path: clients keep a base URL's own path, and runs are told by it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, its path shortened."""
        if scope["type"] == "http":
            scope = {**scope, "path": route_of(scope["path"]), "root_path": ""}
        await self._app(scope, receive, send)


def route_of(path: str) -> str:
    """The known path at the end of `path`, else `path` itself."""
    path = path.rstrip("/") or "/"
    place = path.rfind("/v1/")
    if place >= 0:
        return path[place:]
    return next((known for known in _OTHERS if path.endswith(known)), path)


async def _served(service: Service, spoken: dialect.Dialect, request: Request) -> Response:
    request.state.dialect = spoken
    return await service.respond(request, spoken)


class Pages:
    """Everything that needs no slot."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since = datetime.now(UTC).replace(microsecond=0)

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`: exact, cheap, and never in the way of a generation."""
        request.state.dialect = anthropic.DIALECT
        key = body.authorised(request, self._service.settings.api_keys)
        sent = await body.json_body(request, self._service.limits)
        parse(CountTokensRequest, sent)
        return _json({"input_tokens": await self._service.count(sent, key)})

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`, in Anthropic's shape where `anthropic-version` is sent."""
        body.authorised(request, self._service.settings.api_keys)
        rows = [self._row(request, name) for name in self._names()]
        if not _speaks_anthropic(request):
            return _json({"object": "list", "data": rows})
        return _json({"data": rows, "has_more": False, "first_id": rows[0]["id"], "last_id": rows[-1]["id"]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        body.authorised(request, self._service.settings.api_keys)
        name = request.path_params["name"]
        if name not in self._names():
            raise NotFound(f"model: {name[:80]!r} is not listed; any name is accepted in requests", "model")
        return _json(self._row(request, name))

    def _names(self) -> list[str]:
        """The model, and the same under a name that Claude Code does not ignore."""
        return [self._service.backend.name, f"claude-{self._service.backend.name}"]

    def _row(self, request: Request, name: str) -> JsonObject:
        if not _speaks_anthropic(request):
            return {"id": name, "object": "model", "created": int(self._since.timestamp()), "owned_by": "cachewright"}
        window = self._service.backend.context_window
        row = {"type": "model", "id": name, "display_name": name, "created_at": self._since.isoformat()}
        return {**row, "lifecycle": "active", "max_input_tokens": window, "max_tokens": window}

    async def calls(self, request: Request) -> Response:
        """`GET /cachewright/calls`: the latest calls of this key, oldest first."""
        key = body.authorised(request, self._service.settings.api_keys)
        return _json({"calls": self._service.calls(key)})

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`."""
        body.authorised(request, self._service.settings.api_keys)
        return Response(self._service.figures(), media_type=KIND)

    async def openapi(self, request: Request) -> Response:
        """`GET /openapi.json`."""
        return _json(description(keys_demanded=bool(self._service.settings.api_keys)))


def _speaks_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _json(value: JsonObject, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, "application/json")


async def _refused(request: Request, error: Exception, more: Mapping[str, str] | None = None) -> Response:
    """A refusal in the shape of the dialect that was spoken."""
    assert isinstance(error, ServerError)
    spoken: dialect.Dialect | None = getattr(request.state, "dialect", None)
    if spoken is None:
        messages = _speaks_anthropic(request) or request.url.path.startswith("/v1/messages")
        spoken = anthropic.DIALECT if messages else chat.DIALECT
    name = f"req_{uuid4().hex[:24]}"
    headers = {"request-id": name, "x-request-id": name, **(more or {})}
    status = spoken.status(error)
    if status in (503, 529):
        headers["retry-after"] = "1"
    return _json(spoken.error(error, name), status, headers)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    kinds: dict[int, ServerError] = {
        404: NotFound(f"no such path: {path}"),
        405: WrongMethod(f"{request.method} is not allowed on {path}"),
    }
    # Its headers: a 405 must say what is allowed (RFC 9110).
    return await _refused(request, kinds.get(error.status_code, BadRequest(str(error.detail))), error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    LOG.error("request failed", exc_info=error)
    return await _refused(request, BackendFailed("the server failed; see its log"))
