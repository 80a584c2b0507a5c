"""Chat Completions, as OpenAI, DeepSeek and most self-hosted servers speak it."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.wire import ENDED_EARLY, Head, Marks, Result, Stop, ToolCall, ToolSpec, Turn
from traces.schema import JsonObject

_STOPS: dict[str, Stop] = {"stop": "end", "tool_calls": "tools", "length": "length"}


@dataclass(frozen=True, slots=True)
class Chat:
    """The dialect; see `harness.wire.Dialect`. `deepseek`: its name for the output limit, and no cache key."""

    api: str = "chat"
    deepseek: bool = False

    def head(self, model: str, system: str, tools: list[ToolSpec], session: str) -> JsonObject:
        """See `Dialect`. The system text is the first message; it is kept with the head, in front of all turns."""
        made: JsonObject = {"model": model, "tools": [_tool(tool) for tool in tools]}
        if not self.deepseek:
            made["prompt_cache_key"] = session[:64]
        return {**made, "messages": [{"role": "system", "content": system}]}

    def user(self, text: str) -> Turn:
        """See `Dialect`."""
        return Turn("user", ({"role": "user", "content": [{"type": "text", "text": text}]},))

    def results(self, results: list[Result]) -> Turn:
        """See `Dialect`."""
        return Turn(
            "results",
            tuple({"role": "tool", "tool_call_id": one.call.id, "content": one.text or "(no output)"}
                  for one in results),
        )  # fmt: skip

    def answer(self, response: JsonObject) -> Turn:
        """Verbatim, `reasoning_content` included: DeepSeek wants it back."""
        message = _message(response)
        kept = {name: value for name, value in message.items() if value is not None or name == "content"}
        return Turn("answer", ({"role": "assistant", **kept},))

    def calls(self, turn: Turn) -> list[ToolCall]:
        """See `Dialect`."""
        asked = [call for item in turn.items for call in item.get("tool_calls") or []]
        return [tool_call(one["id"], one["function"]["name"], one["function"].get("arguments")) for one in asked]

    def text(self, turn: Turn) -> str:
        """See `Dialect`."""
        return "\n".join(filter(None, (plain(item.get("content")) for item in turn.items)))

    def stop(self, response: JsonObject) -> Stop:
        """See `Dialect`."""
        choices = response.get("choices") or [{}]
        return _STOPS.get(choices[0].get("finish_reason") or "", "other")

    def flaw(self, response: JsonObject) -> str | None:
        """See `Dialect`."""
        choices = response.get("choices") or [{}]
        return None if choices[0].get("finish_reason") else ENDED_EARLY

    def without_thinking(self, turn: Turn) -> Turn:
        """Reasoning is plain text here and bound to nothing."""
        return turn

    def body(self, head: Head, turns: list[Turn], max_tokens: int, *, stream: bool, marks: Marks) -> JsonObject:
        """See `Dialect`; caching is automatic, so `marks` are not used."""
        messages = [*head.fields["messages"], *(item for turn in turns for item in turn.items)]
        limit = "max_tokens" if self.deepseek else "max_completion_tokens"
        body: JsonObject = {**head.fields, "messages": messages, limit: max_tokens, "stream": stream}
        return {**body, "stream_options": {"include_usage": True}} if stream else body

    def assembly(self) -> "ChatAssembly":
        """See `Dialect`."""
        return ChatAssembly()


def tool_call(name: str, function: str, raw: Any) -> ToolCall:
    """A call whose arguments come as JSON text."""
    text = raw if isinstance(raw, str) else ""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return ToolCall(name, function, value if isinstance(value, dict) else None, text)


def plain(content: Any) -> str:
    """Text of a content that is a text or a list of parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _tool(tool: ToolSpec) -> JsonObject:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _message(response: JsonObject) -> JsonObject:
    message = (response.get("choices") or [{}])[0].get("message")
    return message if isinstance(message, dict) else {"content": "(no answer)"}


@dataclass(slots=True)
class ChatAssembly:
    """Chunks of a stream -> the completion."""

    response: JsonObject = field(default_factory=dict)

    def feed(self, event: JsonObject) -> str:
        """See `Assembly`."""
        if not self.response:
            rest: JsonObject = {name: event[name] for name in ("id", "created", "model") if name in event}
            message: JsonObject = {"role": "assistant", "content": None}
            choice: JsonObject = {"index": 0, "message": message, "finish_reason": None}
            self.response = {**rest, "object": "chat.completion", "choices": [choice]}
        if event.get("usage"):
            self.response["usage"] = event["usage"]
        text = ""
        for choice in event.get("choices") or []:
            ours = self.response["choices"][0]
            ours["finish_reason"] = choice.get("finish_reason") or ours["finish_reason"]
            text += self._delta(ours["message"], choice.get("delta") or {})
        return text

    def _delta(self, message: JsonObject, delta: JsonObject) -> str:
        for name in ("content", "reasoning_content", "refusal"):
            if isinstance(delta.get(name), str):
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls") or []:
            calls = message.setdefault("tool_calls", [])
            while len(calls) <= part["index"]:
                calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
            call, function = calls[part["index"]], part.get("function") or {}
            call["id"] = part.get("id") or call["id"]
            for name in ("name", "arguments"):
                call["function"][name] += function.get(name) or ""
        return delta.get("content") or ""
