"""The text around a first change, taken from the later request: what stands before the changed region and behind it."""

from typing import NamedTuple

from auditor.context import BodyOf
from auditor.records import Audit
from traces.divergence import SHORT, Divergence
from traces.schema import JsonObject

AROUND = 160
"""Characters shown on each side of a change."""


class Excerpt(NamedTuple):
    """What stands unchanged around a change; both empty where it is no change inside a text."""

    lead: str = ""
    tail: str = ""


def excerpt(first: Divergence, body: JsonObject | None) -> Excerpt:
    """The surroundings of `first` in the later request `body`."""
    text = None if body is None or first.char_offset is None else _at(body, first.path)
    if not isinstance(text, str) or first.char_offset is None:
        return Excerpt()
    start = first.char_offset
    cut = len(first.after) == SHORT and first.after.endswith("…")
    end = start + len(first.after)
    return Excerpt(text[max(0, start - AROUND) : start], "" if cut else text[end : end + AROUND])


def excerpts(audit: Audit, body_of: BodyOf) -> dict[int, Excerpt]:
    """By the index of each call whose prompt changed inside a text, what stands around that change."""
    found = {}
    for audited in audit.calls:
        first = None if audited.diagnosis is None else audited.diagnosis.first
        if first is not None and first.char_offset is not None:
            found[audited.index] = excerpt(first, body_of(audited))
    return found


def _at(body: JsonObject, pointer: str) -> object:
    """The value at a JSON pointer (RFC 6901), `None` where there is none."""
    value: object = body
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
