"""LiteLLM logs: StandardLoggingPayload (callbacks, S3, GCS) and rows of the proxy's SpendLogs table.

`prompt_tokens` is the whole prompt; the cache's share stands in the provider's own usage (`metadata.usage_object`, else
the logged response). `cache_hit` is LiteLLM's own cache of responses: such a row asked no provider and is no call.
Bodies are in Chat form whoever was asked, except where the Messages API was passed through: they are not what was sent
byte for byte. Retries and fallbacks share a `trace_id`.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from traces import rows
from traces.importers import bodies
from traces.importers.documents import shapes
from traces.importers.endpoints import provider_named
from traces.importers.fields import first, moment, obj, text
from traces.importers.reading import Item, calls, json_rows
from traces.importers.transcripts import REDACTED
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import normalise

NAME = "litellm"
_FIELDS = frozenset(("call_type", "startTime"))
_OURS = frozenset(("custom_llm_provider", "model_group", "litellm_call_id", "request_id", "model_map_information"))
# Call types -> API; others (embeddings, images, speech) ask no language model.
_APIS = {
    "completion": "chat",
    "acompletion": "chat",
    "text_completion": "completions",
    "atext_completion": "completions",
    "anthropic_messages": "messages",
    "aanthropic_messages": "messages",
    "responses": "responses",
    "aresponses": "responses",
    "generate_content": "generate_content",
    "agenerate_content": "generate_content",
    "agenerate_content_stream": "generate_content",
}


def sniff(head: bytes) -> bool:
    """Rows with a call type and a start, and names that only LiteLLM gives."""
    return any(shape >= _FIELDS and _OURS & shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a row that asked a provider's language model."""
    return calls(json_rows(path, on_reject), partial(_call, path.stem), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The messages and parameters of a row as one body."""
    row = rows.loads(span)
    return _request(row, _APIS.get(f"{row.get('call_type')}")) if isinstance(row, dict) else None


def _call(stem: str, item: Item) -> Iterator[Call]:
    row = item.row
    api = _APIS.get(f"{row.get('call_type')}")
    if api is None or row.get("cache_hit") in (True, "True", "true"):
        return
    number = item.index + 1 if item.index >= 0 else item.place.line
    metadata, response = _object(row.get("metadata")), _object(row.get("response")) or None
    model = text(row, "model")
    provider = provider_named(text(row, "custom_llm_provider"), model)
    started = moment(row.get("startTime"), "startTime")
    ended, begun = moment(row.get("endTime"), "endTime"), moment(row.get("completionStartTime"), "completionStartTime")
    # Without streaming LiteLLM sets the first token's time to the end.
    streamed = begun is not None and started is not None and started <= begun and begun != ended
    yield Call(
        id=_id(row, response) or f"{stem}:{number}",
        trace=text(row, "session_id") or text(row, "trace_id") or stem,
        provider=provider,
        started_at=started,
        seq=number,
        api=api,
        model=model,
        first_token_at=begun if streamed else None,
        ended_at=ended if started and ended and ended >= started else None,
        status=_status(row),
        request=_request(row, api),
        response=response,
        usage=_usage(row, metadata, response, provider),
        place=item.place,
    )


def _id(row: JsonObject, response: JsonObject | None) -> str | None:
    return text(response or {}, "id") or text(row, "id") or text(row, "request_id") or text(row, "litellm_call_id")


def _usage(row: JsonObject, metadata: JsonObject, response: JsonObject | None, provider: str) -> Usage:
    """The provider's own usage with LiteLLM's whole prompt; the totals alone say nothing about the cache."""
    if row.get("status") == "failure":
        return Usage()
    extra = {name: value for name, value in obj(metadata, "additional_usage_values").items() if value is not None}
    raw = first(metadata, "usage_object") or (response or {}).get("usage") or extra
    totals = {name: row.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return normalise(totals | raw if isinstance(raw, dict) else totals, provider)


def _status(row: JsonObject) -> int | None:
    if row.get("status") != "failure":
        return 200 if row.get("status") == "success" else None
    code = obj(row, "error_information").get("error_code")
    return int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else 500


def _request(row: JsonObject, api: str | None) -> JsonObject | None:
    """`None` where messages were left out, redacted or cut to a text."""
    sent = _object(row.get("proxy_server_request"))
    if api is not None and isinstance(sent.get("messages"), list):
        return sent
    messages = row.get("messages")
    if isinstance(messages, str):
        messages = _list(messages)
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        return None
    if any(message.get("content") in REDACTED for message in messages if isinstance(message.get("content"), str)):
        return None
    return {"model": row.get("model")} | obj(row, "model_parameters") | {"messages": messages}


def _object(value: object) -> JsonObject:
    """An object, or the JSON text of one, as table exports have it; else empty."""
    if isinstance(value, str):
        return bodies.json_object(value) or {}
    return value if isinstance(value, dict) else {}


def _list(value: str) -> list[Any] | None:
    found = bodies.json_object(f'{{"list":{value}}}') if value.startswith("[") else None
    return found.get("list") if found else None
