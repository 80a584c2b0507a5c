"""The OpenAI Responses dialect: bodies, replies, and the full named sequence of stream events."""

from typing import Any

from localmodel.server import usage
from localmodel.server.diagnostics import comparison
from localmodel.server.dialect import Answer, Dialect, Incoming, now, openai_error, openai_status, sse
from localmodel.server.errors import ServerError
from localmodel.server.from_responses import messages_body
from localmodel.server.ledger import Ticket
from localmodel.server.mapping import arguments
from localmodel.server.model import Event, Finished, Started, TextPiece, ToolPiece
from localmodel.server.schema import ResponsesRequest, parse
from traces.schema import JsonObject

_ECHOED = ("instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p")
_DEFAULTS: JsonObject = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}


def read(body: JsonObject) -> Incoming:
    """The request in `body`. Raises `BadRequest`."""
    request = parse(ResponsesRequest, body)
    mapped = messages_body(body)
    return Incoming(body, mapped, request.stream is True, request.max_output_tokens, (), request.prompt_cache_key)


class ResponseWriter:
    """Writes one reply of the Responses API."""

    def __init__(self, incoming: Incoming, ticket: Ticket, diagnosis: JsonObject | None) -> None:
        self.answer = Answer()
        self._ticket = ticket
        self._created = now()
        self._diagnosis = diagnosis
        self._sent = incoming.sent
        self._custom = _custom_names(incoming.sent)
        self._number = -1
        self._announced = False

    def waiting(self) -> bytes:
        """`response.in_progress` once more: a comment would not count as a sign of life for every client."""
        return self._announce() + self._event("response.in_progress", response=self._response("in_progress"))

    def feed(self, event: Event) -> bytes:
        """Created, then added, deltas and done of each item, then completed (or incomplete)."""
        if isinstance(event, Started):
            return self._announce() + self._event("response.in_progress", response=self._response("in_progress"))
        closing = len(self.answer.blocks) - 1
        begins = self.answer.take(event)
        if isinstance(event, Finished):
            return (self._done(closing) if closing >= 0 else b"") + self._end(event)
        made = self._done(closing) if begins and closing >= 0 else b""
        index = len(self.answer.blocks) - 1
        return made + (self._added(index) if begins else b"") + self._delta(event, index)

    def _announce(self) -> bytes:
        if self._announced:
            return b""
        self._announced = True
        return self._event("response.created", response=self._response("in_progress"))

    def _added(self, index: int) -> bytes:
        item = self._item(index, done=False)
        made = self._event("response.output_item.added", output_index=index, item=item)
        if item["type"] != "message":
            return made
        return made + self._part("added", index, "")

    def _part(self, word: str, index: int, text: str) -> bytes:
        part = {"type": "output_text", "text": text, "annotations": []}
        return self._event(f"response.content_part.{word}", **self._place(index), content_index=0, part=part)

    def _delta(self, event: Event, index: int) -> bytes:
        place = self._place(index)
        if isinstance(event, TextPiece):
            return self._event("response.output_text.delta", **place, content_index=0, delta=event.text, logprobs=[])
        if isinstance(event, ToolPiece) and self._item(index, done=False)["type"] == "function_call":
            return self._event("response.function_call_arguments.delta", **place, delta=event.json)
        return b""

    def _done(self, index: int) -> bytes:
        block, place, item = self.answer.blocks[index], self._place(index), self._item(index, done=True)
        made = b""
        if item["type"] == "message":
            text = block["text"]
            made = self._event("response.output_text.done", **place, content_index=0, text=text, logprobs=[])
            made += self._part("done", index, text)
        elif item["type"] == "function_call":
            name, told = item["name"], item["arguments"]
            made = self._event("response.function_call_arguments.done", **place, name=name, arguments=told)
        else:
            made = self._event("response.custom_tool_call_input.done", **place, input=item["input"])
        return made + self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, event: Finished) -> bytes:
        status = "incomplete" if event.reason == "max_tokens" else "completed"
        return self._event(f"response.{status}", response=self._response(status))

    def failed(self, error: ServerError) -> bytes:
        """`response.failed` with the error inside."""
        told = {"code": error.code or "server_error", "message": str(error)}
        return self._announce() + self._event("response.failed", response={**self._response("failed"), "error": told})

    def final(self) -> JsonObject:
        """The response as far as it came."""
        done = self.answer.finished
        if done is None:
            return {**self._response("in_progress"), "usage": self._usage()}
        return self._response("incomplete" if done.reason == "max_tokens" else "completed")

    def _response(self, status: str) -> JsonObject:
        ended = status in ("completed", "incomplete")
        made: JsonObject = {
            "id": self._ticket.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._ticket.prompt.model,
            "output": [self._item(index, done=ended) for index in range(len(self.answer.blocks))],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_output_tokens": self._sent.get("max_output_tokens"),
            "store": False,
            **_DEFAULTS,
            **{name: self._sent[name] for name in _ECHOED if self._sent.get(name) is not None},
            "usage": None,
        }
        if ended:
            made["usage"] = self._usage()
        if self._diagnosis is not None:
            made["prompt_cache_diagnostics"] = self._diagnosis
        return made

    def _usage(self) -> JsonObject:
        return usage.responses(self._ticket.counts, self.answer.output_tokens)

    def _item(self, index: int, *, done: bool) -> JsonObject:
        block, status = self.answer.blocks[index], "completed" if done else "in_progress"
        ident = f"{self._ticket.id}_{index}"
        if block["type"] == "text":
            part = {"type": "output_text", "text": block["text"], "annotations": []}
            head = {"type": "message", "id": f"msg_{ident}", "role": "assistant", "status": status}
            return {**head, "content": [part] if done else []}
        told = {"call_id": block["id"], "name": block["name"], "status": status}
        if block["name"] in self._custom:
            text = arguments(block["json"]).get("input", "") if done else ""
            return {"type": "custom_tool_call", "id": f"ctc_{ident}", **told, "input": text}
        return {"type": "function_call", "id": f"fc_{ident}", **told, "arguments": block["json"] if done else ""}

    def _place(self, index: int) -> JsonObject:
        return {"item_id": self._item(index, done=False)["id"], "output_index": index}

    def _event(self, kind: str, **members: Any) -> bytes:
        self._number += 1
        return sse(kind, {"type": kind, "sequence_number": self._number, **members})


def _custom_names(body: JsonObject) -> set[str]:
    tools = body.get("tools") or []
    return {str(tool.get("name")) for tool in tools if isinstance(tool, dict) and tool.get("type") == "custom"}


DIALECT = Dialect("responses", "resp_", read, comparison, ResponseWriter, openai_error, openai_status)
