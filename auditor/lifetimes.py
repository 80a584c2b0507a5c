"""Lifetimes that a conversation asks for: whether it once wrote for an hour and now writes for five minutes."""

from collections.abc import Iterable

from auditor.context import seconds
from auditor.records import Audited, Finding
from traces.schema import Ttl


def lifetime_of(audited: Audited) -> Ttl | None:
    """The lifetime that a call's newest entry has: as billed where only one kind was, else as its last marker asks."""
    usage, prompt = audited.call.usage, audited.prompt
    if usage.write_5m_tokens and not usage.write_1h_tokens:
        return "5m"
    if prompt is None:
        return "1h" if usage.write_1h_tokens and not usage.write_5m_tokens else None
    return prompt.marks[-1].ttl if prompt.marks else prompt.automatic


def tier_changed(earlier: Iterable[Audited], user: Audited, gap_s: float, hour_s: int) -> Finding | None:
    """Whether `user`, whose entry ran out after `gap_s`, wrote for five minutes where an hour was usual before.

    `earlier` are the conversation's calls before `user`, newest first. `None` too where an hour would not have helped.
    """
    if gap_s >= hour_s or lifetime_of(user) != "5m":
        return None
    first = user
    for call in earlier:
        lifetime = lifetime_of(call)
        if lifetime == "1h":
            evidence = (
                f"writes last 5 minutes from call {first.call.seq} on, an hour up to call {call.call.seq}: an hour "
                f"would have outlived the {seconds(gap_s)}"
            )
            return Finding("tier_changed", "established", [evidence], facts={"since": first.call.id})
        if lifetime == "5m":
            first = call
    return None
