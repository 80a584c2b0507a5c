"""The description at `/openapi.json`, made from the models that parse the bodies."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic.json_schema import models_json_schema

from localmodel.server.schema import Body, ChatRequest, CountTokensRequest, MessagesRequest, ResponsesRequest
from localmodel.server.shapes import ANY_OBJECT, NULL, TEXT, either, form, many, one_of
from traces.schema import JsonObject

_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_ANTHROPIC_ERROR = form(
    "type error request_id", type=one_of("error"), error=form("type message", type=TEXT, message=TEXT), request_id=TEXT
)
_EVENT = form("data", event=TEXT, data=TEXT)
_NAME = either(TEXT, NULL)
_OPENAI_ERROR = form(
    "error", error=form("message type param code", message=TEXT, type=TEXT, param=_NAME, code=_NAME)
)  # fmt: skip
_MESSAGE = form(
    "id type role model content stop_reason usage",
    id=TEXT, type=one_of("message"), role=one_of("assistant"), model=TEXT, content=many(ANY_OBJECT), stop_reason=TEXT,
    usage=form("input_tokens cache_creation_input_tokens cache_read_input_tokens output_tokens",
               input_tokens=_COUNT, cache_creation_input_tokens=_COUNT, cache_read_input_tokens=_COUNT,
               output_tokens=_COUNT),
)  # fmt: skip
_COMPLETION = form(
    "id object created model choices usage",
    id=TEXT, object=one_of("chat.completion"), created=_COUNT, model=TEXT, choices=many(ANY_OBJECT, 1),
    usage=form("prompt_tokens completion_tokens total_tokens", prompt_tokens=_COUNT, completion_tokens=_COUNT,
               total_tokens=_COUNT),
)  # fmt: skip
_RESPONSE = form(
    "id object created_at status model output usage",
    id=TEXT, object=one_of("response"), created_at=_COUNT, status=one_of("completed", "incomplete"), model=TEXT,
    output=many(ANY_OBJECT),
    usage=form("input_tokens output_tokens total_tokens", input_tokens=_COUNT, output_tokens=_COUNT,
               total_tokens=_COUNT),
)  # fmt: skip
_MODEL = either(form("id object", id=TEXT, object=one_of("model")), form("id type", id=TEXT, type=one_of("model")))

_BODIES: dict[str, tuple[str, type[Body], JsonObject, JsonObject]] = {
    "/v1/messages": ("Anthropic Messages, streaming or not", MessagesRequest, _MESSAGE, _ANTHROPIC_ERROR),
    "/v1/messages/count_tokens": (
        "Tokens of a Messages body", CountTokensRequest, form("input_tokens", input_tokens=_COUNT), _ANTHROPIC_ERROR,
    ),
    "/v1/chat/completions": (
        "OpenAI Chat Completions, streaming or not", ChatRequest, _COMPLETION, _OPENAI_ERROR,
    ),
    "/v1/responses": ("OpenAI Responses, streaming or not", ResponsesRequest, _RESPONSE, _OPENAI_ERROR),
}  # fmt: skip
_PAGES: dict[str, tuple[str, str, JsonObject]] = {
    "/v1/models": (
        "Models, in the shape of the dialect that the headers speak", "application/json",
        form("data", data=many(_MODEL)),
    ),
    "/v1/models/{name}": ("One model, in the same shape", "application/json", _MODEL),
    "/cachewright/calls": (
        "The latest calls of the caller's key: plan, usage, verdict and cause", "application/json",
        form("calls", calls=many(ANY_OBJECT)),
    ),
    "/metrics": ("Counters in Prometheus' text format", "text/plain", TEXT),
}  # fmt: skip
_STATUSES = {
    "200": "The reply; x-cachewright-verdict, -cause, -read and -write say what the cache did",
    "400": "A request that the provider itself would refuse",
    "401": "No key, or none of those given with --api-key",
    "413": "A body beyond the limit",
    "415": "A content-encoding that is not read",
    "504": "The reply took too long",
}
_BUSY = "The queue is full"


def description(*, keys_demanded: bool = True) -> JsonObject:
    """The OpenAPI 3.1 document. Without `keys_demanded` a request need not, but may, carry one."""
    kinds = [kind for _, kind, _, _ in _BODIES.values()]
    names, schema = models_json_schema([(k, "validation") for k in kinds], ref_template="#/components/schemas/{model}")
    paths: JsonObject = {path: {"post": _operation(path, names)} for path in _BODIES}
    paths |= {path: {"get": _page(path)} for path in _PAGES}
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
        "security": [{"key": []}, {"bearer": []}, *([] if keys_demanded else [{}])],
    }


def _operation(path: str, names: Any) -> JsonObject:
    summary, kind, reply, error = _BODIES[path]
    statuses = _STATUSES | ({"529": _BUSY} if path.startswith("/v1/messages") else {"503": _BUSY})
    responses = {code: _reply(text, _json(error)) for code, text in statuses.items()}
    stream = {} if kind is CountTokensRequest else {"text/event-stream": {"schema": _EVENT}}
    responses["200"] = _reply(statuses["200"], _json(reply) | stream)
    content = _json(names[kind, "validation"])
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": responses}


def _page(path: str) -> JsonObject:
    summary, media, reply = _PAGES[path]
    refused = _json(either(_ANTHROPIC_ERROR, _OPENAI_ERROR))
    responses = {"200": _reply(summary, {media: {"schema": reply}}), "401": _reply(_STATUSES["401"], refused)}
    if "{" not in path:
        return {"summary": summary, "responses": responses}
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    return {
        "summary": summary, "parameters": [name], "responses": responses | {"404": _reply("No such model", refused)},
    }  # fmt: skip


def _json(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}


def _reply(text: str, content: JsonObject) -> JsonObject:
    return {"description": text, "content": content}


def _version() -> str:
    try:
        return version("cachewright")
    except PackageNotFoundError:
        return "0"
