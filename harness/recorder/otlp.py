"""Recorded calls as GenAI spans over OTLP, for who keeps traces elsewhere too.

Names are those of OpenTelemetry's GenAI semantic conventions (semantic-conventions-genai, still "development"):
`gen_ai.usage.input_tokens` is the whole input, cache reads and writes are parts of it. Where to send is what the
standard OTEL_EXPORTER_OTLP_* variables say. No content of prompts or answers is exported.
"""

from types import TracebackType
from typing import Any, Self

from traces.exchange import Exchange
from traces.schema import Call

_OPERATIONS = {"messages": "chat", "chat": "chat", "responses": "chat"}


class Spans:
    """Exports one span a call, in batches and off the recorder's way. Raises ImportError without the extra `otlp`."""

    def __init__(self, exporter: Any = None) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "cachewright"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cachewright")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider.shutdown()

    def take(self, exchange: Exchange) -> None:
        """Export an exchange that is a call of a model."""
        call = exchange.call
        if call is None or call.kind == "count" or call.started_at is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        name = f"chat {call.model}" if call.model else "chat"
        start = int(call.started_at.timestamp() * 1e9)
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes(exchange, call), start_time=start
        )
        if exchange.facts["result"] != "complete":
            span.set_attribute("error.type", str(exchange.status or exchange.outcome))
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=int(call.ended_at.timestamp() * 1e9) if call.ended_at else None)


def attributes(exchange: Exchange, call: Call) -> dict[str, str | int | float | tuple[str, ...]]:
    """The attributes of a call's span; what is unknown is left out."""
    response, usage = call.response or {}, call.usage
    host, _, port = (call.host or "").partition(":")
    found: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATIONS.get(call.api or "", "chat"),
        "gen_ai.provider.name": call.provider,
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": response.get("model"),
        "gen_ai.response.id": response.get("id"),
        "gen_ai.response.finish_reasons": _reasons(response),
        "gen_ai.response.time_to_first_chunk": _seconds(exchange.facts["times"].get("first_byte_ms")),
        "gen_ai.conversation.id": exchange.conversation,
        "gen_ai.agent.name": call.agent,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.write_tokens,
        "server.address": host or None,
        "server.port": int(port) if port.isdecimal() else None,
        "http.response.status_code": exchange.status,
        "session.id": call.trace,
    }
    return {name: value for name, value in found.items() if value is not None}


def _reasons(response: dict[str, Any]) -> tuple[str, ...] | None:
    choices = response.get("choices")
    found = [choice.get("finish_reason") for choice in choices] if isinstance(choices, list) else []
    found = found or [response.get("stop_reason") or response.get("status")]
    return tuple(reason for reason in found if isinstance(reason, str)) or None


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
