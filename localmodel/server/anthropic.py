"""The Anthropic Messages dialect: bodies, replies, and the full named sequence of stream events."""

from typing import Any

from localmodel.server import usage
from localmodel.server.diagnostics import miss_reason
from localmodel.server.dialect import Answer, Dialect, Incoming, anthropic_error, anthropic_status, sse, stops
from localmodel.server.errors import BadRequest, ServerError
from localmodel.server.ledger import Ticket
from localmodel.server.mapping import arguments
from localmodel.server.marks import check_marks
from localmodel.server.model import Event, Finished, Started, TextPiece, ToolPiece
from localmodel.server.schema import MessagesRequest, parse
from traces.schema import JsonObject


def read(body: JsonObject) -> Incoming:
    """The request in `body`. Raises `BadRequest` for what the real API refuses."""
    request = parse(MessagesRequest, body)
    if not request.messages:
        raise BadRequest("messages: at least one message is required", "messages")
    for index, message in enumerate(request.messages):
        if message.get("role") not in ("user", "assistant", "system"):
            raise BadRequest(f"messages.{index}.role: want user, assistant or system", f"messages.{index}.role")
    check_marks(body)
    if request.max_tokens == 0:
        _check_prewarm(body)
    stop = stops(body.get("stop_sequences"), "stop_sequences")
    return Incoming(body, body, request.stream is True, request.max_tokens, stop)


def _check_prewarm(body: JsonObject) -> None:
    """What the real API refuses beside `max_tokens: 0`."""
    kinds = {name: _at(body, name, "type") for name in ("thinking", "tool_choice")}
    wrong = {
        "stream": body.get("stream") is True,
        "thinking": kinds["thinking"] == "enabled",
        "output_config.format": _at(body, "output_config", "format") is not None,
        "tool_choice": kinds["tool_choice"] in ("any", "tool"),
    }
    for name, found in wrong.items():
        if found:
            raise BadRequest(f"{name}: cannot be used with max_tokens 0, which only writes the cache", name)


def _at(body: JsonObject, outer: str, inner: str) -> Any:
    value = body.get(outer)
    return value.get(inner) if isinstance(value, dict) else None


class MessageWriter:
    """Writes one reply of the Messages API."""

    def __init__(self, incoming: Incoming, ticket: Ticket, diagnosis: JsonObject | None) -> None:
        self.answer = Answer()
        self._ticket = ticket
        self._diagnosis = diagnosis
        self._asked = "diagnostics" in incoming.sent

    def waiting(self) -> bytes:
        """A ping: clients give up on a stream that is silent for long."""
        return sse("ping", {"type": "ping"})

    def feed(self, event: Event) -> bytes:
        """`message_start`, then start, deltas and stop of each block, then `message_delta` and `message_stop`."""
        if isinstance(event, Started):
            return sse("message_start", {"type": "message_start", "message": self.final()})
        closing = len(self.answer.blocks) - 1
        begins = self.answer.take(event)
        if isinstance(event, Finished):
            return (_stop(closing) if closing >= 0 else b"") + self._end(event)
        made = _stop(closing) if begins and closing >= 0 else b""
        index = len(self.answer.blocks) - 1
        if begins:
            made += _named("content_block_start", index=index, content_block=_opened(self.answer.blocks[-1]))
        delta = _delta(event)
        return made + (_named("content_block_delta", index=index, delta=delta) if delta else b"")

    def _end(self, event: Finished) -> bytes:
        delta = {"stop_reason": event.reason, "stop_sequence": event.stop_sequence}
        counted = usage.anthropic_delta(self._ticket.counts, event.output_tokens)
        return _named("message_delta", delta=delta, usage=counted) + _named("message_stop")

    def failed(self, error: ServerError) -> bytes:
        """The `error` event."""
        return sse("error", anthropic_error(error, self._ticket.request_id))

    def final(self) -> JsonObject:
        """The message as far as it came."""
        done = self.answer.finished
        made = {
            "id": self._ticket.id,
            "type": "message",
            "role": "assistant",
            "model": self._ticket.prompt.model,
            "content": [_closed(block) for block in self.answer.blocks],
            "stop_reason": done.reason if done else None,
            "stop_sequence": done.stop_sequence if done else None,
            "usage": usage.anthropic(self._ticket.counts, self.answer.output_tokens),
        }
        return {**made, "diagnostics": self._diagnosis} if self._asked else made


def _named(kind: str, **members: Any) -> bytes:
    return sse(kind, {"type": kind, **members})


def _stop(index: int) -> bytes:
    return _named("content_block_stop", index=index)


def _opened(block: JsonObject) -> JsonObject:
    if block["type"] == "text":
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}


def _closed(block: JsonObject) -> JsonObject:
    if block["type"] == "text":
        return block
    return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": arguments(block["json"])}


def _delta(event: Event) -> JsonObject | None:
    if isinstance(event, TextPiece):
        return {"type": "text_delta", "text": event.text}
    return {"type": "input_json_delta", "partial_json": event.json} if isinstance(event, ToolPiece) else None


DIALECT = Dialect("messages", "msg_", read, miss_reason, MessageWriter, anthropic_error, anthropic_status)
