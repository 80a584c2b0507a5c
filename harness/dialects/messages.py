"""Anthropic Messages: content is always a list of blocks, answers go back verbatim."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.wire import ENDED_EARLY, Head, Marks, Result, Stop, ToolCall, ToolSpec, Turn
from traces.schema import JsonObject
from traces.wire.usage import merge_stream

_STOPS: dict[str, Stop] = {"end_turn": "end", "stop_sequence": "end", "tool_use": "tools", "max_tokens": "length"}
_BROKEN = "invalid_json"
_THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Messages:
    """The dialect; see `harness.wire.Dialect`."""

    api: str = "messages"

    def head(self, model: str, system: str, tools: list[ToolSpec], session: str) -> JsonObject:
        """See `Dialect`."""
        return {
            "model": model,
            "tools": [_tool(tool) for tool in tools],
            "system": [{"type": "text", "text": system}],
        }

    def user(self, text: str) -> Turn:
        """See `Dialect`."""
        return Turn("user", ({"role": "user", "content": [{"type": "text", "text": text}]},))

    def results(self, results: list[Result]) -> Turn:
        """See `Dialect`."""
        return Turn("results", ({"role": "user", "content": [_result(result) for result in results]},))

    def answer(self, response: JsonObject) -> Turn:
        """See `Dialect`."""
        content = response.get("content") or [{"type": "text", "text": "(no answer)"}]
        return Turn("answer", ({"role": "assistant", "content": content},))

    def calls(self, turn: Turn) -> list[ToolCall]:
        """See `Dialect`."""
        return [_call(block) for block in _blocks(turn) if block.get("type") == "tool_use"]

    def text(self, turn: Turn) -> str:
        """See `Dialect`."""
        return "\n".join(block["text"] for block in _blocks(turn) if block.get("type") == "text")

    def stop(self, response: JsonObject) -> Stop:
        """See `Dialect`."""
        return _STOPS.get(response.get("stop_reason") or "", "other")

    def flaw(self, response: JsonObject) -> str | None:
        """See `Dialect`."""
        return None if response.get("stop_reason") else ENDED_EARLY

    def without_thinking(self, turn: Turn) -> Turn:
        """Thinking blocks are bound to the conversation in front of them; behind another one they are refused."""
        items = []
        for item in turn.items:
            kept = [block for block in item["content"] if block.get("type") not in _THINKING]
            items.append({**item, "content": kept or [{"type": "text", "text": "(thinking)"}]})
        return Turn(turn.role, tuple(items))

    def body(self, head: Head, turns: list[Turn], max_tokens: int, *, stream: bool, marks: Marks) -> JsonObject:
        """What varies stands behind the messages, so that a longer body begins with the bytes of a shorter one."""
        messages = [item for turn in turns for item in turn.items]
        body = {**head.fields, "messages": messages, "max_tokens": max_tokens, "stream": stream}
        return _marked(body, marks)

    def assembly(self) -> "MessagesAssembly":
        """See `Dialect`."""
        return MessagesAssembly()


def _call(block: JsonObject) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict) or _BROKEN in given:
        return ToolCall(block["id"], block["name"], None, str((given or {}).get(_BROKEN, "")))
    return ToolCall(block["id"], block["name"], given)


def _tool(tool: ToolSpec) -> JsonObject:
    made: JsonObject = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    return {**made, "defer_loading": True} if tool.deferred else made


def _result(result: Result) -> JsonObject:
    content: list[JsonObject] = [{"type": "tool_reference", "tool_name": name} for name in result.references]
    if result.text or not content:
        content.insert(0, {"type": "text", "text": result.text or "(no output)"})
    made: JsonObject = {"type": "tool_result", "tool_use_id": result.call.id, "content": content}
    return {**made, "is_error": True} if result.failed else made


def _blocks(turn: Turn) -> list[JsonObject]:
    return [block for item in turn.items for block in item["content"]]


def _marked(body: JsonObject, marks: Marks) -> JsonObject:
    """The body with a marker on each block named; only the lists on the way there are copied."""
    for path, ttl in marks.items():
        marker = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
        body = _with(body, path.split("/")[1:], marker)
    return body


def _with(value: Any, steps: list[str], marker: JsonObject) -> Any:
    if not steps:
        return {**value, "cache_control": marker}
    if isinstance(value, list):
        index = int(steps[0])
        return [*value[:index], _with(value[index], steps[1:], marker), *value[index + 1 :]]
    return {**value, steps[0]: _with(value[steps[0]], steps[1:], marker)}


@dataclass(slots=True)
class MessagesAssembly:
    """Events of a stream -> the message. Usage: that of the start, each member overwritten by the last delta's."""

    response: JsonObject = field(default_factory=dict)
    _json: dict[int, str] = field(default_factory=dict)

    def feed(self, event: JsonObject) -> str:
        """See `Assembly`."""
        kind = event.get("type")
        if kind == "message_start":
            self.response = {**event["message"], "content": []}
        elif kind == "content_block_start":
            self.response["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        elif kind == "content_block_stop":
            self._close(event["index"])
        elif kind == "message_delta":
            self.response |= {name: value for name, value in event["delta"].items() if value is not None}
            self.response["usage"] = merge_stream(self.response.get("usage") or {}, [event.get("usage") or {}])
        return ""

    def _delta(self, index: int, delta: JsonObject) -> str:
        block = self.response["content"][index]
        if delta["type"] == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
            return str(delta["text"])
        if delta["type"] == "input_json_delta":
            self._json[index] = self._json.get(index, "") + delta["partial_json"]
        elif delta["type"] == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        elif delta["type"] == "signature_delta":
            block["signature"] = block.get("signature", "") + delta["signature"]
        elif delta["type"] == "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])
        return ""

    def _close(self, index: int) -> None:
        raw = self._json.pop(index, None)
        if raw:
            self.response["content"][index]["input"] = _arguments(raw)


def _arguments(raw: str) -> JsonObject:
    """Arguments of a call; the API wants an object even where the output limit cut their text."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {_BROKEN: raw}
    return value if isinstance(value, dict) else {_BROKEN: raw}
