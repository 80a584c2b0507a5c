"""A Chat Completions body as a Messages body (see `localmodel.server.mapping` for what both dialects share)."""

from typing import Any

from localmodel.server import mapping
from localmodel.server.errors import BadRequest
from traces.schema import JsonObject


def messages_body(body: JsonObject) -> JsonObject:
    """The Messages body of a Chat Completions request. Raises `BadRequest` for shapes that no such request has."""
    talk = mapping.Conversation()
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        raise BadRequest("messages: a list with at least one message is required", "messages")
    for index, row in enumerate(rows):
        where = f"messages[{index}]"
        if not isinstance(row, dict):
            raise BadRequest(f"{where}: a message is an object", where)
        _add(talk, row, where)
    form = body.get("response_format")
    form = form if isinstance(form, dict) else {}
    named = form.get("json_schema")
    wanted = mapping.json_format(form.get("type"), named.get("schema") if isinstance(named, dict) else None)
    return mapping.finished(
        body, talk.body(mapping.tools(body.get("tools"), _tool)), wanted, body.get("reasoning_effort")
    )


def _add(talk: mapping.Conversation, row: JsonObject, where: str) -> None:
    role, blocks = row.get("role"), mapping.content_blocks(row.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        talk.instruct(blocks)
    elif role == "tool":
        talk.say("user", mapping.tool_result(row.get("tool_call_id"), blocks))
    elif role == "assistant":
        calls = _calls(row, where)
        # Beside calls an empty text is how some clients write what others write as null: no text at all.
        said = [] if calls and row.get("content") == "" else blocks
        talk.say("assistant", *_reasoning(row), *said, *calls)
    elif role == "user":
        talk.say("user", *blocks)
    else:
        raise BadRequest(f"{where}.role: want system, developer, user, assistant or tool", f"{where}.role")


def _reasoning(row: JsonObject) -> list[JsonObject]:
    text = row.get("reasoning_content")
    return [{"type": "thinking", "thinking": text}] if isinstance(text, str) and text else []


def _calls(row: JsonObject, where: str) -> list[JsonObject]:
    calls = row.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest(f"{where}.tool_calls: want a list", f"{where}.tool_calls")
    return [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, where: str) -> JsonObject:
    if not isinstance(call, dict):
        raise BadRequest(f"{where}: a tool call is an object", where)
    inner = call.get("custom") if call.get("type") == "custom" else call.get("function")
    inner = inner if isinstance(inner, dict) else {}
    if call.get("type") == "custom":
        return mapping.tool_use(call.get("id"), inner.get("name"), {"input": inner.get("input")})
    return mapping.tool_use(call.get("id"), inner.get("name"), mapping.arguments(inner.get("arguments")))


def _tool(tool: JsonObject) -> JsonObject:
    inner = tool.get("function")
    if not isinstance(inner, dict):
        return tool
    rest = {name: value for name, value in inner.items() if name not in ("name", "description", "parameters")}
    return mapping.tool(inner.get("name"), inner.get("description"), inner.get("parameters"), rest)
