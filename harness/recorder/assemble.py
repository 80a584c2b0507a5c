"""A reply as one final message, from its stream: what the provider would have answered without streaming.

Usage follows the providers' streaming rules: Anthropic's `message_start`, overwritten by the last values of
`message_delta` that are not null; the `response` of the Responses API's last event; Chat's usage chunk, which comes
only where the client asked for it. What a broken stream did not tell stays unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from harness.recorder.sse import Event
from traces.schema import JsonObject
from traces.wire.usage import merge_stream

_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(slots=True)
class Reply:
    """What a body says. `finished`: it has said all; `error`: an error came in place of the rest.

    `first` is the index of the first event that holds output (a text, thinking, a tool's arguments), `None` for none.
    `seen` counts the characters of output, for an estimate where the provider gave no figure.
    """

    message: JsonObject | None = None
    finished: bool = False
    error: bool = False
    first: int | None = None
    seen: int = 0


def of_stream(events: Iterable[Event], api: str | None) -> Reply:
    """The reply of an event stream. A stream of an API that is not known gives no message."""
    reply = Reply()
    part = _part(api, reply)
    if part is None:
        return reply
    for index, (name, data, _) in enumerate(events):
        if data is None:
            continue
        size = reply.seen
        try:
            part.take(name or _text(data.get("type")), data)
        except (TypeError, AttributeError, KeyError, IndexError, ValueError):
            continue  # a shape that no such API sends: the event stays in the raw record
        if reply.first is None and reply.seen > size:
            reply.first = index
    part.close()
    return reply


def of_json(body: bytes) -> Reply:
    """The reply of a body that is one JSON object; none for anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Reply()
    if not isinstance(value, dict):
        return Reply()
    return Reply(value, finished=True, error="error" in value and value["error"] is not None)


class _Part(Protocol):
    def take(self, name: str, data: JsonObject) -> None: ...

    def close(self) -> None: ...


def _part(api: str | None, reply: Reply) -> _Part | None:
    if api == "messages":
        return _Messages(reply)
    if api == "chat":
        return _Chat(reply)
    return _Responses(reply) if api == "responses" else None


class _Messages:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._blocks: dict[int, JsonObject] = {}
        self._json: dict[int, list[str]] = {}
        self._deltas: list[JsonObject] = []

    def take(self, name: str, data: JsonObject) -> None:
        reply = self._reply
        if name == "message_start":
            reply.message = dict(data["message"])
        elif name == "content_block_start":
            self._blocks[data["index"]] = dict(data["content_block"])
            reply.seen += len(_text(data["content_block"].get("text")))
        elif name == "content_block_delta":
            self._delta(data["index"], data["delta"])
        elif name == "message_delta" and reply.message is not None:
            reply.message |= {key: value for key, value in data.get("delta", {}).items() if value is not None}
            reply.message |= {key: data[key] for key in ("context_management", "diagnostics") if data.get(key)}
            self._deltas.append(data.get("usage") or {})
        elif name == "message_stop":
            reply.finished = True
        elif name == "error":
            reply.error = True
            reply.message = (reply.message or {}) | {"error": data.get("error")}

    def _delta(self, index: int, delta: JsonObject) -> None:
        block, kind = self._blocks.setdefault(index, {}), delta["type"]
        if kind == "input_json_delta":
            self._json.setdefault(index, []).append(delta["partial_json"])
            self._reply.seen += len(delta["partial_json"])
        elif kind == "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])
        else:
            for key, value in delta.items():
                if key != "type" and isinstance(value, str):
                    block[key] = _text(block.get(key)) + value if key != "signature" else value
                    self._reply.seen += len(value) if key != "signature" else 0

    def close(self) -> None:
        message = self._reply.message
        if message is None:
            return
        for index, parts in self._json.items():
            self._blocks[index]["input"] = _loads("".join(parts)) or {}
        if self._blocks:
            message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        usage = merge_stream(message.get("usage") or {}, self._deltas)
        if not self._deltas:
            usage.pop("output_tokens", None)  # that of message_start counts what was ready then, not the answer
        message["usage"] = usage


class _Chat:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._choices: dict[int, JsonObject] = {}

    def take(self, name: str, data: JsonObject) -> None:
        reply = self._reply
        if data.get("error"):
            reply.error = True
        message = reply.message = reply.message or {}
        message |= {key: value for key, value in data.items() if key != "choices" and value is not None}
        for choice in data.get("choices") or ():
            whole = self._choices.setdefault(choice.get("index", 0), {"message": {}})
            if choice.get("finish_reason"):
                whole["finish_reason"] = choice["finish_reason"]
                reply.finished = True
            self._delta(whole["message"], choice.get("delta") or {})

    def _delta(self, message: JsonObject, delta: JsonObject) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for call in value or ():
                    self._tool(message.setdefault(key, []), call)
            elif isinstance(value, str) and key != "role":
                message[key] = _text(message.get(key)) + value
                self._reply.seen += len(value)
            elif value is not None:
                message[key] = value

    def _tool(self, calls: list[JsonObject], call: JsonObject) -> None:
        index = call.get("index", len(calls))
        while len(calls) <= min(index, 1000):
            calls.append({"function": {"name": "", "arguments": ""}})
        known, part = calls[index], call.get("function") or {}
        known |= {key: call[key] for key in ("id", "type") if call.get(key)}
        for key in ("name", "arguments"):
            known["function"][key] += _text(part.get(key))
            self._reply.seen += len(_text(part.get(key)))

    def close(self) -> None:
        if self._choices and self._reply.message is not None:
            self._reply.message["object"] = "chat.completion"
            self._reply.message["choices"] = [{"index": i, **self._choices[i]} for i in sorted(self._choices)]


@dataclass(slots=True)
class _Responses:
    reply: Reply
    items: list[Any] = field(default_factory=list)

    def take(self, name: str, data: JsonObject) -> None:
        reply = self.reply
        if isinstance(data.get("response"), dict):
            reply.message = data["response"]
            reply.finished = name in _ENDS
            reply.error = reply.error or name == "response.failed"
        elif name == "response.output_item.done":
            self.items.append(data["item"])
            reply.seen += 0 if reply.seen else 1
        elif name.endswith(".delta"):
            reply.seen += len(_text(data.get("delta")))
        elif name == "error":
            reply.error = True

    def close(self) -> None:
        """Codex's own rule: items count where the final response does not repeat them."""
        if self.reply.message is not None and self.items and not self.reply.message.get("output"):
            self.reply.message = self.reply.message | {"output": self.items}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {"partial_json": text} if text else None
