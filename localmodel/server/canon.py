"""A Messages body as the cache compares it: what real clients change between turns without meaning it is evened out.

* a first system block `x-anthropic-billing-header: …` is dropped: its text differs between conversations;
* deferred tools do not stand in front, but in the `tool_reference` that loads them; a placeholder never stands;
* a tool result's text and its one text block are the same; null members of blocks count as absent;
* members of blocks and tools come in one order. The order inside `input` and `input_schema` is content and stays.

Markers stay where they are. Indices stay too, except that system blocks move up by one where the first is dropped.
"""

from collections.abc import Mapping
from typing import Any

from traces.schema import JsonObject
from traces.wire import anthropic

BILLING = "x-anthropic-billing-header:"
PLACEHOLDER = "DeferredToolPlaceholder"
_FIRST = ("type", "id", "tool_use_id", "name", "text", "thinking", "signature", "data", "source", "input", "content")
_TOOL_FIRST = ("type", "name", "description", "input_schema")
_TOOL_UNSEEN = ("eager_input_streaming", "defer_loading")


def canonical_body(body: JsonObject) -> tuple[JsonObject, bool]:
    """The body to compare and render, and whether a billing header was dropped. The given body is not changed."""
    deferred = _deferred(body.get("tools"))
    system, dropped = _system(body.get("system"))
    made = {**body, "messages": [_message(message, deferred) for message in anthropic.messages(body)]}
    if isinstance(body.get("tools"), list):
        made["tools"] = [_tool(tool) for tool in body["tools"]]
    if system is not None:
        made["system"] = system
    return made, dropped


def _deferred(tools: Any) -> Mapping[str, JsonObject]:
    rows = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return {str(tool.get("name")): _shown(tool) for tool in rows if tool.get("defer_loading") is True}


def _tool(tool: Any) -> Any:
    """A tool in one order of members; what `traces.wire` skips as deferred stays marked as such."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("name") == PLACEHOLDER or tool.get("defer_loading") is True:
        return {**tool, "defer_loading": True}
    mark = tool.get("cache_control")
    return _shown(tool) if mark is None else {**_shown(tool), "cache_control": mark}


def _shown(tool: JsonObject) -> JsonObject:
    """A tool's definition as the model sees it."""
    rest = {name: value for name, value in tool.items() if name not in (*_TOOL_UNSEEN, "cache_control")}
    if rest.get("type") == "custom":
        del rest["type"]
    return _ordered(rest, _TOOL_FIRST)


def _system(system: Any) -> tuple[Any, bool]:
    if not isinstance(system, list) or not system:
        return system, False
    first = system[0]
    text = first.get("text") if isinstance(first, dict) else first
    dropped = isinstance(text, str) and text.startswith(BILLING)
    return [_block(item, {}) for item in system[dropped:]], dropped


def _message(message: Any, deferred: Mapping[str, JsonObject]) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_block(item, deferred) for item in message["content"]]}


def _block(item: Any, deferred: Mapping[str, JsonObject]) -> Any:
    if not isinstance(item, dict):
        return item
    block = _ordered(item, _FIRST)
    if block.get("type") == "tool_result":
        block["content"] = _result(block.get("content"), deferred)
    if block.get("type") == "tool_reference":
        return _reference(block, deferred)
    return block


def _result(content: Any, deferred: Mapping[str, JsonObject]) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return [] if content is None else content
    # Results do not nest, so the inner blocks are not searched for results again.
    return [_inner(item, deferred) for item in content]


def _inner(item: Any, deferred: Mapping[str, JsonObject]) -> Any:
    if not isinstance(item, dict):
        return {"type": "text", "text": item} if isinstance(item, str) else item
    block = _ordered(item, _FIRST)
    return _reference(block, deferred) if block.get("type") == "tool_reference" else block


def _reference(block: JsonObject, deferred: Mapping[str, JsonObject]) -> JsonObject:
    """A reference with the definition it loads, so that loading a tool adds to the prompt here and nowhere else."""
    definition = deferred.get(str(block.get("tool_name")))
    return block if definition is None else {**block, "definition": definition}


def _ordered(value: JsonObject, first: tuple[str, ...]) -> JsonObject:
    known = {name: value[name] for name in first if value.get(name) is not None}
    rest = {name: item for name, item in value.items() if name not in known and item is not None}
    return known | rest
