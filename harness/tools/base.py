"""A tool: what the model sees of it, what it may touch, and what it does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from harness.errors import ToolFailed
from harness.wire import ToolSpec
from traces.schema import JsonObject

Risk: TypeAlias = Literal["read", "write", "run"]
"""read: looks only; write: changes files; run: starts programs or talks to others."""

Run: TypeAlias = Callable[[JsonObject], str]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `run` takes checked arguments and raises `ToolFailed` with words for the model.

    `whole`: its output is never spilled (it reads spilled output itself). `source`: the server that it comes from.
    """

    spec: ToolSpec
    risk: Risk
    run: Run
    whole: bool = False
    source: str = ""

    @property
    def name(self) -> str:
        """Name that the model calls."""
        return self.spec.name


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
}  # fmt: skip


def check(schema: JsonObject, arguments: JsonObject) -> None:
    """Required members and the types of those at the top; raises `ToolFailed` that says what is wanted."""
    wanted = schema.get("properties") or {}
    for name in schema.get("required") or []:
        if name not in arguments:
            raise ToolFailed(f"argument {name!r} is missing; wanted: {_signature(schema)}")
    for name, value in arguments.items():
        if name not in wanted:
            if wanted and schema.get("additionalProperties") is False:
                raise ToolFailed(f"there is no argument {name!r}; wanted: {_signature(schema)}")
            continue
        kind = wanted[name].get("type")
        types = _TYPES.get(kind) if isinstance(kind, str) else None
        if types is not None and (not isinstance(value, types) or (kind == "integer" and isinstance(value, bool))):
            raise ToolFailed(f"argument {name!r} is {type(value).__name__}; wanted: {_signature(schema)}")


def _signature(schema: JsonObject) -> str:
    required = schema.get("required") or []
    parts = []
    for name, each in (schema.get("properties") or {}).items():
        parts.append(f"{name}{'' if name in required else '?'}: {each.get('type', 'any')}")
    return "{" + ", ".join(parts) + "}"


def schema(*required: str, **properties: Any) -> JsonObject:
    """A schema of an object; a property is (type, description)."""
    members = {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()}
    return {"type": "object", "properties": members, "required": list(required), "additionalProperties": False}
