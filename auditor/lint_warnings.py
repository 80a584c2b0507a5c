"""Static checks of one Messages body: requests that the provider takes but caches badly or not at all."""

import re
from collections.abc import Iterator
from typing import Any

from auditor.lint_checks import Finding, View, listed, short
from localmodel.rules.step import positions
from traces import volatile
from traces.divergence import escape
from traces.schema import JsonObject, Level

CLOSE = 0.10
"""Share of the minimum within which an estimate is called close."""

SCAN_TOTAL = 4_000_000
"""Characters of a whole body that are searched for volatile text."""

_CODES = {"date_or_clock": "clock_in_prefix", "relative_time": "relative_time_in_prefix", "identifier": "id_in_prefix"}
_WORDS = {"date_or_clock": "a date or clock", "relative_time": "an age", "identifier": "an identifier"}
_REMEDIES = {
    "date_or_clock": "move it behind the last breakpoint, into the newest user message",
    "relative_time": "give a fixed time or leave it out: it changes by itself",
    "identifier": "leave it out or move it behind the last breakpoint, unless it is the same in every request",
}
# In front of a date these say that it is an example, a format or a fixed fact.
_FIXED = re.compile(
    r"\b(?:e\.g|eg|examples?|format(?:ted)?|such as|like|for instance|cutoff|version|released?|deprecated|iso.?8601"
    r"|yyyy|copyright)\b|[a-z]+-version:",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(r"\b(?:e\.g|eg|examples?|format)\b", re.IGNORECASE)
_PRESENT = re.compile(r"\b(?:today|now|current(?:ly)?)\b", re.IGNORECASE)
_NOW = re.compile(r"\b(?:today|now|current(?:ly)?|date|time|clock|timestamp|as of)\b", re.IGNORECASE)
# Keys of a JSON schema under which texts are patterns, formats and examples.
_SCHEMA_KEYS = frozenset({"$schema", "$id", "$ref", "pattern", "format", "examples", "example", "cache_control"})
_CONTEXT = 48


def no_breakpoint(view: View) -> Iterator[Finding]:
    """Nothing asks for caching."""
    if not view.points:
        last = view.prompt.paths[-1:] or ("/messages",)
        remedy = 'add "cache_control": {"type": "ephemeral"} to the last block that stays the same, or to the request'
        yield Finding("no_breakpoint", "warning", last, "request has 0 breakpoints, nothing is cached", remedy)


def below_minimum(view: View) -> Iterator[Finding]:
    """The longest marked prefix is shorter than what the model caches."""
    if not view.points:
        return
    point, rules, model = view.points[-1], view.rules, short(view.prompt.model)
    tokens, error = view.prompt.ends[point.index], view.prompt.error_at(point.index)
    count = f"about {tokens:,} tokens (± {error:,}, estimated)" if error else f"{tokens:,} tokens"
    where = f"{count} up to the last breakpoint"
    paths, rule = (view.path(point),), view.rule("min_tokens")
    close = abs(tokens - rules.min_tokens) <= CLOSE * rules.min_tokens
    near = ", within 10 % of the minimum" if close else ""
    if not rules.min_tokens_known:
        message = f"{where}; the minimum of model {model} is not known, {rules.min_tokens:,} is assumed"
        remedy = "look up the model's minimum, or correct its name"
        yield Finding("below_minimum", "info", paths, message, remedy, rule)
    elif tokens < rules.min_tokens:
        message = (
            f"{where}, model {model} caches from {rules.min_tokens:,}{near}; below it nothing is, without an error"
        )
        remedy = "move the marker behind more content; if the prompt is this short, caching does not apply"
        yield Finding("below_minimum", "warning", paths, message, remedy, rule)
    elif close:
        message = f"{where}, model {model} caches from {rules.min_tokens:,}{near}"
        remedy = "count the tokens with the provider's counting endpoint"
        yield Finding("below_minimum", "info", paths, message, remedy, rule)


def volatile_tail(view: View) -> Iterator[Finding]:
    """The last breakpoint stands on something that the next request will not have."""
    if not view.points or not view.parts[view.points[-1].index].path.startswith("/messages/"):
        return
    point = view.points[-1]
    part = view.parts[point.index]
    message = f"/messages/{len(view.body['messages']) - 1}"
    if not (part.path + "/").startswith(message + "/"):
        return
    texts = [text for _, text in _block_texts(part.value, "")] if part.value.get("type") == "text" else []
    why = _tail_kind(part.role, texts[0] if texts else "", sum(path.startswith(message) for path in view.prompt.paths))
    if why is not None:
        yield Finding(
            "marker_on_volatile_tail",
            "warning",
            (part.path,),
            f"the last breakpoint stands on {why}; if the next request does not repeat it, what is written here is "
            "never read",
            "mark the last block in front of it that stays",
        )


def _tail_kind(role: str, text: str, blocks: int) -> str | None:
    """What makes the last marked block volatile, or `None`. `blocks` is how many the last message has."""
    if role == "system":
        return "a trailing system message"
    if text.lstrip().lower().startswith(("<system-reminder", "<reminder", "<environment_details")):
        return "a reminder"
    spans = volatile.find(text) if role == "user" else []
    if not spans:
        return None
    # A user who asks about a date keeps that question; a block of its own or the word "now" is a client's doing.
    named = next((span for span in spans if _NOW.search(_line_before(text, span[1]))), None)
    if named is None and (blocks < 2 or volatile.classify(text) is None):
        return None
    kind, start, end = named or spans[0]
    return f"text with {_WORDS[kind]} ({short(text[start:end])} at character {start})"


def volatile_prefix(view: View) -> Iterator[Finding]:
    """Dates, ages and identifiers in tools, system text or the first user message, in front of a breakpoint."""
    budget = SCAN_TOTAL
    for path, text in _prefix_texts(view):
        if budget <= 0:
            return
        budget -= min(len(text), volatile.SCAN_LIMIT)
        seen: dict[str, list[tuple[int, int]]] = {}
        for kind, start, end in volatile.find(text):
            if not _fixed(_line_before(text, start)):
                seen.setdefault(kind, []).append((start, end))
        for kind, spans in seen.items():
            yield _in_prefix(kind, path, text, spans)


def _in_prefix(kind: str, path: str, text: str, spans: list[tuple[int, int]]) -> Finding:
    start, end = spans[0]
    more = f" and {len(spans) - 1} more in this text" if len(spans) > 1 else ""
    message = (
        f"{_WORDS[kind]} in the cached prefix at character {start}: {short(text[start:end])}{more}; if it differs in "
        "the next request, all from here on is written again"
    )
    return Finding(_CODES[kind], "warning", (path,), message, _REMEDIES[kind])


def _fixed(line: str) -> bool:
    """Whether the words in front of it say that it is an example or a fixed date."""
    return _FIXED.search(line) is not None and (_PRESENT.search(line) is None or _EXAMPLE.search(line) is not None)


def _line_before(text: str, start: int) -> str:
    return text[max(0, start - _CONTEXT) : start].rpartition("\n")[2]


def _prefix_texts(view: View) -> Iterator[tuple[str, str]]:
    """Pointer and text of all that every request should share: as far as the last breakpoint reaches."""
    reach = view.points[-1].index if view.points else None
    first = next((p.path.split("/")[2] for p in view.parts if p.level is Level.MESSAGES and p.role == "user"), None)
    for index, part in enumerate(view.parts):
        if reach is not None and index > reach:
            return
        if part.path.startswith("/tools/"):
            yield from _leaves(part.value, part.path)
        elif part.level is Level.SYSTEM or (reach is not None and part.path.split("/")[2] == first):
            if part.path.rsplit("/", 1)[1].isdigit():
                yield from _block_texts(part.value, part.path)
            else:
                # A text that stands for its only block.
                yield part.path, part.value["text"]


def _block_texts(value: JsonObject, path: str) -> Iterator[tuple[str, str]]:
    source, content = value.get("source"), value.get("content")
    candidates = [("/text", value.get("text")), ("/content", content)]
    if isinstance(source, dict) and source.get("type") == "text":
        candidates.append(("/source/data", source.get("data")))
    if isinstance(content, list):
        inner = [(i, item.get("text")) for i, item in enumerate(content) if isinstance(item, dict)]
        candidates += [(f"/content/{i}/text", text) for i, text in inner]
    yield from ((path + below, text) for below, text in candidates if isinstance(text, str))


def _leaves(value: JsonObject, path: str) -> Iterator[tuple[str, str]]:
    """All texts of a tool definition in their order, but not patterns, formats and examples of its schema."""
    stack: list[tuple[str, Any]] = [(path, value)]
    while stack:
        at, item = stack.pop()
        if isinstance(item, str):
            yield at, item
        elif isinstance(item, list):
            stack.extend((f"{at}/{i}", inner) for i, inner in reversed(list(enumerate(item))))
        elif isinstance(item, dict):
            stack.extend((f"{at}/{escape(k)}", v) for k, v in reversed(item.items()) if k not in _SCHEMA_KEYS)


def lookback_risk(view: View) -> Iterator[Finding]:
    """The newest turn is longer than the provider looks back, so that the previous request's entry is out of reach."""
    end = _previous_end(view)
    if end is None:
        return
    point = next((point for point in view.points if point.index >= end), None)
    limit = view.rules.lookback
    if point is None or (distance := positions(view.prompt, point.index, end, view.rules)) <= limit:
        return
    paths = (view.path(point), view.prompt.paths[end])
    yield Finding(
        "lookback_risk",
        "warning",
        paths,
        f"the previous request's end, {paths[1]}, is position {distance} seen from the breakpoint at "
        f"{listed(paths[:1])}, the provider looks at {limit}: what was written there is not found",
        f"mark {paths[1]} again, or merge blocks of this turn",
        view.rule("lookback_positions"),
    )


def _previous_end(view: View) -> int | None:
    """Index of the last block of the previous request: in front of the last assistant turn that was answered."""
    index = len(view.parts) - 1
    for answered in (True, False, True):
        while index >= 0 and (view.parts[index].role == "assistant") is answered:
            index -= 1
    return index if index >= 0 and view.parts[index].level is Level.MESSAGES else None


WARNINGS = (no_breakpoint, below_minimum, volatile_tail, volatile_prefix, lookback_risk)
