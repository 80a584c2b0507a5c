"""Text that is new in every request: dates and clocks, ages ("5m ago"), identifiers.

Such text in a cached prefix makes a new prefix each time. Used to explain a change between two prompts and to warn
before sending. Written to leave alone what only looks like it: version numbers (1.2.3), line ranges (10-25,
app.py:10:20), model names (claude-sonnet-4-5-20250929, gpt-4o-2024-08-06), plain HH:MM.

Each pattern has bounded repeats and begins at a word's start, so a search is linear in the length of the text.
"""

import re
from typing import Literal, TypeAlias

Volatile: TypeAlias = Literal["date_or_clock", "relative_time", "identifier"]

SCAN_LIMIT = 200_000
"""Characters of one text that are looked at; what stands behind them is left out."""

SHARE = 5
"""`classify` names a text whose volatile parts are at least one character in this many."""

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_WEEKDAY = (
    r"(?:Mon(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:r(?:s(?:day)?)?)?|Fri(?:day)?|Sat(?:urday)?"
    r"|Sun(?:day)?)\b\.?"
)
_MM, _DD = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b"
_YEAR = r"(?:19|20)\d\d"
_SECONDS = r":[0-5]\d(?:[.,]\d{1,9})?"
_HM = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_AM = r"\s?[AaPp]\.?[Mm]\b"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|CES?T|[ECMP][SD]T)\b)?(?:\s?[+-]\d\d:?\d\d\b)?"
_TIME = rf"{_HM}(?:{_SECONDS})?(?:{_AM})?{_ZONE}"
_WORDED = rf"(?:{_MONTH}\s{{1,2}}{_DAY}|{_DAY}\s(?:of\s)?{_MONTH})"
_TAIL = rf"(?:,?\s{{1,2}}(?:at\s)?(?:{_TIME}|(?:UTC|GMT|CES?T|[ECMP][SD]T)\b|{_YEAR}\b))"

_DATE = "|".join(
    (
        rf"{_YEAR}-{_MM}-{_DD}(?!\d)(?:[T ]{_TIME}|[T_-]\d\d[-.]?[0-5]\d[-.]?[0-5]\d(?!\d)Z?)?",
        rf"{_YEAR}{_MM}{_DD}[T_-](?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?Z?(?![\w-])",
        rf"{_YEAR}/{_MM}/{_DD}(?!\d)(?:\s{_TIME})?",
        rf"(?<![/.])(?:\d{{1,2}}/\d{{1,2}}/{_YEAR}|{_DD}\.{_MM}\.{_YEAR})(?![\d./])(?:,?\s{_TIME})?",
        rf"(?<![:.])(?:(?:{_DD})?T)?{_HM}(?:{_SECONDS}(?![:\d])(?:{_AM})?{_ZONE}|{_AM})",
        rf"{_WEEKDAY},?\s{{1,2}}(?:{_WORDED}{_TAIL}{{0,4}}|{_TIME})",
        rf"{_WORDED}{_TAIL}{{1,4}}",
        # Epoch seconds and milliseconds of the years 2020 to 2033.
        r"(?<![.$€£-])1[6-9]\d{8}(?:\d{3}|\.\d{1,9})?(?![\w-]|\.\d)",
    )
)
_UNIT = (
    r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|months?|mo|m|hours?|hrs?|h|days?|d|weeks?|wks?|w"
    r"|years?|yrs?|y)"
)
_AGE = (
    rf"(?i:(?:(?:\d{{1,4}}(?:\.\d)?|an?|one|two|three|four|five|a few|several)\s?{_UNIT},?\s?(?:and\s)?){{1,3}}ago\b"
    r"|just now\b|moments ago\b)"
)
_LABEL = (
    r"(?i:msg|message|s?r?v?toolu|mcptoolu|req|request|resp|response|chatcmpl|call|run|thread|batch|file|asst|sess"
    r"|session|conv|conversation|trace|span|step|evt|event|org|user|usr|fc|rs|ws|container|job|task|build|nonce"
    r"|commit|rev|sha|etag|boot|instance|sandbox|tmp|correlation)"
)
_ID = "|".join(
    (
        r"(?i:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})(?!\w)",
        r"[0-7][0-9A-HJKMNP-TV-Z]{25}(?!\w)",
        r"(?:[0-9a-f]{16,128}|[0-9A-F]{16,128})(?!\w)",
        rf"{_LABEL}(?:[ _-]?(?i:id))?(?:[-_:=]|[:=] )(?P<token>[A-Za-z0-9]{{4,64}})(?![A-Za-z0-9])",
    )
)
_ANY = re.compile(
    rf"(?<![A-Za-z0-9_])(?=[0-9A-Za-z])"
    rf"(?:(?P<identifier>{_ID})|(?P<date_or_clock>{_DATE})|(?P<relative_time>{_AGE}))",
    re.ASCII,
)
_KINDS: tuple[Volatile, ...] = ("identifier", "date_or_clock", "relative_time")
# A snapshot's date is part of a model's name: it stays what it is.
_MODEL = re.compile(r"(?:claude|gpt|o[1-9]|gemini|grok|mistral|llama|qwen|deepseek|codex|tts)[\w.-]{0,48}[-@]\Z")
_HEX = re.compile(r"[0-9a-f]{6,}\Z|[0-9A-F]{6,}\Z")


def find(text: str) -> list[tuple[str, int, int]]:
    """All volatile parts of the first `SCAN_LIMIT` characters as (kind, start, end), in order, without overlap.

    `kind` is one of `Volatile`; offsets count characters. An identifier's label ("session-") belongs to its part.
    """
    text, at = text[:SCAN_LIMIT], 0
    found: list[tuple[str, int, int]] = []
    while (match := _ANY.search(text, at)) is not None:
        kind = next(kind for kind in _KINDS if match[kind] is not None)
        if _stands(text, match, kind):
            found.append((kind, match.start(), match.end()))
            at = match.end()
        else:
            # A refused match may hide another one that begins inside it.
            at = match.start() + 1
    return found


def classify(text: str) -> Volatile | None:
    """The kind of volatile text that `text` mostly is, or `None`.

    Meant for a short piece, such as the changed words of a text: a date in a long paragraph does not make it a date.
    The kind with the most characters counts, if all kinds together fill one character in `SHARE`.
    """
    text = text[:SCAN_LIMIT]
    lengths: dict[str, int] = {}
    for kind, start, end in find(text):
        lengths[kind] = lengths.get(kind, 0) + end - start
    if not lengths or sum(lengths.values()) * SHARE < len(text.strip()):
        return None
    return max(_KINDS, key=lambda kind: lengths.get(kind, 0))


def _stands(text: str, match: re.Match[str], kind: Volatile) -> bool:
    """Whether the match is what its pattern means; checks that a pattern cannot state in bounded time."""
    if kind == "date_or_clock":
        start = match.start()
        return text[start - 1 : start] not in ("-", "@") or not _MODEL.search(text[max(0, start - 64) : start])
    if kind == "relative_time":
        return True
    if match["token"] is not None:
        return _random(match["token"])
    return _mixed(match[0])


def _random(token: str) -> bool:
    """Whether the part behind a label was drawn by a machine: hex, a long mix, a long number, or `01` + letters."""
    if token.isdigit():
        return len(token) >= 9
    if not _mixed(token):
        return False
    long = len(token) >= 10 and sum(map(str.isdigit, token)) >= 2
    return long or token.startswith("01") or _HEX.match(token) is not None


def _mixed(token: str) -> bool:
    return any(map(str.isdigit, token)) and any(map(str.isalpha, token))
