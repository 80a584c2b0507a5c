"""Which stored pages come after which: what a tier must know to find a page by a part of its tokens, and to drop well.

A look-up by identity finds a page whose tokens are all known. A prompt that goes on differently in the middle of a
stored page does not know them; so the pages after one page are kept sorted, and the one with the longest common start
is a neighbour of the place where the wanted tokens would stand (as in `radix.py`).
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from localmodel.engine.cache.identity import Tokens, common


@dataclass(slots=True)
class _Children:
    order: list[Tokens] = field(default_factory=list)
    named: dict[Tokens, bytes] = field(default_factory=dict)


class Family:
    """Stored pages by the page before them. Identities are the 32 bytes that name them in the tier."""

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[bytes, Tokens]] = {}
        self._after: dict[bytes, _Children] = {}

    def add(self, identity: bytes, parent: bytes, tokens: Tokens) -> list[bytes]:
        """Take a page in; returns the shorter ones of the same place that it begins with, which it makes needless."""
        self.drop(identity)
        children = self._after.setdefault(parent, _Children())
        needless = self._starts(children, tokens)
        if tokens not in children.named:
            insort(children.order, tokens)
        children.named[tokens] = identity
        self._places[identity] = parent, tokens
        return needless

    @staticmethod
    def _starts(children: _Children, tokens: Tokens) -> list[bytes]:
        shorter = (tokens[:n] for n in range(1, len(tokens)))
        return [children.named[one] for one in shorter if one in children.named]

    def drop(self, identity: bytes) -> None:
        """Forget a page; one that is not known is no matter."""
        parent, tokens = self._places.pop(identity, (b"", ()))
        children = self._after.get(parent)
        if children is None or children.named.get(tokens) != identity:
            return
        del children.named[tokens]
        del children.order[bisect_left(children.order, tokens)]
        if not children.order:
            del self._after[parent]

    def nearest(self, parent: bytes, wanted: Tokens) -> Tokens | None:
        """The tokens of the page after `parent` that shares the longest start with `wanted`, if any does."""
        children = self._after.get(parent)
        if children is None:
            return None
        if wanted in children.named:
            return wanted
        place = bisect_left(children.order, wanted)
        near = children.order[max(0, place - 1) : place + 1]
        best = max(near, key=lambda one: common(one, wanted))
        return best if common(best, wanted) else None

    def last_of_line(self, identity: bytes) -> bytes:
        """A page at or after this one that has none after it: without the pages before it, a page is of no use."""
        for _ in self._places:  # a bound, for identities that collide could go round in a circle
            children = self._after.get(identity)
            if children is None:
                break
            identity = children.named[children.order[-1]]
        return identity
