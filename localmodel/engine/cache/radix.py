"""Which prefixes are cached: a tree of pages for each root, found by comparing tokens, to the token.

A node is one page: a full one of 16 tokens that may have children, or a partly filled tail without any. An edge never
needs splitting, because a page cannot be: prompts that part inside a page are siblings, each with its own page, and the
second one began as a copy of the first. Siblings are kept sorted, so the one with the longest common start is a
neighbour of the place where the wanted tokens would stand. No sibling is the start of another: the longer one serves.

Eviction takes leaves only, the least recently used first; a page in use keeps its whole path, since who holds a page
holds all before it.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from localmodel.engine.cache.errors import BrokenAccount, CacheError
from localmodel.engine.cache.identity import PAGE_TOKENS, Chain, Identify, Link, PageKey, Root, Tokens, common
from localmodel.engine.cache.pages import PagePool

EventKind: TypeAlias = Literal["stored", "removed", "restored", "evicted"]


class Node:
    """One cached page (or, with page -1 and no parent, the top of one root's tree)."""

    __slots__ = ("chain", "children", "link", "order", "page", "parent", "root", "stamp", "tokens")

    def __init__(self, root: Root, chain: Chain, parent: "Node | None", tokens: Tokens, page: int) -> None:
        self.root = root
        self.chain = chain
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[Tokens, Node] = {}
        self.order: list[Tokens] = []
        self.stamp = 0
        self.link = self._place()

    def _place(self) -> Link:
        """A tail is no place for others yet: nothing hangs on it."""
        if self.parent is None:
            return self.chain.top
        return self.chain.link(self.parent.link, self.tokens) if self.full else self.parent.link

    @property
    def full(self) -> bool:
        """Whether all 16 positions are filled."""
        return len(self.tokens) == PAGE_TOKENS

    def key(self) -> PageKey:
        """The key under which a tier stores this page."""
        if self.parent is None:
            raise CacheError("the top of a tree is no page, no tier stores it")
        return self.chain.key(self.parent.link, self.tokens)

    def adopt(self, child: "Node") -> None:
        """Hang a node below this one."""
        self.children[child.tokens] = child
        insort(self.order, child.tokens)

    def disown(self, child: "Node") -> None:
        """Take a node off."""
        del self.children[child.tokens]
        del self.order[bisect_left(self.order, child.tokens)]

    def grow(self, tokens: Tokens) -> None:
        """The owner of this tail has filled more of it."""
        parent = self.parent
        assert parent is not None
        parent.disown(self)
        self.tokens = tokens
        self.link = self._place()
        parent.adopt(self)


Note: TypeAlias = Callable[[EventKind, Node], None]


@dataclass(frozen=True, slots=True)
class Tail:
    """A page of which only the first `tokens` positions (1 to 15) are wanted: to be copied before it is written."""

    page: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached start of a prompt: full pages, then perhaps a part of one more. `tokens` counts both."""

    pages: tuple[int, ...]
    tokens: int
    tail: Tail | None


class RadixIndex:
    """The trees of all roots over one pool. Not thread-safe; a read changes nothing."""

    def __init__(self, pool: PagePool, identify: Identify, note: Note) -> None:
        self._pool = pool
        self._identify = identify
        self._note = note
        self._tops: dict[Root, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []
        self._clock = 0
        self._serial = 0

    def node_of(self, page: int) -> Node | None:
        """The node of a page, None if the index does not have it."""
        return self._nodes.get(page)

    def top(self, root: Root) -> Node:
        """The top of a root's tree; not kept before something hangs on it, so that old namespaces cost nothing."""
        return self._tops.get(root) or Node(root, Chain(root, self._identify), None, (), -1)

    def match(self, root: Root, tokens: Sequence[int], end: int) -> Match:
        """The longest cached start of the first `end` of `tokens`. Compares tokens, trusts no digest."""
        node = self._tops.get(root)
        if node is None:
            return Match((), 0, None)
        pages: list[int] = []
        at = 0
        while at + PAGE_TOKENS <= end:
            child = node.children.get(tuple(tokens[at : at + PAGE_TOKENS]))
            if child is None:
                break
            node = child
            pages.append(node.page)
            at += PAGE_TOKENS
        tail = self._tail(node, tuple(tokens[at : min(at + PAGE_TOKENS, end)]))
        return Match(tuple(pages), at + (tail.tokens if tail else 0), tail)

    @staticmethod
    def _tail(node: Node, rest: Tokens) -> Tail | None:
        place = bisect_left(node.order, rest)
        best, shared = None, 0
        for tokens in node.order[max(0, place - 1) : place + 1]:
            if (n := common(tokens, rest)) > shared:
                best, shared = tokens, n
        return None if best is None else Tail(node.children[best].page, shared)

    def lock(self, match: Match) -> None:
        """Hold every page of a match, its tail too."""
        for page in match.pages:
            self._pool.hold(page)
        if match.tail:
            self._pool.hold(match.tail.page)

    def unlock(self, pages: Sequence[int]) -> None:
        """Give back pages of one path, first to last; the last become evictable first. Their use counts as now."""
        self._clock += 1
        for page in reversed(pages):
            node = self._nodes.get(page)
            if node is not None:
                node.stamp = self._clock
            if self._pool.drop(page) and node is not None:
                self._offer(node)

    def insert(self, parent: Node, tokens: Tokens, page: int, kind: EventKind = "stored") -> Node:
        """Put a page that the caller holds below `parent`; returns the node that serves these tokens from now on.

        If that node has another page, the caller's is a duplicate: the index did not take it. A shorter tail that these
        tokens begin with is superseded, or grows in place where it is the same page.
        """
        place = bisect_left(parent.order, tokens)
        if place < len(parent.order) and parent.order[place][: len(tokens)] == tokens:
            return parent.children[parent.order[place]]
        before = parent.children[parent.order[place - 1]] if place else None
        if before is not None and before.tokens == tokens[: len(before.tokens)]:
            if before.page == page:
                before.grow(tokens)
                self._note(kind, before)
                return before
            self.remove(before, "removed")
        return self._hang(Node(parent.root, parent.chain, parent, tokens, page), parent, kind)

    def _hang(self, node: Node, parent: Node, kind: EventKind) -> Node:
        self._pool.publish(node.page)
        parent.adopt(node)
        self._nodes[node.page] = node
        if parent.parent is None:
            self._tops[parent.root] = parent
        self._note(kind, node)
        return node

    def remove(self, node: Node, kind: EventKind) -> None:
        """Take a leaf out; its page is free now or with its last holder."""
        parent = node.parent
        if parent is None or node.children:
            raise CacheError(f"page {node.page} has {len(node.children)} pages after it, only a leaf can be removed")
        self._note(kind, node)
        parent.disown(node)
        del self._nodes[node.page]
        self._pool.retract(node.page)
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children:
            self._tops.pop(parent.root, None)

    def _offer(self, node: Node) -> None:
        """Enter a node among the candidates for eviction, if it is one. Outdated entries are skipped when met."""
        if node.children or self._pool.refs(node.page):
            return
        self._serial += 1
        heapq.heappush(self._leaves, (node.stamp, self._serial, node))
        if len(self._leaves) > 64 + 4 * len(self._nodes):
            self._leaves = [entry for entry in self._leaves if self._current(entry)]
            heapq.heapify(self._leaves)

    def _current(self, entry: tuple[int, int, Node]) -> bool:
        stamp, _, node = entry
        attached = self._nodes.get(node.page) is node
        return attached and stamp == node.stamp and not node.children and not self._pool.refs(node.page)

    def victim(self) -> Node:
        """The least recently used leaf that nobody holds. Raises CacheError if there is none."""
        while self._leaves:
            if self._current(self._leaves[0]):
                return self._leaves[0][2]
            heapq.heappop(self._leaves)
        raise CacheError(f"nothing can be evicted, {self._pool.counts}")

    def nodes(self) -> Iterator[Node]:
        """All nodes, a page before those after it."""
        stack = list(self._tops.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Walk the trees and compare them with the page account. Raises BrokenAccount."""
        found = list(self.nodes())
        if len(found) != len(self._nodes) or any(self._nodes.get(node.page) is not node for node in found):
            raise BrokenAccount(f"the trees have {len(found)} pages, the index {len(self._nodes)}")
        for node in [*self._tops.values(), *found]:
            self._check_children(node)
        offered = {id(entry[2]) for entry in self._leaves if self._current(entry)}
        for node in found:
            idle = not self._pool.refs(node.page)
            if idle and not node.children and id(node) not in offered:
                raise BrokenAccount(f"page {node.page} is an idle leaf that eviction does not know")

    def _check_children(self, node: Node) -> None:
        if node.order != sorted(node.children) or (node.parent is None and not node.order):
            raise BrokenAccount(f"page {node.page}: its children are out of order, or an empty tree was kept")
        for one, two in zip(node.order, node.order[1:], strict=False):
            if two[: len(one)] == one:
                raise BrokenAccount(f"page {node.page}: one child is the start of another")
        for child in node.children.values():
            torn = node.page >= 0 and self._pool.refs(child.page) and not self._pool.refs(node.page)
            if torn or (node.parent is not None and not node.full) or self._pool.state(child.page) == "free":
                raise BrokenAccount(f"page {child.page} is in use or filled without the page before it")
