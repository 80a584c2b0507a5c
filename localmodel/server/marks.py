"""Markers that the real API refuses in themselves, before any rule is asked. Fields that nobody knows pass."""

from typing import Any

from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

_UNMARKABLE = ("thinking", "redacted_thinking")


def check_marks(body: JsonObject) -> None:
    """Raise `BadRequest` for the first marker that is malformed or stands where none may."""
    _marker(body, "cache_control")
    for index, tool in enumerate(_list(body.get("tools"))):
        place = f"tools.{index}"
        if _marker(tool, f"{place}.cache_control") and tool.get("defer_loading") is True:
            raise BadRequest(f"{place}.cache_control: a tool with defer_loading cannot be marked; mark another block")
    _blocks(body.get("system"), "system")
    for index, message in enumerate(_list(body.get("messages"))):
        if isinstance(message, dict):
            _blocks(message.get("content"), f"messages.{index}.content")


def _blocks(content: Any, where: str) -> None:
    for index, block in enumerate(_list(content)):
        place = f"{where}.{index}"
        if not isinstance(block, dict):
            continue
        if _marker(block, f"{place}.cache_control"):
            _may_carry(block, place)
        source = block.get("source")
        for owner in (block, source if isinstance(source, dict) else {}):
            _inner(owner.get("content"), f"{place}.content")


def _inner(content: Any, where: str) -> None:
    """Inside a result or document only the last block's marker counts (for the outer block)."""
    blocks = _list(content)
    for index, block in enumerate(blocks):
        if _marker(block, f"{where}.{index}.cache_control") and index != len(blocks) - 1:
            raise BadRequest(f"{where}.{index}.cache_control: only the last inner block may be marked")


def _may_carry(block: JsonObject, place: str) -> None:
    if block.get("type") in _UNMARKABLE:
        raise BadRequest(f"{place}.cache_control: a {block['type']} block cannot be marked; mark the block before it")
    if block.get("type") == "text" and block.get("text") == "":
        raise BadRequest(f"{place}.cache_control: cache_control cannot be set for empty text blocks")


def _marker(owner: Any, where: str) -> bool:
    """Whether `owner` has a marker; raises where it is no good one."""
    value = owner.get("cache_control") if isinstance(owner, dict) else None
    if value is None:
        return False
    if not isinstance(value, dict) or value.get("type") != "ephemeral":
        raise BadRequest(f'{where}: want {{"type": "ephemeral"}}, the only type there is')
    if value.get("ttl") not in (None, "5m", "1h"):
        raise BadRequest(f"{where}.ttl: want '5m' or '1h'")
    return True


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
