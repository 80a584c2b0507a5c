"""Pool, index and tier as one: allocate by evicting, offload what is evicted, restore what is missing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from localmodel.engine.cache.identity import PAGE_TOKENS, Identify, Root, Tokens
from localmodel.engine.cache.pages import Copy, PagePool
from localmodel.engine.cache.radix import EventKind, Node, RadixIndex
from localmodel.engine.cache.tiers import PageBytes, Payload, Refusal


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a cached page. `tokens` is how many of its 16 positions are filled.

    stored: computed and findable from now on. restored: the same, from a tier. evicted: forgotten to make room.
    removed: a longer page that begins with the same tokens took its place.
    """

    kind: EventKind
    root: Root
    page: int
    tokens: int


OnEvent: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Offload:
    """A tier and how the engine copies a page: `read(page) -> bytes`, `write(page, bytes)`, all layers, any format."""

    tier: PageBytes
    read: Callable[[int], Payload]
    write: Callable[[int, Payload], None]


class PageStore:
    """What leases work on. Its users leave it consistent at every exception."""

    def __init__(
        self, pages: int, offload: Offload | None, identify: Identify, on_event: OnEvent | None, paranoid: bool
    ) -> None:
        self.pool = PagePool(pages, paranoid=paranoid)
        self.index = RadixIndex(self.pool, identify, self._note)
        self.refused: Counter[str] = Counter()
        self._offload = offload
        self._on_event = on_event

    def take(self) -> int:
        """A page held by the caller, evicting another one where none is free. Raises OutOfPages."""
        self._make_room()
        return self.pool.allocate()

    def fork(self, source: int, tokens: int) -> Copy:
        """Copy on write into such a page."""
        self._make_room()
        return self.pool.fork(source, tokens)

    def _make_room(self) -> None:
        if not self.pool.free and self.pool.available:
            self.evict(self.index.victim())

    def evict(self, node: Node) -> None:
        """Forget a leaf, stored in the tier first if it is full. An error while reading changes nothing."""
        if self._offload is not None and node.full:
            self._store(self._offload, node)
        self.index.remove(node, "evicted")

    def _store(self, offload: Offload, node: Node) -> None:
        refusal = offload.tier.put(node.key(), offload.read(node.page))
        if refusal is not None:
            self.refused[f"put:{refusal.reason}"] += 1

    def restore(self, root: Root, parent: Node | None, tokens: Tokens) -> int | None:
        """Bring the page of these 16 tokens back from the tier, into the index, held by the caller.

        None if the tier has it not, refuses it, or there is no room. An error while writing leaves no trace.
        """
        offload = self._offload
        if offload is None or len(tokens) < PAGE_TOKENS or not self.pool.available:
            return None
        above = parent or self.index.top(root)
        payload = offload.tier.get(above.chain.key(above.link, tokens))
        if payload is None or isinstance(payload, Refusal):
            if payload is not None:
                self.refused[f"get:{payload.reason}"] += 1
            return None
        page = self.take()
        try:
            offload.write(page, payload)
        except BaseException:
            self.pool.drop(page)
            raise
        self.index.insert(above, tokens, page, "restored")
        return page

    def flush(self) -> int:
        """Store every full page of the index in the tier; how many are there afterwards, 0 without a tier."""
        offload = self._offload
        if offload is None:
            return 0
        full = [node for node in self.index.nodes() if node.full]
        for node in full:
            self._store(offload, node)
        offload.tier.flush()
        return sum(node.key() in offload.tier for node in full)

    def _note(self, kind: EventKind, node: Node) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, node.root, node.page, len(node.tokens)))
