"""Loss through changed content: which blocks of the call before are still here, but behind a change."""

from collections import Counter
from dataclasses import dataclass

from auditor.context import Context, gap_of, name_of, seconds
from auditor.history import extends
from auditor.records import Audited, Cause, Finding, Status
from localmodel.rules.step import alive
from traces.divergence import Divergence, Side, changed_span, common_blocks, first_divergence, side
from traces.schema import Level, Prompt

# A prompt continues another only where at least this share of the earlier one's cached tokens is still in it;
# below that it is another conversation, or a compacted one, and owes the earlier one nothing.
CONTINUES = 0.5
# An edited text counts as the same text while this share of it is unchanged at its ends.
SIMILAR = 0.5
_CAUSES: dict[Level, Cause] = {
    Level.TOOLS: "tools_changed",
    Level.SYSTEM: "system_changed",
    Level.MESSAGES: "history_rewritten",
}


@dataclass(frozen=True, slots=True)
class ContentLoss:
    """Tokens of `before` that the call sent again behind its first change. `kept` counts the whole surviving prefix."""

    before: Audited
    kept: int
    divergence: Divergence | None
    level: Level
    index: int


def content_loss(context: Context) -> ContentLoss | None:
    """The loss that a change of content explains, or `None` where the call only appends to an earlier one."""
    before = _predecessor(context)
    if before is None or before.prompt is None or before.outcome is None:
        return None
    old, new = before.prompt, context.prompt
    last = before.outcome.last_index
    index = common_blocks(old, new)
    if index > last or last < 0:
        return None
    if index == len(new.blocks) or not _is_continuation(old, new, index):
        return None
    sides = _sides(context, before)
    divergence = None if sides is None else first_divergence(*sides)
    gone = _gone(old, new, index, last, sides is not None and _is_edit(sides, index))
    cached = _cached(before, last)
    kept = cached - gone
    if kept < CONTINUES * cached:
        return None
    level = min(old.blocks[index].level, new.blocks[index].level)
    return ContentLoss(before, kept, divergence, level, index)


def _cached(before: Audited, last: int) -> int:
    """What `before` left readable: as billed where known, else as counted."""
    usage = before.call.usage
    if usage.read_tokens is not None and usage.write_tokens is not None and usage.read_tokens + usage.write_tokens:
        return usage.read_tokens + usage.write_tokens
    assert before.prompt is not None
    return before.prompt.ends[last]


def _predecessor(context: Context) -> Audited | None:
    """The call this one continues with a change; `None` where it extends any recent call of its thread."""
    index = context.audited.previous
    if index is None:
        return None
    previous = context.history.calls[index]
    if previous.prompt is None or extends(context.prompt, previous.prompt):
        return None
    return previous


def _is_continuation(old: Prompt, new: Prompt, index: int) -> bool:
    """A rewritten history belongs to a longer conversation; prompts of equal length are siblings or new questions."""
    if min(old.blocks[index].level, new.blocks[index].level) < Level.MESSAGES:
        return True
    return _messages(new) > _messages(old)


def _messages(prompt: Prompt) -> int:
    last = prompt.paths[-1] if prompt.paths else ""
    return int(last.split("/")[2]) if last.startswith("/messages/") else -1


def _gone(old: Prompt, new: Prompt, index: int, last: int, edited: bool) -> int:
    """Tokens of the old prefix that are no longer in the new prompt (an edited block counts as still there)."""
    here = Counter(block.meaning for block in new.blocks[index:])
    gone = 0
    for at in range(index, last + 1):
        meaning = old.blocks[at].meaning
        if here[meaning] > 0:
            here[meaning] -= 1
        elif not (at == index and edited):
            gone += old.tokens_of(at)
    return gone


def _is_edit(sides: tuple[Side, Side], index: int) -> bool:
    """Whether the first differing block is the same text with an edit, rather than another text."""
    one, two = sides[0].values[index], sides[1].values[index]
    if one.get("type") != two.get("type") or one.get("name") != two.get("name"):
        return False
    old, new = _plain(one), _plain(two)
    start, stop_old, _ = changed_span(old, new)
    unchanged = start + len(old) - stop_old
    return unchanged >= SIMILAR * max(len(old), len(new), 1)


def _plain(value: dict[str, object]) -> str:
    text = value.get("text")
    return text if isinstance(text, str) else str(value)


def _sides(context: Context, before: Audited) -> tuple[Side, Side] | None:
    old_body, new_body = context.body_of(before), context.body_of(context.audited)
    if old_body is None or new_body is None or before.prompt is None:
        return None
    return side(before.prompt, old_body), side(context.prompt, new_body)


def content_finding(context: Context, loss: ContentLoss, lost: int) -> Finding:
    """The finding for tokens lost to a change of content."""
    cause = _CAUSES[loss.level]
    evidence = [_sentence(loss)]
    rule = context.rules.values.get("invalidates_model" if cause == "unknown" else "prefix_order")
    path = loss.divergence.path if loss.divergence else context.prompt.paths[loss.index]
    status: Status = "established" if context.audited.agrees is not False else "likely"
    return Finding(cause, status, evidence, lost, rule, path=path)


def _sentence(loss: ContentLoss) -> str:
    first = loss.divergence
    if first is None:
        return f"the prompt departs from {name_of(loss.before)} at block {loss.index}"
    words = f"{first.change.replace('_', ' ')} at {first.path}"
    if first.moved_to:
        words += f"; the block that stood there is now at {first.moved_to}"
    if first.char_offset is not None:
        words += f", character {first.char_offset:,}: {first.before!r} in {name_of(loss.before)}, {first.after!r} here"
    elif first.names:
        words += f" ({', '.join(first.names[:5])}{', …' if len(first.names) > 5 else ''})"
    return words + f"; everything from there on, {first.token_offset:,} tokens into the prompt, has a new identity"


def lifetime_of_previous(context: Context, before: Audited) -> tuple[bool, str]:
    """Whether the entry at the end of `before` was still alive, and the sentence that says so."""
    assert before.prompt is not None and before.outcome is not None
    last = before.outcome.last_index
    key = (before.prompt.chain[last], before.outcome.salts[before.prompt.blocks[last].level])
    entry = context.state.entries.get(key)
    gap = gap_of(context.audited, before)
    if entry is None:
        return True, f"{seconds(gap)} since the start of {name_of(before)}"
    living = alive(entry, context.audited.at)
    return living, f"{seconds(gap)} since the start of {name_of(before)}, lifetime {entry.ttl_s} s"
