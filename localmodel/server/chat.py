"""The OpenAI Chat Completions dialect: bodies, replies, and stream chunks."""

from typing import Any

from localmodel.server import usage
from localmodel.server.dialect import Answer, Dialect, Incoming, now, openai_error, openai_status, sse, stops
from localmodel.server.errors import ServerError
from localmodel.server.from_chat import messages_body
from localmodel.server.ledger import Ledger, Ticket
from localmodel.server.model import Event, Finished, Started, TextPiece, ToolPiece, ToolStart
from localmodel.server.render import Caller
from localmodel.server.schema import ChatRequest, parse
from traces.schema import JsonObject, Prompt

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def read(body: JsonObject) -> Incoming:
    """The request in `body`. Raises `BadRequest`."""
    request = parse(ChatRequest, body)
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    asked = (request.stream_options or {}).get("include_usage") is True
    stop = stops(body.get("stop"), "stop")
    return Incoming(body, messages_body(body), request.stream is True, limit, stop, request.prompt_cache_key, asked)


def _undiagnosed(body: JsonObject, prompt: Prompt, who: Caller, ledger: Ledger) -> JsonObject | None:
    """Chat Completions has no diagnosis of its own."""
    return None


class ChatWriter:
    """Writes one reply of the Chat Completions API."""

    def __init__(self, incoming: Incoming, ticket: Ticket, diagnosis: JsonObject | None) -> None:
        self.answer = Answer()
        self._ticket = ticket
        self._created = now()
        self._usage_asked = incoming.usage_asked

    def waiting(self) -> bytes:
        """A chunk that says nothing: unlike a comment, every client counts it as a sign of life."""
        return self._chunk({})

    def feed(self, event: Event) -> bytes:
        """One chunk for each piece; the last one with `finish_reason`, then usage where it was asked for."""
        begins = self.answer.take(event)
        if isinstance(event, Started):
            return self._chunk({"role": "assistant", "content": ""})
        if isinstance(event, TextPiece):
            return self._chunk({"content": event.text})
        if isinstance(event, Finished):
            return self._end(event)
        index = sum(block["type"] == "tool_use" for block in self.answer.blocks) - 1
        assert begins == isinstance(event, ToolStart)
        return self._chunk({"tool_calls": [{"index": index, **_call_piece(event)}]})

    def _end(self, event: Finished) -> bytes:
        made = self._chunk({}, _REASONS[event.reason])
        if self._usage_asked:
            counted = usage.chat(self._ticket.counts, event.output_tokens)
            made += sse(None, {**self._head("chat.completion.chunk"), "choices": [], "usage": counted})
        return made + b"data: [DONE]\n\n"

    def failed(self, error: ServerError) -> bytes:
        """The error as the stream's last chunk."""
        return sse(None, openai_error(error, self._ticket.request_id))

    def final(self) -> JsonObject:
        """The completion as far as it came."""
        done = self.answer.finished
        texts = [block["text"] for block in self.answer.blocks if block["type"] == "text"]
        calls = [_call(block) for block in self.answer.blocks if block["type"] == "tool_use"]
        message: JsonObject = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        reason = _REASONS[done.reason] if done else None
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        counted = usage.chat(self._ticket.counts, self.answer.output_tokens)
        return {**self._head("chat.completion"), "choices": [choice], "usage": counted}

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self._ticket.id,
            "object": kind,
            "created": self._created,
            "model": self._ticket.prompt.model,
            "system_fingerprint": None,
        }

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return sse(None, {**self._head("chat.completion.chunk"), "choices": [choice]})


def _call_piece(event: Any) -> JsonObject:
    if isinstance(event, ToolStart):
        return {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}
    assert isinstance(event, ToolPiece)
    return {"function": {"arguments": event.json}}


def _call(block: JsonObject) -> JsonObject:
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": block["json"]}}


DIALECT = Dialect("chat", "chatcmpl-", read, _undiagnosed, ChatWriter, openai_error, openai_status)
