"""Responses of local engines, one JSON object a line: vLLM, SGLang and llama.cpp, as their OpenAI-compatible and own
endpoints give them.

vLLM names cached tokens only with `--enable-prompt-tokens-details`, SGLang's own endpoint as `meta_info.cached_tokens`
(its OpenAI form only with `--enable-cache-report`), llama.cpp as `timings.cache_n`. Where they are not named they are
unknown. There are no writes and no lifetimes: entries are evicted, they do not expire.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from traces.importers.documents import shapes
from traces.importers.fields import inclusive, moment, obj, text
from traces.importers.reading import Item, calls, json_rows
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import of_response

NAME = "engine_usage"
_NOT_OURS = frozenset(("schema", "provider", "request", "message", "info", "data", "trace"))


def sniff(head: bytes) -> bool:
    """Whole responses: Chat or Completions with choices and usage, llama.cpp timings, or SGLang's meta information."""
    return any(_is_response(shape) for shape in shapes(head, "meta_info"))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a response."""
    return calls(json_rows(path, on_reject), partial(_call, path.stem), on_reject)


def _is_response(shape: frozenset[str]) -> bool:
    if not _NOT_OURS.isdisjoint(shape):
        return False
    chat = {"choices", "usage"} <= shape and {"object", "created", "model"} & shape
    llama = "timings" in shape and bool({"content", "choices", "tokens_evaluated"} & shape)
    return bool(chat) or llama or "meta_info.prompt_tokens" in shape


def _call(stem: str, item: Item) -> Iterator[Call]:
    row = item.row
    meta = obj(row, "meta_info")
    if not meta and "usage" not in row and "timings" not in row:
        return
    number = item.index + 1 if item.index >= 0 else item.place.line
    yield Call(
        id=text(row, "id") or text(meta, "id") or f"{stem}:{number}",
        trace=stem,
        provider=_engine(row, meta),
        started_at=moment(row.get("created"), "created"),
        seq=number,
        api="chat" if "chat" in (text(row, "object") or "") else None,
        model=text(row, "model"),
        response=None if meta else row,
        usage=_usage(row, meta),
        place=item.place,
    )


def _engine(row: JsonObject, meta: JsonObject) -> str:
    if meta:
        return "sglang"
    if "timings" in row or (text(row, "system_fingerprint") or "").startswith("b"):
        return "llama.cpp"
    return "vllm" if {"prompt_logprobs", "kv_transfer_params"} & row.keys() else "unknown"


def _usage(row: JsonObject, meta: JsonObject) -> Usage:
    if meta:
        return inclusive(meta, whole="prompt_tokens", read="cached_tokens", output="completion_tokens")
    return of_response(row, "unknown")
