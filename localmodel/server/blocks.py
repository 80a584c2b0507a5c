"""What a model reads of a block: its text, or its JSON where it is no text."""

from hashlib import blake2b
from typing import Any

from traces.canonical import dump
from traces.wire import anthropic

_MEDIA = ("image", "document", "input_audio", "input_file")


def text_of(part: anthropic.Part) -> str:
    """A block's text for the model: what it is, then its content; markers are not content."""
    value, _ = anthropic.strip_marks(part.value)
    kind = value.get("type")
    if part.path.startswith("/tools/"):
        return f"<tool>\n{json_text(value)}\n"
    if kind == "text" and isinstance(value.get("text"), str):
        return f"<{part.role or 'system'}>\n{value['text']}\n"
    if kind == "tool_use":
        return f"<call {value.get('name')}>\n{json_text(value.get('input'))}\n"
    if kind == "tool_result":
        return f"<result>\n{result_text(value.get('content'))}\n"
    return f"<{part.role or 'system'}>\n{json_text(without_media(value))}\n"


def result_text(content: Any) -> str:
    """The text of a tool result's content."""
    blocks = content if isinstance(content, list) else []
    texts = [
        str(block.get("text")) if isinstance(block, dict) and block.get("type") == "text" else json_text(block)
        for block in map(without_media, blocks)
    ]
    return "\n".join(texts)


def without_media(block: Any) -> Any:
    """Media by digest: no model here reads images, but another image is another prompt."""
    if not isinstance(block, dict) or block.get("type") not in _MEDIA:
        return block
    return {"type": block["type"], "digest": blake2b(dump(block), digest_size=8).hexdigest()}


def json_text(value: Any) -> str:
    """A value as compact JSON."""
    return dump(value).decode(errors="replace")
