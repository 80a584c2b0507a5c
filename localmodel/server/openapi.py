"""The description at `/openapi.json`, made from the models that parse the bodies."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic.json_schema import models_json_schema

from localmodel.server.schema import Body, ChatRequest, CountTokensRequest, MessagesRequest, ResponsesRequest
from traces.schema import JsonObject

_BODIES: dict[str, tuple[str, type[Body]]] = {
    "/v1/messages": ("Anthropic Messages, streaming or not", MessagesRequest),
    "/v1/messages/count_tokens": ("Tokens of a Messages body", CountTokensRequest),
    "/v1/chat/completions": ("OpenAI Chat Completions, streaming or not", ChatRequest),
    "/v1/responses": ("OpenAI Responses, streaming or not", ResponsesRequest),
}
_PAGES = {
    "/v1/models": "Models, in the shape of the dialect that the headers speak",
    "/cachewright/calls": "The latest calls of the caller's key: plan, usage, verdict and cause",
    "/metrics": "Counters in Prometheus' text format",
}
_STATUSES = {
    "200": "The reply; x-cachewright-verdict, -cause, -read and -write say what the cache did",
    "400": "A request that the provider itself would refuse",
    "401": "No key, or none of those given with --api-key",
    "413": "A body beyond the limit",
    "415": "A content-encoding that is not read",
    "504": "The reply took too long",
}
_BUSY = "The queue is full"


def description() -> JsonObject:
    """The OpenAPI 3.1 document."""
    kinds = [kind for _, kind in _BODIES.values()]
    names, schema = models_json_schema([(k, "validation") for k in kinds], ref_template="#/components/schemas/{model}")
    paths: JsonObject = {
        path: {"post": _operation(text, names[kind, "validation"])} for path, (text, kind) in _BODIES.items()
    }
    paths |= {path: {"get": _operation(text, None)} for path, text in _PAGES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "cachewright serve", "version": _version()},
        "paths": paths,
        "components": {
            "schemas": schema.get("$defs", {}),
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"key": []}, {"bearer": []}],
    }


def _operation(summary: str, reference: Any) -> JsonObject:
    statuses = {**_STATUSES, "503": f"{_BUSY} (OpenAI dialects)", "529": f"{_BUSY} (Anthropic dialect)"}
    if reference is None:
        return {"summary": summary, "responses": {code: {"description": statuses[code]} for code in ("200", "401")}}
    content = {"application/json": {"schema": reference}}
    responses = {code: {"description": text} for code, text in statuses.items()}
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": responses}


def _version() -> str:
    try:
        return version("cachewright")
    except PackageNotFoundError:
        return "0"
