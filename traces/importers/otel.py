"""OpenTelemetry spans of generative AI in OTLP JSON: one export a document or a line (the collector's file exporter).

Only spans that ask a model count: agent and tool spans repeat their children's totals. By the convention
`gen_ai.usage.input_tokens` is the whole prompt; many emitters leave out what was cached, so where read + written exceed
it, it is taken for the remainder. Source: OpenTelemetry semantic conventions for generative AI, 0.66b2, and the names
that Strands, Sentry, Traceloop and OpenInference use.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from traces.errors import MalformedRow
from traces.importers.documents import shapes
from traces.importers.endpoints import provider_named
from traces.importers.fields import NANOSECONDS, first, items, moment, obj, text
from traces.importers.reading import Item, calls, json_rows, reject
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import checked, shown
from traces.wire.usage import count as tokens_of

NAME = "otel"
_OPERATIONS = ("chat", "text_completion", "generate_content")
_SPAN_KINDS = ("LLM",)  # OpenInference
_USAGE = "gen_ai.usage."
_INPUT = (_USAGE + "input_tokens", _USAGE + "prompt_tokens", "llm.token_count.prompt")
_OUTPUT = (_USAGE + "output_tokens", _USAGE + "completion_tokens", "llm.token_count.completion")
_READ = (
    *(_USAGE + "cache_read.input_tokens", _USAGE + "cache_read_input_tokens", _USAGE + "input_tokens.cached"),
    *("llm.usage.cache_read_input_tokens", "llm.token_count.prompt_details.cache_read"),
)
_WRITE = (
    *(_USAGE + "cache_creation.input_tokens", _USAGE + "cache_creation_input_tokens"),
    *(_USAGE + "cache_write_input_tokens", _USAGE + "input_tokens.cache_write"),
    *("llm.usage.cache_creation_input_tokens", "llm.token_count.prompt_details.cache_write"),
)


def sniff(head: bytes) -> bool:
    """Exports of spans."""
    return any("resourceSpans" in shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a span that asks a model. A span that cannot be used is rejected, its neighbours are kept."""
    return calls(json_rows(path, on_reject), partial(_calls, path.stem, on_reject, count(1)), on_reject)


def _calls(stem: str, on_reject: OnReject | None, numbers: Iterator[int], item: Item) -> Iterator[Call]:
    for number, span in enumerate(_spans(item.row)):
        try:
            call = _call(f"{stem}:{item.place.line}:{number + 1}", item, numbers, span)
        except MalformedRow as error:
            reject(on_reject, item.place, f"span {number + 1}: {error}")
            continue
        if call is not None:
            yield call


def _spans(export: JsonObject) -> Iterator[Any]:
    for resource in items(export, "resourceSpans"):
        scopes = resource if isinstance(resource, dict) else {}
        for scope in items(scopes, "scopeSpans") or items(scopes, "instrumentationLibrarySpans"):
            yield from items(scope, "spans") if isinstance(scope, dict) else ()


def _call(name: str, item: Item, numbers: Iterator[int], span: Any) -> Call | None:
    if not isinstance(span, dict):
        raise MalformedRow(f"want an object, got {shown(span)}")
    found = attributes(span)
    operation, model = text(found, "gen_ai.operation.name"), _model(found)
    asks = operation in _OPERATIONS or found.get("openinference.span.kind") in _SPAN_KINDS
    # Traceloop names no operation; what counts its request's tokens asked a model.
    asks = asks or (operation is None and "llm.request.type" in found)
    if not asks:
        return None
    started = moment(span.get("startTimeUnixNano"), "startTimeUnixNano", NANOSECONDS)
    ended = moment(span.get("endTimeUnixNano"), "endTimeUnixNano", NANOSECONDS)
    failed = obj(span, "status").get("code") in (2, "STATUS_CODE_ERROR")
    provider = first(found, "gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
    agent = text(found, "gen_ai.agent.id") or text(found, "gen_ai.agent.name")
    return Call(
        id=text(found, "gen_ai.response.id") or text(span, "spanId") or name,
        trace=text(found, "gen_ai.conversation.id")
        or text(found, "session.id")
        or text(span, "traceId")
        or name.partition(":")[0],
        provider=provider_named(provider if isinstance(provider, str) else None, model),
        started_at=started,
        seq=next(numbers),
        agent=agent or "main",
        host=text(found, "server.address"),
        model=model,
        ended_at=ended if started and ended and ended >= started else None,
        status=None if not failed else _status(found),
        usage=usage_of(found),
        place=item.place,
    )


def attributes(span: JsonObject) -> JsonObject:
    """Attributes by name. OTLP JSON writes whole numbers as text. Raises `MalformedRow` for another shape."""
    found: JsonObject = {}
    for pair in items(span, "attributes"):
        value = pair.get("value") if isinstance(pair, dict) else None
        name = pair.get("key") if isinstance(pair, dict) else None
        if isinstance(name, str) and isinstance(value, dict):
            found[name] = _plain(name, value)
    return found


def usage_of(found: JsonObject) -> Usage:
    """Usage by attributes. Raises `MalformedRow` for counts that are none."""
    whole, read, write, output = (_one(found, names) for names in (_INPUT, _READ, _WRITE, _OUTPUT))
    if whole is not None and (read or 0) + (write or 0) > whole:
        whole += (read or 0) + (write or 0)
    return checked(Usage(whole, read, write, output_tokens=output))


def _plain(name: str, value: JsonObject) -> Any:
    if "intValue" in value:
        number = value["intValue"]
        if isinstance(number, str):
            if not number.lstrip("-").isdecimal() or len(number) > 20:
                raise MalformedRow(f"{name}: want a whole number, got {shown(number)}")
            return int(number)
        return number
    return first(value, "stringValue", "doubleValue", "boolValue")


def _model(found: JsonObject) -> str | None:
    names = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return next((name for key in names if (name := text(found, key))), None)


def _status(found: JsonObject) -> int:
    code = first(found, "http.response.status_code", "error.type")
    code = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
    return code if type(code) is int and 400 <= code <= 999 else 500


def _one(found: JsonObject, names: tuple[str, ...]) -> int | None:
    return next((tokens_of(found[name], name) for name in names if found.get(name) is not None), None)
