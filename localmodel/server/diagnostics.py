"""The providers' own diagnosis fields: this request compared with an earlier one that the client names.

Anthropic: `diagnostics.previous_message_id` -> `diagnostics.cache_miss_reason`. OpenAI (Responses):
`prompt_cache_options.comparison_response_id` -> `prompt_cache_diagnostics`. Both compare what was sent, not the cache.
Sources: the providers' pages on cache diagnostics; types of the SDKs anthropic 2.14.0 and openai 3.57.0.
"""

from localmodel.server.ledger import Ledger, Ticket
from localmodel.server.render import Caller
from localmodel.server.verdict import extends
from traces.divergence import common_blocks
from traces.schema import JsonObject, Level, Prompt

_LEVELS = {Level.TOOLS: "tools_changed", Level.SYSTEM: "system_changed", Level.MESSAGES: "messages_changed"}


def miss_reason(body: JsonObject, prompt: Prompt, who: Caller, ledger: Ledger) -> JsonObject | None:
    """`diagnostics` of a Messages reply: null where it was not asked for, on the first turn, or without divergence."""
    asked = body.get("diagnostics")
    previous = asked.get("previous_message_id") if isinstance(asked, dict) else None
    if not isinstance(previous, str):
        return None
    found = ledger.find(who.key, previous)
    if found is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    reason, missed = _difference(prompt, found.prompt, found)
    if reason is None:
        return None
    if reason == "unavailable":
        return {"cache_miss_reason": {"type": reason}}
    return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}


def comparison(body: JsonObject, prompt: Prompt, who: Caller, ledger: Ledger) -> JsonObject | None:
    """`prompt_cache_diagnostics` of a Responses reply, `None` where it was not asked for."""
    options = body.get("prompt_cache_options")
    ident = options.get("comparison_response_id") if isinstance(options, dict) else None
    if not isinstance(ident, str):
        return None
    found = ledger.find(who.key, ident)
    if found is None:
        return {"type": "comparison_response_not_found"}
    reason, missed = _openai_difference(prompt, found, who)
    if reason is None:
        return {"type": "cache_hit"}
    if reason == "unavailable":
        return {"type": reason}
    reusable = _reusable(found)
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": missed,
        "comparison_reusable_tokens": reusable,
    }


def _difference(prompt: Prompt, old: Prompt, found: Ticket) -> tuple[str | None, int]:
    """(first difference in the order of the prefix, about how many tokens it kept from being read)."""
    reusable = _reusable(found)
    mine, theirs = dict(prompt.params), dict(old.params)
    if prompt.model != old.model or mine.pop("speed", None) != theirs.pop("speed", None):
        return "model_changed", reusable
    index = common_blocks(old, prompt)
    missed = max(0, reusable - old.tokens_before(index))
    head = _head_difference(prompt, old, index)
    if head is not None:
        return _LEVELS[head], missed
    if mine != theirs:
        return "unavailable", 0
    return (None, 0) if extends(prompt, old) else ("messages_changed", missed)


def _head_difference(prompt: Prompt, old: Prompt, index: int) -> Level | None:
    """The level before the messages at which two prompts part."""
    sides = [one.blocks[index].level if index < len(one.blocks) else Level.MESSAGES for one in (prompt, old)]
    level = min(sides)
    return level if level < Level.MESSAGES else None


def _openai_difference(prompt: Prompt, found: Ticket, who: Caller) -> tuple[str | None, int]:
    if who.space != found.who.space:
        return "prompt_cache_key_changed", _reusable(found)
    mine, theirs = dict(prompt.params), dict(found.prompt.params)
    for name, reason in (("output_format", "text_format_changed"), ("effort", "reasoning_effort_changed")):
        if mine.get(name) != theirs.get(name) and prompt.model == found.prompt.model:
            return reason, _reusable(found)
    difference, missed = _difference(prompt, found.prompt, found)
    return ("input_changed" if difference in ("messages_changed", "system_changed") else difference), missed


def _reusable(found: Ticket) -> int:
    last = found.outcome.last_index
    return found.prompt.ends[last] if last >= 0 else 0
