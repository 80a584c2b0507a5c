"""Which tools of a request the model may call, and whether it must.

Only what the client can run is called: its own functions and the provider-defined tools that clients run. A namespace
(tools in a tool) and what a provider's own machines would run (web search and its like) are read, and never called.
"""

from collections.abc import Mapping
from typing import Any

from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

_OWN = (None, "custom", "function")
_CLIENT_RUN = ("bash_2", "text_editor_2", "memory_2", "computer_2")
"""Beginnings of the types of Anthropic's client tools (types of the SDK anthropic 2.14.0): dates follow."""


def offered(body: JsonObject) -> dict[str, JsonObject]:
    """The tools of a Messages body that may be called, by name, deferred ones included."""
    return {tool["name"]: tool for tool in body.get("tools") or [] if _callable(tool)}


def _callable(tool: JsonObject) -> bool:
    kind = tool.get("type")
    known = kind in _OWN or (isinstance(kind, str) and kind.startswith(_CLIENT_RUN))
    return known and isinstance(tool.get("name"), str)


def choice(body: JsonObject, tools: Mapping[str, JsonObject]) -> str | tuple[str, str]:
    """The tool choice of a Messages body; a demand that only the provider's own tools could meet is "auto".

    Raises `BadRequest` where it asks for a tool that is not there.
    """
    asked = body.get("tool_choice")
    kind = asked.get("type") if isinstance(asked, dict) else "auto"
    if kind == "tool" and isinstance(asked, dict):
        return _named(asked.get("name"), body, tools)
    if kind == "any" and not tools:
        if not body.get("tools"):
            raise BadRequest("tool_choice: may only be specified while providing tools", "tool_choice")
        return "auto"
    return kind if kind in ("any", "none") else "auto"


def _named(name: Any, body: JsonObject, tools: Mapping[str, JsonObject]) -> str | tuple[str, str]:
    if not isinstance(name, str) or name not in [tool.get("name") for tool in body.get("tools") or []]:
        raise BadRequest(f"tool_choice: tool {str(name)[:80]!r} is not among the tools", "tool_choice")
    return ("tool", name) if name in tools else "auto"
