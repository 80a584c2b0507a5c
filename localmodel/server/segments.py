"""A block in the form in which the model reads it: its role's wrapper from the model's template around its text."""

from typing import Any

from localmodel.engine.template import ChatTemplate, Role, Segment
from localmodel.server.blocks import json_text, result_text, without_media
from traces.wire.anthropic import Part, strip_marks

_ROLES: dict[str, Role] = {"": "system", "system": "system", "assistant": "assistant"}


def segment_of(part: Part, template: ChatTemplate) -> Segment:
    """The segment of one block; markers are not content."""
    value, _ = strip_marks(part.value)
    kind, role = value.get("type"), _ROLES.get(part.role, "user")
    if part.path.startswith("/tools/"):
        # Models are trained on OpenAI's name for it.
        return template.tool({("parameters" if key == "input_schema" else key): one for key, one in value.items()})
    if kind == "text" and isinstance(value.get("text"), str):
        return template.segment(role, value["text"])
    if kind == "thinking" and isinstance(value.get("thinking"), str):
        return template.segment(role, f"<think>\n{value['thinking']}\n</think>")
    if kind == "tool_use":
        return template.tool_call(_name(value.get("name")), value.get("input"))
    if kind == "tool_result":
        return template.tool_result(result_text(value.get("content")))
    return template.segment(role, json_text(without_media(value)))


def _name(name: Any) -> str:
    return name if isinstance(name, str) else json_text(name)
