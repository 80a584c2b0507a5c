"""Pool, index and tier as one: allocate by evicting, offload what is evicted, restore what is missing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from localmodel.engine.cache.identity import Identify, PageKey, Root, Tokens, common
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
    """A tier and how the engine copies a page: `read(page) -> bytes`, `write(page, bytes)`, all layers, any format.

    `lasting`: pages survive this process in the tier, so they are saved as they are computed, not only as they go.
    """

    tier: PageBytes
    read: Callable[[int], Payload]
    write: Callable[[int, Payload], None]
    lasting: bool = False


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
        self._unsaved: dict[Node, None] = {}  # in order of arrival

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
        """Forget a leaf, stored in the tier first. An error while reading changes nothing."""
        if self._offload is not None:
            if node in self._unsaved:
                self._save(self._offload, node)
            self._put(node.key(), self._offload.read(node.page))
        self.index.remove(node, "evicted")

    def _put(self, key: PageKey, payload: Payload) -> None:
        assert self._offload is not None
        self._count(self._offload.tier.put(key, payload))

    def _save(self, offload: Offload, node: Node) -> None:
        self._count(offload.tier.save(node.key(), lambda: offload.read(node.page)))
        self._unsaved.pop(node, None)

    def _count(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refused[f"put:{refusal.reason}"] += 1

    def restore(self, root: Root, parent: Node | None, wanted: Tokens, least: int) -> tuple[int, int] | None:
        """Bring the page after `parent` that begins most like `wanted` back from the tier: (page, tokens in common).

        It is in the index then and held by the caller. None if fewer than `least` tokens would be in common, if the
        tier refuses the page, or if there is no room. An error while writing leaves no trace.
        """
        offload = self._offload
        if offload is None or not self.pool.available:
            return None
        above = parent or self.index.top(root)
        tokens = offload.tier.nearest(above.link.identity, wanted)
        if tokens is None or common(tokens, wanted) < least:
            return None
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
        return page, common(tokens, wanted)

    def used(self, pages: Sequence[int]) -> None:
        """A lease over these pages ends: what of them is stored must not look forgotten there."""
        if self._offload is not None and self._offload.lasting:
            nodes = [node for page in pages if (node := self.index.node_of(page)) is not None and node.full]
            self._offload.tier.used([node.link.identity for node in nodes])

    def save(self, limit: int) -> int:
        """Save up to `limit` pages that are in memory only, oldest first; how many are left."""
        for node in list(islice(self._unsaved, limit)):
            assert self._offload is not None
            self._save(self._offload, node)
        return len(self._unsaved)

    def flush(self) -> int:
        """Save every page of the index in the tier; how many are there afterwards, 0 without a tier.

        Where the tier is lasting, all but the unsaved ones are there, or it had no room for them.
        """
        offload = self._offload
        if offload is None:
            return 0
        nodes = list(self.index.nodes())
        for node in list(self._unsaved) if offload.lasting else nodes:
            self._save(offload, node)
        offload.tier.flush()
        return sum(node.key() in offload.tier for node in nodes)

    def _note(self, kind: EventKind, node: Node) -> None:
        if kind == "stored" and self._offload is not None and self._offload.lasting:
            self._unsaved[node] = None
        elif kind in ("removed", "evicted"):
            self._unsaved.pop(node, None)
        if self._on_event is not None:
            self._on_event(Event(kind, node.root, node.page, len(node.tokens)))
