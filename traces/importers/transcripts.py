"""What the two transcripts that machines hold by the thousand have in common: Claude Code's and Codex's.

Their rows are decoded by declared types, and what it takes to look at a damaged one is loaded where one is met.
"""

from sys import intern

import msgspec

from traces.errors import MalformedRow
from traces.lines import Rejected
from traces.schema import JsonObject, Place

REDACTED = frozenset(("REDACTED", "redacted", "[REDACTED]", "redacted-by-litellm"))
"""What wrappers write in the place of an id or a text; equal ones say nothing about equal originals."""

REFUSALS = (msgspec.DecodeError, RecursionError)
"""What decoding a line raises: it is no JSON, holds another type than it should, or is nested too deep."""


def named(name: str | None) -> str | None:
    """A name or id, `None` where it is empty or redacted."""
    return name if name and name not in REDACTED else None


def wrong(error: Exception) -> str:
    """A refusal of msgspec's in this project's words."""
    return f"{error}".replace("`", "").lower()


def loaded(line: bytes, place: Place) -> tuple[object, Rejected | None]:
    """Whatever JSON stands in a line that is no row; else why there is none. A torn last line is pending."""
    from traces.rows import NotJson, loads

    try:
        return loads(line), None
    except MalformedRow as refusal:
        torn = isinstance(refusal, NotJson) and not line.endswith(b"\n") and line.startswith(b"{")
        return None, Rejected(place, f"{refusal}", torn)


def facts_of(
    client: str, version: str | None, folder: str | None, previous: str | None, since: list[str]
) -> JsonObject:
    """Facts of a call: which client made it where, what it continues, and what happened since."""
    facts: JsonObject = {"client": f"{client} {version or ''}".rstrip(), "times": "rows"}
    if folder:
        facts["project"] = intern(folder)
    facts["previous"] = previous
    if since:
        facts["since"] = since
    return facts
