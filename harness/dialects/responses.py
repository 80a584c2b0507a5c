"""OpenAI Responses without server-side state: every request holds the whole conversation."""

from dataclasses import dataclass, field

from harness.dialects.chat import plain, tool_call
from harness.wire import ENDED_EARLY, Head, Marks, Result, Stop, ToolCall, ToolSpec, Turn
from traces.schema import JsonObject


@dataclass(frozen=True, slots=True)
class Responses:
    """The dialect; see `harness.wire.Dialect`."""

    api: str = "responses"

    def head(self, model: str, system: str, tools: list[ToolSpec], session: str) -> JsonObject:
        """See `Dialect`. One cache key a session, sub-agents included: another one would lose the lineage."""
        made: JsonObject = {"model": model, "instructions": system, "tools": [_tool(tool) for tool in tools]}
        return {**made, "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": session[:64]}

    def user(self, text: str) -> Turn:
        """See `Dialect`."""
        content = [{"type": "input_text", "text": text}]
        return Turn("user", ({"type": "message", "role": "user", "content": content},))

    def results(self, results: list[Result]) -> Turn:
        """See `Dialect`."""
        items = [{"type": "function_call_output", "call_id": one.call.id, "output": one.text or "(no output)"}
                 for one in results]  # fmt: skip
        return Turn("results", tuple(items))

    def answer(self, response: JsonObject) -> Turn:
        """All output items verbatim, encrypted reasoning included."""
        return Turn("answer", tuple(response.get("output") or ()))

    def calls(self, turn: Turn) -> list[ToolCall]:
        """See `Dialect`."""
        asked = [item for item in turn.items if item.get("type") == "function_call"]
        return [tool_call(item["call_id"], item["name"], item.get("arguments")) for item in asked]

    def text(self, turn: Turn) -> str:
        """See `Dialect`."""
        return "\n".join(filter(None, (plain(item.get("content")) for item in turn.items)))

    def stop(self, response: JsonObject) -> Stop:
        """See `Dialect`."""
        if response.get("status") == "incomplete":
            return "length"
        if any(item.get("type") == "function_call" for item in response.get("output") or []):
            return "tools"
        return "end" if response.get("status") == "completed" else "other"

    def flaw(self, response: JsonObject) -> str | None:
        """See `Dialect`."""
        if response.get("status") == "failed":
            error = response.get("error") or {}
            return f"the provider gave up: {error.get('message') or error.get('code') or 'no reason given'}"
        return None if response.get("status") in ("completed", "incomplete") else ENDED_EARLY

    def without_thinking(self, turn: Turn) -> Turn:
        """Itself: reasoning is bound to no history, and the API refuses a call without the reasoning it came with."""
        return turn

    def body(self, head: Head, turns: list[Turn], max_tokens: int, *, stream: bool, marks: Marks) -> JsonObject:
        """See `Dialect`; caching is automatic, so `marks` are not used."""
        items = [item for turn in turns for item in turn.items]
        return {**head.fields, "input": items, "max_output_tokens": max_tokens, "stream": stream}

    def assembly(self) -> "ResponsesAssembly":
        """See `Dialect`."""
        return ResponsesAssembly()


def _tool(tool: ToolSpec) -> JsonObject:
    made = {"type": "function", "name": tool.name, "description": tool.description}
    return {**made, "parameters": tool.schema, "strict": False}


@dataclass(slots=True)
class ResponsesAssembly:
    """Events of a stream -> the response, which the last event brings whole."""

    response: JsonObject = field(default_factory=dict)

    def feed(self, event: JsonObject) -> str:
        """See `Assembly`."""
        if isinstance(event.get("response"), dict):
            done = [*(self.response.get("output") or [])]
            self.response = event["response"]
            if not self.response.get("output") and done:
                self.response["output"] = done
        elif event.get("type") == "response.output_item.done":
            self.response.setdefault("output", []).append(event["item"])
        elif event.get("type") == "response.output_text.delta":
            return str(event.get("delta") or "")
        return ""
