"""Under which terms a response was charged, where they are not the usual ones, and what was charged beside it.

Sources: Anthropic's `usage` (`service_tier`, `speed`, `inference_geo`, `iterations`; SDK 2.14.0), OpenAI's
`service_tier`.
"""

from collections.abc import Iterator

from traces.schema import JsonObject, Usage
from traces.wire.usage import normalise

_USUAL = ("", "standard", "default", "auto", "not_available", "global")
OWN = (None, "message", "fallback_message")
"""Types of passes that a response's own usage counts."""

KEPT = ("native", "client", "project", "times", "service", "geo")
"""Facts of a response that hold for the passes beside it too."""


def terms(response: JsonObject | None) -> JsonObject:
    """Facts of a call: "service" (batch, flex, priority), "speed" (fast) and "geo" (us); absent where usual."""
    if not isinstance(response, dict):
        return {}
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    found = {
        "service": usage.get("service_tier") or response.get("service_tier"),
        "speed": usage.get("speed"),
        "geo": usage.get("inference_geo"),
    }
    return {name: word for name, word in found.items() if unusual(word)}


def unusual(word: object) -> bool:
    """Whether a word of these fields names other terms than the usual ones."""
    return word is not None and isinstance(word, str) and word not in _USUAL


def beside(response: JsonObject | None) -> Iterator[tuple[int, str, str | None, Usage]]:
    """Passes within a response that its own usage leaves out: number, type, model (`None`: the response's), usage.

    Compaction by the API is charged at the model's price, an advisor's answer at the advisor's.
    """
    usage = response.get("usage") if isinstance(response, dict) else None
    passes = usage.get("iterations") if isinstance(usage, dict) else None
    for number, each in enumerate(passes if isinstance(passes, list) else ()):
        if isinstance(each, dict) and isinstance(kind := each.get("type"), str) and kind not in OWN:
            model = each.get("model")
            yield number, kind, model if isinstance(model, str) else None, normalise(each, "anthropic")
