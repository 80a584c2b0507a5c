"""Thinking on the Messages API: asked for once, when a session begins, and part of its frozen head.

A change of `thinking` costs the cached messages, so there is none: it is an error, as any change of the head is. The
blocks that a model gives are kept and sent back as they came, signature and all. Source of the shapes and of the least
budget: platform documentation, "Extended thinking" and "Adaptive thinking".
"""

from harness.errors import BadSetting
from traces.schema import JsonObject

LEAST_BUDGET = 1_024
ADAPTIVE_ROOM = 8_192


def thinking(asked: str, api: str) -> JsonObject:
    """The body's member `thinking` for `--thinking`: `adaptive`, or a budget in tokens. Raises `BadSetting`."""
    if api != "messages":
        raise BadSetting(f"--thinking {asked}: the {api} API has no such member here; leave the option out")
    if asked == "adaptive":
        return {"type": "adaptive"}
    if not (asked.isascii() and asked.isdigit() and int(asked) >= LEAST_BUDGET):
        raise BadSetting(f"--thinking {asked}: want adaptive or a budget of at least {LEAST_BUDGET} tokens")
    return {"type": "enabled", "budget_tokens": int(asked)}


def budget(body: JsonObject) -> int:
    """Tokens of a fixed budget, 0 without one. The output limit must be larger, so such a body has no cheap replay."""
    asked = body.get("thinking")
    return int(asked.get("budget_tokens") or 0) if isinstance(asked, dict) else 0


def room(fields: JsonObject) -> int:
    """Output tokens that thinking may take besides what an answer needs."""
    if not fields.get("thinking"):
        return 0
    return budget(fields) or ADAPTIVE_ROOM
