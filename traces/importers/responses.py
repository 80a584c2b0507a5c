"""Bare responses: whole replies of a provider or engine, one JSON object a line, a list or document of them, or one
recorded event stream a file. Also rows of `{id, model, usage}`.

Engines name cached tokens only where told to: vLLM with `--enable-prompt-tokens-details`, SGLang as
`meta_info.cached_tokens` (in its OpenAI form only with `--enable-cache-report`), llama.cpp as `timings.cache_n`. Where
they are not named they are unknown. Engines have no writes and no lifetimes: entries are evicted, they do not expire.
Their text logs hold rates over many requests, which are nobody's usage, and are not read.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from traces.importers import streams
from traces.importers.documents import shapes
from traces.importers.endpoints import maker_of
from traces.importers.fields import inclusive, moment, obj, text
from traces.importers.reading import Item, calls, json_rows, reject, whole_text
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Place, Usage
from traces.wire.usage import of_response

NAME = "responses"
_NOT_OURS = frozenset(
    ("schema", "provider", "request", "message", "info", "data", "trace", "payload", "timestamp", "started_at")
) | frozenset(("uuid", "session_id", "sessionId", "startTime", "attributes"))


def sniff(head: bytes) -> bool:
    """Events of a stream, or objects with usage beside a model or choices, llama.cpp timings, SGLang's meta
    information."""
    return _is_stream(head) or any(_is_response(shape) for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a response."""
    with path.open("rb") as file:
        stream = _is_stream(file.read(2**16))
    items = _streamed(path, on_reject) if stream else json_rows(path, on_reject)
    return calls(items, partial(_call, path.stem, stream), on_reject)


def _is_stream(head: bytes) -> bool:
    start = head[:4096].decode(errors="replace")
    return streams.looks_like_events(start) and "data:" in start


def _streamed(path: Path, on_reject: OnReject | None) -> Iterator[Item]:
    """The final message of a recorded stream."""
    found = whole_text(path, on_reject)
    if found is None:
        return
    message = streams.fold(streams.events(found))
    place = Place(f"{path}", 1, 0, path.stat().st_size)
    if message is None:
        reject(on_reject, place, "a stream without a message")
    else:
        yield Item(place, message, b"")


def _is_response(shape: frozenset[str]) -> bool:
    if not _NOT_OURS.isdisjoint(shape):
        return False
    usage = "usage" in shape and bool({"choices", "model"} & shape)
    llama = "timings" in shape and bool({"content", "choices", "tokens_evaluated"} & shape)
    return usage or llama or "usageMetadata" in shape or "meta_info.prompt_tokens" in shape


def _call(stem: str, stream: bool, item: Item) -> Iterator[Call]:
    row = item.row
    meta = obj(row, "meta_info")
    if row.get("error") is None and meta.keys().isdisjoint(("prompt_tokens",)) and not _reports(row):
        return
    number = item.index + 1 if item.index >= 0 else item.place.line
    model = text(row, "model") or text(row, "modelVersion") or text(row, "request_model")
    provider = _provider(row, meta, model)
    usage = _usage(row, meta, provider)
    yield Call(
        id=text(row, "id") or text(row, "responseId") or text(meta, "id") or f"{stem}:{number}",
        trace=stem,
        provider=provider,
        started_at=moment(row.get("created", row.get("created_at")), "created"),
        seq=number,
        api=_api(row),
        model=model,
        response=None if meta else row,
        usage=usage,
        facts=_facts(row, stream and usage == Usage()) or None,
        place=item.place,
    )


def _facts(row: JsonObject, unasked: bool) -> JsonObject:
    """What the call's body would have told, and how a stream without usage ended."""
    facts: JsonObject = {}
    if isinstance(ttls := row.get("request_ttls"), list) and all(isinstance(ttl, str) for ttl in ttls):
        facts["ttls"] = ttls
    if not text(row, "model") and not text(row, "modelVersion") and text(row, "request_model"):
        facts["named"] = "request"
    if unasked:
        facts["answer"] = "complete" if row.get("error") is None else "error"
    return facts


def _reports(row: JsonObject) -> bool:
    """Whether a row is a reply at all; one whose usage was not asked for is a call of unknown usage."""
    return not row.keys().isdisjoint(("usage", "usageMetadata", "timings", "choices", "content", "output"))


def _api(row: JsonObject) -> str | None:
    kind = text(row, "object") or ""
    if kind.startswith("chat.completion"):
        return "chat"
    if row.get("type") == "message":
        return "messages"
    return "responses" if kind == "response" else None


def _provider(row: JsonObject, meta: JsonObject, model: str | None) -> str:
    """An engine by what only it writes, else the maker of the model, else unknown."""
    if meta:
        return "sglang"
    if "timings" in row:
        return "llama.cpp"
    if {"prompt_logprobs", "kv_transfer_params"} & row.keys():
        return "vllm"
    return maker_of(model or "") or "unknown"


def _usage(row: JsonObject, meta: JsonObject, provider: str) -> Usage:
    if meta:
        return inclusive(meta, whole="prompt_tokens", read="cached_tokens", output="completion_tokens")
    return of_response(row, "anthropic" if row.get("type") == "message" else provider)
