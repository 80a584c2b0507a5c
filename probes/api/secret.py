"""Keeping keys out of everything that is shown or written."""

import json
import re
from collections.abc import Iterable

# Providers repeat a refused key, in part or masked, in their error messages.
_KEY_LIKE = re.compile(r"\b(?:sk|key|rk|pk)-[A-Za-z0-9_*.\-]{6,}")

HIDDEN = "[key]"


class Scrubber:
    """Replaces each known key by `[key]`, wherever it stands: an answer may repeat what it was sent."""

    def __init__(self, keys: Iterable[str]) -> None:
        found = {form for key in keys for form in (key, json.dumps(key)[1:-1])}
        self._keys = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without keys."""
        for key in self._keys:
            text = text.replace(key, HIDDEN)
        return text

    def message(self, text: str) -> str:
        """An error's text: without keys and without whatever looks like one, on one line and short."""
        flat = " ".join(_KEY_LIKE.sub(HIDDEN, self(text)).split())
        return flat if len(flat) <= 300 else flat[:299] + "…"
