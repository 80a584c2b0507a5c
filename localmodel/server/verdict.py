"""The truth about each served call: what the cache did, and why it did not do more.

The server knows the entries, the keys and the times, so it need not guess as an audit must. Only calls of the same API
key are compared: what another key sent must not show.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from localmodel.rules.step import alive, positions
from localmodel.rules.types import CacheState, Outcome
from traces.divergence import common_blocks
from traces.schema import Level, Prompt

Word: TypeAlias = Literal["hit", "partial_miss", "miss", "cold_write", "not_engaged"]

# As in `cachewright audit`: fewer repeated tokens than this that no breakpoint covered are not called a loss, and a
# prompt continues another only where half of what that one left cached is still in it.
MATERIAL_TOKENS = 1024
CONTINUES = 0.5
KEEP_CALLS, KEEP_BLOCKS, THREAD = 256, 100_000, 8
_CHANGED = {Level.TOOLS: "tools_changed", Level.SYSTEM: "system_changed", Level.MESSAGES: "history_rewritten"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the cache did, the main cause, the tokens that cause cost, and the block (JSON pointer) it points at."""

    word: Word
    cause: str
    lost_tokens: int = 0
    path: str | None = None


@dataclass(slots=True)
class Sent:
    """One earlier call: prompt, outcome, thread, times; `gone`: it broke off before its response and left nothing."""

    number: int
    thread: str
    prompt: Prompt
    outcome: Outcome
    at: datetime
    first_token_at: datetime | None = None
    gone: bool = False


class Memory:
    """The latest calls of one API key, by prefix and by thread; bounded in calls and in blocks."""

    def __init__(self) -> None:
        self._calls: deque[Sent] = deque()
        self.blocks = 0
        self._sent: dict[bytes, Sent] = {}
        self._written: dict[bytes, Sent] = {}

    def add(self, call: Sent) -> None:
        """Take a call in after it was judged."""
        self._calls.append(call)
        self.blocks += len(call.prompt.blocks)
        self._sent.update(dict.fromkeys(call.prompt.chain, call))
        floor = call.outcome.rules.min_tokens
        ends = [point.index for point in call.outcome.breakpoints if call.prompt.ends[point.index] >= floor]
        used = [index for index in (*ends, call.outcome.read_index) if index >= 0]
        self._written.update({call.prompt.chain[index]: call for index in used})
        while len(self._calls) > KEEP_CALLS or (self.blocks > KEEP_BLOCKS and len(self._calls) > 1):
            self._drop(self._calls.popleft())

    def _drop(self, call: Sent) -> None:
        self.blocks -= len(call.prompt.blocks)
        for link in call.prompt.chain:
            for index in (self._sent, self._written):
                if index.get(link) is call:
                    del index[link]

    def longest_written(self, prompt: Prompt) -> tuple[int, Sent] | None:
        """(block, call): the longest prefix at which an earlier call left an entry, under whatever key."""
        return _longest(prompt, self._written)

    def longest_sent(self, prompt: Prompt) -> tuple[int, Sent] | None:
        """(block, call): the longest prefix that an earlier call sent."""
        return _longest(prompt, self._sent)

    def previous(self, prompt: Prompt, thread: str) -> Sent | None:
        """The call that `prompt` continues: the latest of its thread that it extends, else the one most like it.

        Calls to another model and of another API cannot have left anything that a change of text would have cost.
        """
        calls = [call for call in self._thread(thread) if _same_cache(call.prompt, prompt)]
        for call in calls:
            if extends(prompt, call.prompt):
                return call
        return max(calls, key=lambda call: (_likeness(prompt, call.prompt), call.number), default=None)

    def _thread(self, thread: str) -> Iterator[Sent]:
        found = 0
        for call in reversed(self._calls):
            if call.thread == thread and found < THREAD:
                found += 1
                yield call


def _same_cache(one: Prompt, other: Prompt) -> bool:
    return (one.scope, one.model, one.dialect) == (other.scope, other.model, other.dialect)


def _longest(prompt: Prompt, index: dict[bytes, Sent]) -> tuple[int, Sent] | None:
    for block in range(len(prompt.chain) - 1, -1, -1):
        call = index.get(prompt.chain[block])
        if call is not None:
            return block, call
    return None


def extends(prompt: Prompt, earlier: Prompt) -> bool:
    """Whether `prompt` begins with all blocks of `earlier`."""
    count = len(earlier.chain)
    return count == 0 or (len(prompt.chain) >= count and prompt.chain[count - 1] == earlier.chain[-1])


def _likeness(prompt: Prompt, earlier: Prompt) -> int:
    here = {block.meaning for block in prompt.blocks}
    shared = sum(block.size for block in earlier.blocks if block.meaning in here)
    return shared + sum(block.size for block in earlier.blocks[: common_blocks(earlier, prompt)])


def judge(prompt: Prompt, outcome: Outcome, before: CacheState, memory: Memory, thread: str, at: datetime) -> Verdict:
    """The verdict on a call that `step` answered with `outcome` from the entries `before`."""
    idle = not outcome.read_tokens and not outcome.write_tokens
    if idle and (outcome.reports_writes or outcome.engaged != "yes"):
        return Verdict("not_engaged", "unknown" if outcome.engaged == "yes" else outcome.engaged)
    found: list[tuple[int, str, str | None]] = []
    floor = outcome.read_tokens
    floor = _entry(prompt, outcome, before, memory, at, floor, found)
    previous = memory.previous(prompt, thread)
    loss = None if previous is None else _content(prompt, previous)
    if loss is not None and previous is not None:
        if loss[0] > floor:
            cause = loss[1] if _living(previous, before, at) else "ttl_expired"
            found.append((loss[0] - floor, cause, loss[2]))
    else:
        _uncovered(prompt, outcome, memory, thread, at, floor, found)
    if not found:
        return Verdict("hit", "hit") if outcome.read_tokens else Verdict("cold_write", "cold_write")
    _, cause, path = max(found, key=lambda one: one[0])
    word: Word = "partial_miss" if outcome.read_tokens else "miss"
    return Verdict(word, cause, sum(one[0] for one in found), path)


def with_eviction(found: Verdict, prompt: Prompt, outcome: Outcome, reused_tokens: int) -> Verdict:
    """The verdict where the rules allowed more than was physically there: what is lacking was evicted."""
    lacking = min(outcome.read_tokens, prompt.total - 1) - reused_tokens
    if lacking <= 0:
        return found
    word: Word = "partial_miss" if reused_tokens else "miss"
    if lacking < found.lost_tokens:
        return Verdict(word, found.cause, found.lost_tokens + lacking, found.path)
    return Verdict(word, "evicted", found.lost_tokens + lacking, prompt.paths[outcome.read_index])


def _entry(
    prompt: Prompt, outcome: Outcome, before: CacheState, memory: Memory, at: datetime, floor: int,
    found: list[tuple[int, str, str | None]],
) -> int:  # fmt: skip
    """Tokens up to the longest prefix that has an entry, and what kept it from being read."""
    boundary, writer = _longest_left(prompt, outcome, before, memory)
    if boundary < 0 or prompt.ends[boundary] <= floor:
        return floor
    cause = _blocker(prompt, outcome, before, boundary, writer, at)
    if cause is None:
        return floor
    found.append((prompt.ends[boundary] - floor, cause, prompt.paths[boundary]))
    return prompt.ends[boundary]


def _longest_left(prompt: Prompt, outcome: Outcome, before: CacheState, memory: Memory) -> tuple[int, Sent | None]:
    """The longest prefix with an entry (block, -1: none), and who wrote it: nobody known where that was before the
    start of this process."""
    boundary, writer = memory.longest_written(prompt) or (-1, None)
    for block in range(len(prompt.chain) - 1, boundary, -1):
        if (prompt.chain[block], outcome.salts[prompt.blocks[block].level]) in before.entries:
            return block, None
    return boundary, writer


def _blocker(
    prompt: Prompt, outcome: Outcome, before: CacheState, boundary: int, writer: Sent | None, at: datetime
) -> str | None:
    level = prompt.blocks[boundary].level
    entry = before.entries.get((prompt.chain[boundary], outcome.salts[level]))
    other = None if entry is not None or writer is None else _key_difference(prompt, writer.prompt)
    if entry is None and writer is not None:
        entry = before.entries.get((prompt.chain[boundary], writer.outcome.salts[level]))
    if entry is not None and entry.readable_at > at:
        return "not_yet_readable"
    if entry is not None and not alive(entry, at):
        return "ttl_expired"
    return other or _reach(prompt, outcome, boundary)


def _key_difference(prompt: Prompt, writer: Prompt) -> str | None:
    if prompt.scope != writer.scope:
        return "scope_changed"
    if prompt.model != writer.model:
        return "model_changed"
    return "parameter_changed" if prompt.params != writer.params else None


def _reach(prompt: Prompt, outcome: Outcome, boundary: int) -> str | None:
    if outcome.style != "markers":
        # Every beginning is looked at, but for ends of messages that lie too far back.
        return "beyond_lookback" if outcome.style == "message_ends" else None
    later = [point.index for point in outcome.breakpoints if point.index >= boundary]
    if not later:
        return "no_breakpoint"
    distance = min(positions(prompt, index, boundary, outcome.rules) for index in later)
    return "beyond_lookback" if distance > outcome.rules.lookback else None


def _content(prompt: Prompt, previous: Sent) -> tuple[int, str, str] | None:
    """(tokens that survived behind the change, cause, path), `None` where the call does not continue `previous`."""
    old, last = previous.prompt, previous.outcome.last_index
    index = common_blocks(old, prompt)
    if extends(prompt, old) or last < 0 or index > last or index == len(prompt.blocks):
        return None
    level = min(old.blocks[index].level, prompt.blocks[index].level)
    if level == Level.MESSAGES and _messages(prompt) <= _messages(old):
        return None
    kept = old.ends[last] - _gone(old, prompt, index, last)
    if kept < CONTINUES * old.ends[last]:
        return None
    return kept, _CHANGED[level], prompt.paths[index]


def _gone(old: Prompt, new: Prompt, index: int, last: int) -> int:
    """Tokens of the old prefix that are not in the new prompt; a changed block of about its size is still there."""
    here = {block.meaning for block in new.blocks[index:]}
    lost = [at for at in range(index, last + 1) if old.blocks[at].meaning not in here]
    one, two = old.blocks[index], new.blocks[index]
    edited = (one.kind, one.role) == (two.kind, two.role) and abs(one.size - two.size) * 2 <= max(one.size, two.size)
    return sum(old.tokens_of(at) for at in lost if not (at == index and edited))


def _messages(prompt: Prompt) -> int:
    last = prompt.paths[-1] if prompt.paths else ""
    return int(last.split("/")[2]) if last.startswith(("/messages/", "/input/", "/contents/")) else -1


def _living(previous: Sent, before: CacheState, at: datetime) -> bool:
    prompt, last = previous.prompt, previous.outcome.last_index
    entry = before.entries.get((prompt.chain[last], previous.outcome.salts[prompt.blocks[last].level]))
    return entry is None or alive(entry, at)


def _uncovered(
    prompt: Prompt, outcome: Outcome, memory: Memory, thread: str, at: datetime, floor: int,
    found: list[tuple[int, str, str | None]],
) -> None:  # fmt: skip
    """Tokens that an earlier call sent in the same place but left no entry for."""
    longest = memory.longest_sent(prompt)
    if longest is None or outcome.style not in ("markers", "message_ends"):
        return
    block, sender = longest
    tokens = prompt.ends[block]
    if sender.gone:
        return
    if tokens - floor < MATERIAL_TOKENS or tokens < outcome.rules.min_tokens or _key_difference(prompt, sender.prompt):
        return
    if sender.first_token_at is None or sender.first_token_at > at:
        cause = "not_yet_readable"
    elif (at - sender.at).total_seconds() >= outcome.rules.ttl_s[outcome.rules.default_ttl]:
        cause = "ttl_expired"  # a breakpoint there would not have helped
    elif sender.thread == thread and sender.outcome.last_index > block:
        cause = "breakpoint_on_volatile"
    else:
        cause = "no_breakpoint"
    found.append((tokens - floor, cause, prompt.paths[block]))
