"""What providers themselves say of a miss: Anthropic's `diagnostics`, OpenAI's `prompt_cache_diagnostics`.

Each value is read for what it says and no more. Both compare what was sent, not what the cache did; neither has a word
for expiry. Sources: Anthropic's page "Cache diagnostics", OpenAI's page "Diagnostics" of the caching guide, SDK types.
"""

from typing import Any

from traces.schema import JsonObject, Label

_ANTHROPIC = {
    "model_changed": "model",
    "system_changed": "system",
    "tools_changed": "tools",
    "messages_changed": "messages",
}
_OPENAI = {
    "model_changed": "model",
    "prompt_cache_key_changed": "key",
    "tools_changed": "tools",
    "text_format_changed": "output_format",
    "reasoning_effort_changed": "effort",
    "verbosity_changed": "verbosity",
    "context_compacted": "compaction",
    "input_changed": "input",
    "service_tier_changed": "service_tier",
}


def label_of(request: JsonObject | None, response: JsonObject | None) -> Label | None:
    """The label in a recorded response, `None` where it holds none or says nothing."""
    if not isinstance(response, dict):
        return None
    if "prompt_cache_diagnostics" in response:
        return openai_label(response["prompt_cache_diagnostics"])
    if "diagnostics" in response:
        return anthropic_label(response["diagnostics"], asked=_asked(request))
    return None


def anthropic_label(found: Any, *, asked: bool | None) -> Label | None:
    """Label of a Messages reply. `asked` says whether the request named an earlier message (`None`: not recorded).

    Null means: compared and equal, where it was asked for; else nothing. A null reason means: still comparing.
    """
    if found is None:
        return Label("null", "none") if asked else None
    reason = found.get("cache_miss_reason") if isinstance(found, dict) else None
    if not isinstance(reason, dict):
        return Label("cache_miss_reason: null", "pending") if isinstance(found, dict) else None
    word = reason.get("type")
    if word == "previous_message_not_found":
        return Label(word, "not_found")
    if isinstance(word, str) and word in _ANTHROPIC:
        return Label(word, "change", _ANTHROPIC[word], _tokens(reason.get("cache_missed_input_tokens")))
    return Label(str(word), "unavailable")


def recorded_label(found: Any) -> Label | None:
    """Label as older rows keep it among a call's facts: `None` where nothing was found, else {"type", "tokens"}."""
    if not isinstance(found, dict):
        return Label("null", "none")
    reason = {"type": found.get("type"), "cache_missed_input_tokens": found.get("tokens")}
    return anthropic_label({"cache_miss_reason": reason}, asked=True)


def without_label(facts: JsonObject | None) -> tuple[JsonObject | None, Label | None]:
    """Facts of a row, and the label that older rows keep among them."""
    if facts is None or "label" not in facts:
        return facts, None
    rest = {name: value for name, value in facts.items() if name != "label"}
    return rest, recorded_label(facts["label"])


def openai_label(found: Any) -> Label | None:
    """Label of a Responses reply that was compared with an earlier response."""
    if not isinstance(found, dict):
        return None
    kind, reason = found.get("type"), found.get("reason")
    if kind == "cache_hit":
        return Label("cache_hit", "none")
    if kind == "comparison_response_not_found":
        return Label(kind, "not_found")
    if kind == "cache_miss" and isinstance(reason, str) and reason in _OPENAI:
        return Label(reason, "change", _OPENAI[reason], _tokens(found.get("cache_missed_tokens")))
    return Label(str(reason or kind), "unavailable")


def _asked(request: JsonObject | None) -> bool | None:
    if not isinstance(request, dict):
        return None
    asked = request.get("diagnostics")
    return isinstance(asked, dict) and isinstance(asked.get("previous_message_id"), str)


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
