"""Text from traces made safe to show: control characters become visible symbols, so that nothing acts on a terminal."""

import re

# C0 and C1 controls, DEL, bidirectional overrides, separators and surrogates that would move the cursor or the reading.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\u{code:04x}"


def visible(text: str, width: int | None = None) -> str:
    """`text` with every control character as a symbol, cut to `width` characters with an ellipsis."""
    if width is not None and len(text) > width:
        text = text[: max(0, width - 1)] + "…"
    return _UNSAFE.sub(_symbol, text)
