"""What the calls so far have sent and written: the index that diagnosis asks for the call whose tokens were lost."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

from auditor.records import Audited
from auditor.replay import idle
from localmodel.rules.types import EntryKey
from traces.divergence import common_blocks
from traces.schema import Prompt

# Conversations interleave within one agent label (titles, compaction, side questions); a continuation is looked for
# among this many of its latest calls; the time when it still asked for another lifetime, among more.
CANDIDATES = 8
REACH = 512


class _Realm:
    """Prefixes of the calls that can share entries at all: one scope, one model. Prefix -> latest call."""

    __slots__ = ("sent", "written")

    def __init__(self) -> None:
        self.sent: dict[bytes, int] = {}
        self.written: dict[bytes, int] = {}


class History:
    """Earlier calls by prefix, by entry and by thread (trace and agent). Holds digests only, no bodies."""

    def __init__(self) -> None:
        self.calls: list[Audited] = []
        self._realms: dict[tuple[str, str], _Realm] = {}
        self._own: dict[tuple[str, str], dict[bytes, int]] = {}
        self._used: dict[EntryKey, int] = {}
        self._threads: dict[tuple[str, str], deque[int]] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def add(self, call: Audited) -> None:
        """Take in a call after it was audited."""
        self.calls.append(call)
        index = call.index
        self._ids[call.call.trace, call.call.id] = index
        key = (call.call.trace, call.call.agent)
        if key not in self._threads:
            self._threads[key] = deque(maxlen=REACH)
        self._threads[key].append(index)
        if call.prompt is None or call.outcome is None:
            return
        prompt, outcome = call.prompt, call.outcome
        realm = self._realm(prompt)
        realm.sent.update(dict.fromkeys(prompt.chain, index))
        if idle(call.call, outcome):
            return
        floor = outcome.rules.min_tokens
        for point in outcome.breakpoints:
            if prompt.ends[point.index] >= floor:
                self._use(call, prompt, outcome.salts, point.index)
        if outcome.read_index >= 0:
            self._use(call, prompt, outcome.salts, outcome.read_index)

    def _use(self, call: Audited, prompt: Prompt, salts: tuple[bytes, bytes, bytes], at_block: int) -> None:
        link, index = prompt.chain[at_block], call.index
        self._own.setdefault((call.call.trace, call.call.agent), {})[link] = index
        self._realm(prompt).written[link] = index
        self._used[link, salts[prompt.blocks[at_block].level]] = index

    def last_use(self, key: EntryKey) -> int | None:
        """Index of the call that last wrote or read an entry."""
        return self._used.get(key)

    def _realm(self, prompt: Prompt) -> _Realm:
        key = (prompt.scope, prompt.model)
        realm = self._realms.get(key)
        if realm is None:
            realm = self._realms[key] = _Realm()
        return realm

    def longest_written(self, prompt: Prompt) -> tuple[int, int] | None:
        """(block, call): the longest prefix of `prompt` at which a call of its scope and model left an entry."""
        return self._longest(prompt, self._realm(prompt).written)

    def longest_own(self, prompt: Prompt, trace: str, agent: str) -> tuple[int, int] | None:
        """The same over the calls of one thread, whatever their scope and model."""
        return self._longest(prompt, self._own.get((trace, agent), {}))

    def longest_sent(self, prompt: Prompt) -> tuple[int, int] | None:
        """(block, call): the longest prefix of `prompt` that a call of its scope and model sent before."""
        return self._longest(prompt, self._realm(prompt).sent)

    @staticmethod
    def _longest(prompt: Prompt, index: dict[bytes, int]) -> tuple[int, int] | None:
        chain = prompt.chain
        for block in range(len(chain) - 1, -1, -1):
            call = index.get(chain[block])
            if call is not None:
                return block, call
        return None

    def thread(self, trace: str, agent: str) -> Iterator[Audited]:
        """The latest calls of a thread, newest first."""
        for index in reversed(self._threads.get((trace, agent), ())):
            yield self.calls[index]

    def parent(self, trace: str, parent_id: str | None) -> Audited | None:
        """The call that a sub-agent's first call names as its parent."""
        index = self._ids.get((trace, parent_id)) if parent_id else None
        return None if index is None else self.calls[index]

    def previous(self, prompt: Prompt, trace: str, agent: str, parent_id: str | None) -> Audited | None:
        """The call that `prompt` continues: of its thread the latest that it extends, else the one it shares most with.

        Falls back to the parent call, then to whichever call sent the longest common prefix.
        """
        candidates = [call for call in islice(self.thread(trace, agent), CANDIDATES) if call.prompt is not None]
        for call in candidates:
            if call.prompt is not None and extends(prompt, call.prompt):
                return call
        if candidates:
            return max(candidates, key=lambda call: (_shared(prompt, call.prompt), call.index))
        parent = self.parent(trace, parent_id)
        if parent is not None and parent.prompt is not None:
            return parent
        sent = self.longest_sent(prompt)
        return None if sent is None else self.calls[sent[1]]


def extends(prompt: Prompt, earlier: Prompt) -> bool:
    """Whether `prompt` begins with all blocks of `earlier`."""
    count = len(earlier.chain)
    return count == 0 or (len(prompt.chain) >= count and prompt.chain[count - 1] == earlier.chain[-1])


def _shared(prompt: Prompt, earlier: Prompt | None) -> int:
    """Size of the blocks that two prompts have in common, wherever they stand, plus their common beginning."""
    if earlier is None:
        return -1
    here = Counter(block.meaning for block in prompt.blocks)
    size = sum(block.size for block in earlier.blocks if here[block.meaning] > 0)
    return size + sum(block.size for block in earlier.blocks[: common_blocks(earlier, prompt)])
