"""Permissions: allow, ask or deny, by a tool's name or else by what it may touch. Nested calls pass the same gate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from harness.errors import BadSetting
from harness.tools.base import Tool
from traces.schema import JsonObject

Answer: TypeAlias = Literal["allow", "ask", "deny"]
Ask: TypeAlias = Callable[[str, JsonObject], bool]
"""(name, arguments) -> whether a person allows this call."""

DEFAULTS: Mapping[str, Answer] = {"read": "allow", "write": "ask", "run": "ask"}


@dataclass(frozen=True, slots=True)
class Permissions:
    """`rules` maps a tool's name, or a risk (`read`, `write`, `run`), to an answer. Without `ask`, asking denies.

    A name that is a risk too (the tools `read` and `write`) counts as the name for that tool.
    """

    rules: Mapping[str, Answer] = field(default_factory=dict)
    ask: Ask | None = None

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        """Why this call may not be made; `None`: it may."""
        answer = self.rules.get(tool.name) or self.rules.get(tool.risk) or DEFAULTS[tool.risk]
        if answer == "allow":
            return None
        if answer == "deny":
            return f"{tool.name} is denied by this session's permissions"
        if self.ask is None:
            return f"{tool.name} needs a person's consent and nobody can be asked here"
        return None if self.ask(tool.name, arguments) else f"the user refused this call of {tool.name}"


def permissions(rules: Mapping[str, object], ask: Ask | None) -> Permissions:
    """Permissions from a settings table. Raises `BadSetting`."""
    for name, answer in rules.items():
        if answer not in get_args(Answer):
            raise BadSetting(f"permissions.{name}: want allow, ask or deny, got {answer!r}")
    return Permissions(rules, ask)  # type: ignore[arg-type]
