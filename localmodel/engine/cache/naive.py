"""The oracle beside `KVCache`: the same interface over one dict from (root, every prefix ever committed) to its pages.

Nothing is shared, evicted, merged or freed: a lease copies all it reuses into pages of its own. Memory grows with the
square of the length, so it is for tests and for doubting the other one.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType

from localmodel.engine.cache.core import Remap
from localmodel.engine.cache.identity import PAGE_TOKENS, Root
from localmodel.engine.cache.pages import Copy


class NaiveCache:
    """A prefix cache without limits."""

    def __init__(self) -> None:
        self.prefixes: dict[tuple[Root, tuple[int, ...]], tuple[int, ...]] = {}
        self.fresh = count()

    def lease(self, root: Root, tokens: Sequence[int], *, limit: int | None = None) -> "NaiveLease":
        """Find the longest committed prefix by trying all of them."""
        for n in range(len(tokens) if limit is None else limit, 0, -1):
            found = self.prefixes.get((root, tuple(tokens[:n])))
            if found is not None:
                return NaiveLease(self, root, tokens, n, found)
        return NaiveLease(self, root, tokens, 0, ())


class NaiveLease:
    """One sequence of the naive cache; see `core.Lease` for what the methods mean."""

    def __init__(
        self, cache: NaiveCache, root: Root, tokens: Sequence[int], matched: int, source: tuple[int, ...]
    ) -> None:
        self.root = root
        self.tokens = tuple(tokens)
        self.matched = self.committed = matched
        self.pages = source
        self._cache = cache
        self._shared = True

    def append(self, tokens: Iterable[int]) -> None:
        """More tokens."""
        self.tokens += tuple(tokens)

    def reserve(self, n: int | None = None) -> list[Copy]:
        """New pages; the first time copies of all that is reused."""
        source = self.pages if self._shared else ()
        want = -(-(len(self.tokens) if n is None else n) // PAGE_TOKENS)
        own = () if self._shared else self.pages
        size = max(want, len(own), len(source))
        self.pages = own + tuple(next(self._cache.fresh) for _ in range(size - len(own)))
        self._shared = False
        filled = [min(PAGE_TOKENS, self.matched - i * PAGE_TOKENS) for i in range(len(source))]
        return [Copy(a, b, k) for a, b, k in zip(source, self.pages, filled, strict=False)]

    def commit(self, n: int) -> list[Remap]:
        """Remember every prefix up to n tokens."""
        for k in range(self.committed + 1, n + 1):
            pages = self.pages[: -(-k // PAGE_TOKENS)]
            self._cache.prefixes.setdefault((self.root, self.tokens[:k]), pages)
        self.committed = max(self.committed, n)
        return []

    def close(self) -> None:
        """Nothing is given back."""

    def __enter__(self) -> "NaiveLease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
