"""Prices of the usual models, written out for one version of genai-prices, so that a first run need not import it.

`make seed` writes `prices/seed.json` anew; a test fails when it no longer equals what the package and overlay say.
With another version of genai-prices installed the seed is ignored, and the user's cache takes its place.
"""

import json
from functools import cache
from pathlib import Path

from auditor.price_cache import cache_name, extract
from auditor.price_rows import row_to
from traces.schema import JsonObject

SEED = Path(__file__).parent / "prices" / "seed.json"

MODELS = {
    "anthropic": (
        "claude-fable-5-2 claude-fable-5-1 claude-fable-5 claude-mythos-5-2 claude-mythos-5-1 claude-mythos-5 "
        "claude-opus-5-5 claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6 claude-opus-4-5 "
        "claude-opus-4-5-20251101 claude-opus-4-1 claude-opus-4 claude-sonnet-5-5 claude-sonnet-5 claude-sonnet-4-6 "
        "claude-sonnet-4-5 claude-sonnet-4-5-20250929 claude-sonnet-4 claude-haiku-5-5 claude-haiku-4-5 "
        "claude-haiku-4-5-20251001"
    ),
    "openai": "gpt-6.1-sol gpt-6.1-terra gpt-6-sol gpt-6-luna gpt-6-astra gpt-5.6-sol gpt-5.5 gpt-5.4 gpt-5.1 gpt-5",
    "deepseek": "deepseek-flash deepseek-v4-pro deepseek-chat",
}


@cache
def seed() -> JsonObject:
    """Written price rows by "provider/model"; empty where the seed is for another version of package or overlay."""
    try:
        content = json.loads(SEED.read_bytes())
    except (OSError, ValueError):
        return {}
    models = content.get("models") if isinstance(content, dict) and content.get("for") == cache_name() else None
    return models if isinstance(models, dict) else {}


def made() -> bytes:
    """What `prices/seed.json` should hold now."""
    models = {
        f"{provider}/{model}": [row_to(row) for row in extract(provider, model)]
        for provider, names in MODELS.items()
        for model in names.split()
    }
    return json.dumps({"for": cache_name(), "models": models}, indent=1).encode() + b"\n"


if __name__ == "__main__":
    SEED.write_bytes(made())
