"""A Responses body as a Messages body (see `localmodel.server.mapping` for what both dialects share).

Ids of items are not content: clients make new ones for the same item. `call_id` is, and stays.
"""

from typing import Any

from localmodel.server import mapping
from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output")


def messages_body(body: JsonObject) -> JsonObject:
    """The Messages body of a Responses request. Raises `BadRequest` for shapes that no such request has."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise BadRequest(f"{name}: this server keeps no responses; send the whole input", name)
    talk = mapping.Conversation()
    if body.get("instructions") is not None:
        talk.instruct(mapping.content_blocks(body["instructions"], "instructions"))
    for index, item in enumerate(_items(body.get("input"))):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise BadRequest(f"{where}: an item is an object", where)
        _add(talk, item, where)
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    form = form if isinstance(form, dict) else {}
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    wanted = mapping.json_format(form.get("type"), form.get("schema"))
    return mapping.finished(body, talk.body(mapping.tools(body.get("tools"), _tool)), wanted, effort)


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRequest("input: a text or a list of items is required", "input")
    return value


def _add(talk: mapping.Conversation, item: JsonObject, where: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        _message(talk, item, where)
    elif kind == "function_call":
        talk.say("assistant", mapping.tool_use(item.get("call_id"), item.get("name"), _arguments(item)))
    elif kind == "custom_tool_call":
        talk.say("assistant", mapping.tool_use(item.get("call_id"), item.get("name"), {"input": item.get("input")}))
    elif kind in _RESULTS:
        output = mapping.content_blocks(item.get("output"), f"{where}.output")
        talk.say("user", mapping.tool_result(item.get("call_id"), output))
    elif kind == "reasoning":
        talk.say("assistant", _thinking(item))
    else:
        talk.say("assistant", {name: value for name, value in item.items() if name not in ("id", "status")})


def _arguments(item: JsonObject) -> JsonObject:
    return mapping.arguments(item.get("arguments"))


def _message(talk: mapping.Conversation, item: JsonObject, where: str) -> None:
    role, blocks = item.get("role"), mapping.content_blocks(item.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        talk.instruct(blocks)
    elif role in ("user", "assistant"):
        talk.say(str(role), *blocks)
    else:
        raise BadRequest(f"{where}.role: want system, developer, user or assistant", f"{where}.role")


def _thinking(item: JsonObject) -> JsonObject:
    """A reasoning item: its opaque content is what a server renders it from, its summary is for people."""
    block: JsonObject = {"type": "thinking", "thinking": ""}
    for name, target in (("encrypted_content", "signature"), ("content", "content"), ("summary", "summary")):
        if item.get(name):
            block[target] = item[name]
            break
    return block


def _tool(tool: JsonObject) -> JsonObject:
    """A function; a namespace (tools in a tool), web_search and their like are blocks as they stand."""
    if tool.get("type") != "function":
        return tool
    rest = {n: v for n, v in tool.items() if n not in ("type", "name", "description", "parameters")}
    return mapping.tool(tool.get("name"), tool.get("description"), tool.get("parameters"), rest)
