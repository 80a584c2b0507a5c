"""What clients' transcripts tell of a call beside its usage: names and words of `Call.facts`, and how to read them.

A transcript holds no body, so none of this shows the change itself; it says what the client did, or what the provider
answered, between two calls of a conversation. Importers write these words, diagnosis reads them.
"""

from collections.abc import Mapping
from typing import Any

from traces.schema import Call

COMPACT = "compact"
"""The conversation was summarised; "compact manual" and "compact auto" where the transcript tells."""

MICROCOMPACT = "microcompact"
"""The client removed old tool results."""

TOOL_SEARCH = "tool_search"
"""A search loaded the definitions of deferred tools."""

SKILL = "skill"
"""The text of a skill was put in."""

COMMAND = "command"
"""A slash command, "command /NAME"."""

PERMISSION_MODE = "permission_mode"
"""The permission mode changed, "permission_mode OLD → NEW"."""

CLIENT = "client"
"""Another version of the client goes on, "client OLD → NEW"."""

SYNTHETIC = "synthetic message"
"""A message that the client made itself: a turn was broken off, or the session resumed."""

INTERRUPT = "interrupt"
API_ERROR = "api_error"

EFFORT = "effort"
"""The reasoning effort changed, "effort OLD → NEW"."""

NONE: Mapping[str, Any] = {}


def facts_of(call: Call) -> Mapping[str, Any]:
    """The facts of a call, none where it has none."""
    return call.facts if call.facts is not None else NONE


def words_of(call: Call) -> list[str]:
    """What happened since the call that this one continues."""
    return list(facts_of(call).get("since") or ())


def terms_of(call: Call) -> tuple[str, ...]:
    """What about a call is charged otherwise than usual: "batch", "fast", "flex", "priority", "geo_us", …"""
    return terms_in(facts_of(call))


def terms_in(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """`terms_of` a call with these facts."""
    found = [facts[name] for name in ("service", "speed") if name in facts]
    return (*found, f"geo_{facts['geo']}") if "geo" in facts else tuple(found)
