"""Loss through changed content: which blocks of the call before are still here, but behind a change."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from auditor.context import Context, gap_of, name_of, same_thread, seconds
from auditor.history import CANDIDATES, extends
from auditor.records import CONTENT_CAUSES, Audited, Cause, Finding, Status
from localmodel.rules.step import alive
from traces.divergence import Divergence, Side, changed_span, common_blocks, first_divergence, side
from traces.schema import Level, Prompt, Ttl

# A prompt continues another only where at least this share of what the earlier one left cached (or of its tools and
# system, where those changed) is still in it; below that it is another conversation, and owes the earlier one nothing.
CONTINUES = 0.5
# An edited text counts as the same text while this share of it is unchanged at its ends.
SIMILAR = 0.5
# Changes of tools or system that show another conversation's head to be the same one, sent differently.
_SAME_HEAD = ("reordered", "serialisation", "structure", "date_or_clock", "relative_time", "identifier")
# A summary stands for at least this many blocks more than it has itself.
REPLACED = 2


@dataclass(frozen=True, slots=True)
class ContentLoss:
    """Tokens of `before` that the call sent again behind its first change. `kept` counts the whole surviving prefix."""

    before: Audited
    kept: int
    divergence: Divergence | None
    level: Level
    index: int
    cause: Cause


def content_loss(context: Context, floor: int) -> ContentLoss | None:
    """The loss beyond `floor` tokens that a change of content explains.

    `None` where the call only appends to an earlier one, where nothing behind the change is still there (a new
    question, a rewind, a marker on text that never comes back), or where it is another conversation.
    """
    before = predecessor(context)
    if before is None or before.prompt is None or before.outcome is None:
        return None
    old, new = before.prompt, context.prompt
    last, index = before.outcome.last_index, common_blocks(old, new)
    if last < 0 or old.ends[last] <= floor + context.slack:
        return None  # no body needs to be read: what was left readable is accounted for
    if index > last or index == len(new.blocks) or _only_tail_left(old, new, index, last):
        return None
    level = min(old.blocks[index].level, new.blocks[index].level)
    sides = _sides(context, before)
    divergence = None if sides is None else first_divergence(*sides)
    still = _still_here(old, new, index, last, _as_edited(sides, divergence, index))
    if not still or not _is_continuation(context, before, still, level, divergence):
        return None
    cause = _cause(context, before, still, level, divergence)
    kept = _kept(old, still, index, last, cause, _cached(before, last))
    return None if kept is None else ContentLoss(before, kept, divergence, level, index, cause)


def _cause(context: Context, before: Audited, still: list[int], level: Level, first: Divergence | None) -> Cause:
    """Whose doing the change is: a summary, an API that drops old thinking, or the client at the level it touched."""
    assert before.prompt is not None
    index = common_blocks(before.prompt, context.prompt)
    if level is Level.MESSAGES and _is_compaction(before.prompt, context.prompt, index, still):
        return "compaction"
    if first is not None and first.change == "thinking_stripped" and context.rules.strips_thinking:
        return "provider_side"
    return CONTENT_CAUSES[level]


def _only_tail_left(old: Prompt, new: Prompt, index: int, last: int) -> bool:
    """Whether all that survives is the marked tail itself, at the new end: text that moves along with each request."""
    if old.blocks[index].level < Level.MESSAGES or new.blocks[index].level < Level.MESSAGES:
        return False
    tail = [block.meaning for block in old.blocks[index : last + 1]]
    return index + len(tail) < len(new.blocks) and [block.meaning for block in new.blocks[-len(tail) :]] == tail


def _cached(before: Audited, last: int) -> int:
    """What `before` left readable: as billed where known, else as counted."""
    usage = before.call.usage
    assert before.outcome is not None
    if not before.outcome.reports_writes:
        assert before.prompt is not None
        return before.prompt.ends[last]
    if usage.read_tokens is not None and usage.write_tokens is not None and usage.read_tokens + usage.write_tokens:
        return usage.read_tokens + usage.write_tokens
    assert before.prompt is not None
    return before.prompt.ends[last]


def predecessor(context: Context) -> Audited | None:
    """The call this one continues with a change; `None` where it extends a recent call of its thread.

    A prompt that extends an older call only, and repeats turns of a newer one behind a change, continues the newer.
    """
    index = context.audited.previous
    if index is None:
        return None
    previous = context.history.calls[index]
    if previous.prompt is None or not extends(context.prompt, previous.prompt):
        return None if previous.prompt is None else previous
    call = context.audited.call
    for newer in islice(context.history.thread(call.trace, call.agent), CANDIDATES):
        if newer.index <= index:
            return None
        if newer.prompt is not None and _repeats_turns(newer.prompt, context.prompt):
            return newer
    return None


def _repeats_turns(old: Prompt, new: Prompt) -> bool:
    """Whether `new` holds turns of the assistant that stand behind the first difference in `old`."""
    index = common_blocks(old, new)
    here = {block.meaning for block in new.blocks[index:]}
    return any(block.role == "assistant" and block.meaning in here for block in old.blocks[index:])


def _as_edited(sides: tuple[Side, Side] | None, divergence: Divergence | None, index: int) -> Level | int | None:
    """What counts as still there although its bytes changed: a level cut into other blocks, or the edited block."""
    if sides is None or divergence is None:
        return None
    if divergence.change == "structure":
        return divergence.level
    return index if _is_edit(sides, index) else None


def _still_here(old: Prompt, new: Prompt, index: int, last: int, edited: Level | int | None) -> list[int]:
    """Blocks of `old` from its change to its last cached block that are in `new` behind the change too."""
    here = Counter(block.meaning for block in new.blocks[index:])
    found = []
    for at in range(index, last + 1):
        meaning = old.blocks[at].meaning
        if here[meaning] > 0:
            here[meaning] -= 1
            found.append(at)
        elif (old.blocks[at].level is edited) if isinstance(edited, Level) else at == edited:
            found.append(at)
    return found


def _kept(old: Prompt, still: list[int], index: int, last: int, cause: Cause, cached: int) -> int | None:
    """Tokens that survive of what was cached; `None` where they are too few for the same conversation.

    A summary may stand for most of it. Where tools or system changed and the conversation behind them is a new one,
    only they could have been read.
    """
    front, sizes = old.tokens_before(index), {at: old.tokens_of(at) for at in range(index, last + 1)}
    here = set(still)
    kept = cached - sum(size for at, size in sizes.items() if at not in here)
    if kept >= CONTINUES * cached or cause == "compaction":
        return kept
    if cause in ("history_rewritten", "provider_side"):
        return None
    head = [at for at in sizes if old.blocks[at].level < Level.MESSAGES]
    kept = front + sum(sizes[at] for at in head if at in here)
    return kept if kept > front and kept >= CONTINUES * (front + sum(sizes[at] for at in head)) else None


def _is_continuation(
    context: Context, before: Audited, still: list[int], level: Level, divergence: Divergence | None
) -> bool:
    """Whether the call goes on with the conversation, or at least the head, of the call before.

    Prompts without a common turn are siblings or new questions. An agent or a session of its own has a head of its
    own, unless it repeats the other's turns (a session: all of them) or merely sends the same head in another way.
    """
    old, new = before.prompt, context.prompt
    assert old is not None
    turns = any(old.blocks[at].role == "assistant" for at in still)
    if level is Level.MESSAGES:
        return turns or _messages(new) > _messages(old)
    if before.call.trace != context.audited.call.trace:
        last = before.outcome.last_index if before.outcome is not None else -1
        said = [at for at in range(last + 1) if old.blocks[at].level is Level.MESSAGES]
        turns = turns and set(said) <= set(still)
    same_head = divergence is not None and divergence.change in _SAME_HEAD
    return turns or same_head or same_thread(before, context.audited)


def _is_compaction(old: Prompt, new: Prompt, index: int, still: list[int]) -> bool:
    """Whether few new blocks stand at the change in place of many old ones, in front of what is still there."""
    first = old.blocks[still[0]].meaning
    at = next((i for i in range(index, len(new.blocks)) if new.blocks[i].meaning == first), index)
    return index < at <= still[0] - REPLACED


def _messages(prompt: Prompt) -> int:
    last = prompt.paths[-1] if prompt.paths else ""
    return int(last.split("/")[2]) if last.startswith(("/messages/", "/input/", "/contents/")) else -1


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
    evidence = [_sentence(loss)]
    if loss.cause == "compaction":
        evidence.append("the history was shortened: what follows the summary had to be sent again, once")
    elif context.audited.call.kind == "summary" and loss.level < Level.MESSAGES:
        evidence.append("a compaction request: sent with the same tools and system, it would have read the history")
    elif loss.cause == "provider_side":
        evidence.append("the API drops thinking of earlier turns on this model, whatever the client sends")
    rule = context.rules.values.get("strips_thinking" if loss.cause == "provider_side" else "prefix_order")
    path = loss.divergence.path if loss.divergence else context.prompt.paths[loss.index]
    status: Status = "established" if context.audited.agrees is not False else "likely"
    return Finding(loss.cause, status, evidence, lost, rule, path=path)


def system_changed_too(context: Context, loss: ContentLoss) -> Finding | None:
    """Where tools changed: whether the system prompt behind them did as well, so that undoing one is not enough."""
    old, new = loss.before.prompt, context.prompt
    if loss.level is not Level.TOOLS or old is None:
        return None
    one, two = _system(old), _system(new)
    if not one or not two or [old.blocks[at].meaning for at in one] == [new.blocks[at].meaning for at in two]:
        return None
    pairs = zip(one, two, strict=False)
    at = next((b for a, b in pairs if old.blocks[a].meaning != new.blocks[b].meaning), two[-1])
    evidence = f"{new.paths[at]} differs from {name_of(loss.before)} as well"
    return Finding("system_changed", "established", [evidence], path=new.paths[at])


def _system(prompt: Prompt) -> list[int]:
    return [at for at, block in enumerate(prompt.blocks) if block.level is Level.SYSTEM]


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


def lifetime_of_previous(context: Context, before: Audited) -> tuple[bool, str, Ttl]:
    """Whether the entry at the end of `before` was still alive, the sentence that says so, and its lifetime."""
    assert before.prompt is not None and before.outcome is not None
    last = before.outcome.last_index
    key = (before.prompt.chain[last], before.outcome.salts[before.prompt.blocks[last].level])
    entry = context.state.entries.get(key)
    gap = gap_of(context.audited, before)
    if entry is None:
        return True, f"{seconds(gap)} since the start of {name_of(before)}", context.rules.default_ttl
    living = alive(entry, context.audited.at)
    return living, f"{seconds(gap)} since the start of {name_of(before)}, lifetime {entry.ttl_s} s", entry.ttl
