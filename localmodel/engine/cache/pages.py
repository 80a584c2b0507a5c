"""The account of pages: which are free, which are cached, which are in use, and by how many.

free      nobody knows it; may be handed out
cached    in the index, used by nobody: its content is kept, it may be evicted
in use    held by at least one lease, in the index or not
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from localmodel.engine.cache.errors import BrokenAccount, CacheError, OutOfPages

PageState: TypeAlias = Literal["free", "cached", "in use"]


@dataclass(frozen=True, slots=True)
class Copy:
    """A request to the engine: copy the first `tokens` positions of page `source` to page `target`, all layers."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Pages by state. free + cached + in_use = total, always."""

    free: int
    cached: int
    in_use: int
    total: int


class PagePool:
    """A fixed number of pages, numbered from 0. Holds no KV itself: a number stands for a slot in the engine's slab."""

    def __init__(self, count: int, *, paranoid: bool = False) -> None:
        if count < 1:
            raise CacheError(f"a pool of {count} pages is no pool, give at least 1")
        self._refs = [0] * count
        self._indexed = bytearray(count)
        self._free = list(range(count - 1, -1, -1))
        self._cached = 0
        self._in_use = 0
        self._paranoid = paranoid

    @property
    def counts(self) -> Counts:
        """Pages by state."""
        return Counts(len(self._free), self._cached, self._in_use, len(self._refs))

    @property
    def free(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Pages that are free or may be evicted."""
        return len(self._free) + self._cached

    def refs(self, page: int) -> int:
        """How many holders a page has."""
        return self._refs[page]

    def state(self, page: int) -> PageState:
        """The state of one page."""
        if self._refs[page]:
            return "in use"
        return "cached" if self._indexed[page] else "free"

    def allocate(self) -> int:
        """A free page, held once by the caller. Raises OutOfPages."""
        if not self._free:
            raise OutOfPages(f"all {len(self._refs)} pages are taken ({self._in_use} in use, {self._cached} cached)")
        page = self._free.pop()
        self._refs[page] = 1
        self._in_use += 1
        self._audit()
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that is cached or in use."""
        if not self._refs[page]:
            if not self._indexed[page]:
                raise CacheError(f"page {page} is free, only cached pages and those in use can be held")
            self._cached -= 1
            self._in_use += 1
        self._refs[page] += 1
        self._audit()

    def drop(self, page: int) -> bool:
        """One holder less; true if it was the last one: the page is then cached if the index has it, else free."""
        if not self._refs[page]:
            raise CacheError(f"page {page} is dropped by nobody who holds it (it is {self.state(page)})")
        self._refs[page] -= 1
        last = not self._refs[page]
        if last:
            self._in_use -= 1
            self._rest(page)
        self._audit()
        return last

    def publish(self, page: int) -> None:
        """The index takes a page in; whoever computed or restored it still holds it."""
        if self._indexed[page] or not self._refs[page]:
            raise CacheError(f"page {page} cannot enter the index, it is {self.state(page)} or already there")
        self._indexed[page] = 1
        self._audit()

    def retract(self, page: int) -> None:
        """The index lets a page go: it becomes free now, or with its last holder."""
        if not self._indexed[page]:
            raise CacheError(f"page {page} is not in the index")
        self._indexed[page] = 0
        if not self._refs[page]:
            self._cached -= 1
            self._free.append(page)
        self._audit()

    def fork(self, source: int, tokens: int) -> Copy:
        """Copy on write: a new page, held by the caller, and the request to fill it. Raises OutOfPages.

        The caller goes on holding `source` until the copy is made.
        """
        if not self._refs[source]:
            raise CacheError(f"page {source} must be held while it is copied")
        return Copy(source, self.allocate(), tokens)

    def _rest(self, page: int) -> None:
        if self._indexed[page]:
            self._cached += 1
        else:
            self._free.append(page)

    def _audit(self) -> None:
        if self._paranoid:
            self.check()

    def check(self) -> None:
        """Recount everything from the pages themselves. Raises BrokenAccount."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise BrokenAccount(f"{len(self._free) - len(free)} pages are free twice")
        states = [self.state(page) for page in range(len(self._refs))]
        if free != {page for page, state in enumerate(states) if state == "free"}:
            raise BrokenAccount("the list of free pages and the states of the pages differ")
        found = Counts(len(free), states.count("cached"), states.count("in use"), len(states))
        if found != self.counts or min(self._refs) < 0:
            raise BrokenAccount(f"counted {found}, the account says {self.counts}")
