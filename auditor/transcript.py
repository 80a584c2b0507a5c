"""What a transcript adds to numbers: what the client did between two calls.

What the client did (a skill, a command) goes with misses far more often than chance, which is no proof: it is named as
evidence, and only what by itself changes the prompt (a tool search, cleared results, a shorter input) becomes a cause.
The provider's own label weighs more than any of it (`auditor.labels`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from auditor.records import Audited, Diagnosis, Finding
from traces.facts import COMPACT, MICROCOMPACT, TOOL_SEARCH, facts_of, words_of

# Row times are ends of blocks and times of prompts; the request left some seconds later than the row before it.
MARGIN_S = 30
# Tool results that a client clears are many; an input that shrinks by less may only have lost its thinking. Where the
# provider places the boundaries itself, a hit may end early for other reasons, and a shorter input proves nothing.
CUT_TOKENS = 8_000


@dataclass(slots=True)
class Told:
    """What happened since the call that this one continues: words in order.

    `direct`: nothing lies between the two, so that the prompt of the one should begin with that of the other.
    """

    words: list[str] = field(default_factory=list)
    direct: bool = False

    def word(self, start: str) -> str | None:
        """The first word that is or starts with this one."""
        return next((each for each in self.words if each == start or each.startswith(f"{start} ")), None)


def told(audited: Audited, between: list[Audited]) -> Told:
    """What the transcript tells of a call; `between` are the calls of other models since its predecessor."""
    words = words_of(audited.call)
    if between:
        words = list(dict.fromkeys([*(word for each in between for word in words_of(each.call)), *words]))
    return Told(words, "previous" in facts_of(audited.call) and not between)


def compacted(audited: Audited, before: Audited, what: Told) -> Diagnosis | None:
    """The diagnosis of the first call after a summary, `None` where there was none.

    It lost nothing that numbers could show: its conversation is new, and how much of its input tools and system are is
    not known.
    """
    word = what.word(COMPACT)
    if word is None:
        return None
    read = audited.call.usage.read_tokens or 0
    evidence = [
        f"the conversation was summarised after row {before.call.seq} ({word}): what follows tools and system is new",
        f"{read:,} tokens of tools and system were read" if read else "nothing was read, not even tools and system",
    ]
    return Diagnosis(Finding("compaction", "established", evidence), reference=before.index)


def refined(diagnosis: Diagnosis, audited: Audited, before: Audited, what: Told) -> Diagnosis:
    """A diagnosis by numbers, with what the transcript adds to it."""
    if diagnosis.primary.cause != "unknown":
        return diagnosis
    # What the client did is a guess at what the provider's label says for certain (see `auditor.labels`).
    change = _change(audited, before, what) if audited.call.label is None else None
    if change is not None:
        return _replaced(diagnosis, change)
    diagnosis.primary.evidence[0:0] = _since(what, before)
    return diagnosis


def _replaced(diagnosis: Diagnosis, primary: Finding) -> Diagnosis:
    """Another main cause, which takes the loss."""
    old = diagnosis.primary
    primary.lost_tokens = old.lost_tokens
    primary.evidence += old.evidence[:1]
    also = [finding for finding in diagnosis.also if finding.cause != primary.cause]
    ruled_out = [finding for finding in diagnosis.ruled_out if finding.cause != primary.cause]
    return Diagnosis(primary, also, ruled_out, reference=diagnosis.reference)


def _change(audited: Audited, before: Audited, what: Told) -> Finding | None:
    """A cause that the client's own doing is, where nothing else is known."""
    read = audited.call.usage.read_tokens or 0
    if what.word(MICROCOMPACT):
        evidence = "the client says that it cleared old tool results in between, which changes the messages"
        return Finding("history_rewritten", "likely", [evidence, *_since(what, before)])
    if what.word(TOOL_SEARCH):
        evidence = "a tool search loaded deferred tools in between: their definitions join those in front of all else"
        return Finding("tools_changed", "likely", [evidence, *_since(what, before)])
    cut = (before.call.usage.input_tokens or 0) - (audited.call.usage.input_tokens or 0)
    if cut >= CUT_TOKENS and what.direct and read and audited.call.usage.write_tokens is not None:
        evidence = (
            f"the input shrank by {cut:,} although the conversation goes on from row {before.call.seq}, and {read:,} "
            "tokens of its beginning were read: older messages or tool results were removed"
        )
        return Finding("history_rewritten", "likely", [evidence, *_since(what, before)])
    return None


def _since(what: Told, before: Audited) -> Iterator[str]:
    if what.words:
        yield f"since row {before.call.seq}: {', '.join(what.words)}"
