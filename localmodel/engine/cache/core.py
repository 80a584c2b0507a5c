"""The prefix cache of the engine, in one entry: `KVCache`. It decides which page holds what; the KV itself is yours.

A *page* is a slot of 16 tokens, all layers, in your slab; here it is a number. A *lease* is one sequence's claim on
pages, from the look-up until it ends. Everything is synchronous and single-threaded: call it from the scheduler only.

    root = Root(weights=…, tokenizer=…, template=…, dtype="bf16", layout="…", numerics="exact", namespace=tenant)
    cache = KVCache(4096)
    with cache.lease(root, prompt, limit=min(entitled, len(prompt) - 1)) as lease:
        lease.matched                      # tokens whose KV is reused: the number to report, never more than `limit`
        for copy in lease.reserve():       # pages for the whole prompt (or reserve(n), chunk by chunk)
            slab[copy.target, …, : copy.tokens, :] = slab[copy.source, …, : copy.tokens, :]
        table = lease.pages                # position p is slot p % 16 of page table[p // 16]
        …compute positions lease.matched … len(prompt) - 1, writing their KV through the table…
        lease.commit(len(prompt))          # from now on others can reuse it, while this sequence goes on
        table = lease.pages                # commit may have put other, equal pages into it (see below)
        lease.append([token])              # decode: append, reserve, compute, commit (each step, or at the end)

Rules for the caller
* **N-1**: to get logits the last token must be computed, so pass `limit=len(prompt) - 1`. A limit may fall anywhere,
  also inside a page; so what a provider's rules entitle the call to is a limit too.
* **Write only at positions >= lease.matched (after `reserve`) and >= lease.committed.** Positions below are shared.
  `reserve` returns at most one `Copy`; carry it out (or enqueue it) before the lease's next call.
* **commit(n) says the KV of the first n tokens is written** (or enqueued before anything that reads it). It returns the
  table's changes as `Remap(index, old, new)`: another sequence had computed the same page first, its page stays and
  yours is free again. Apply them before the next call to the cache. (Equal tokens under an equal root mean equal KV.)
* **reserve raises OutOfPages and changes nothing** if the pages cannot be had: wait, or close another lease (preempt).
  Slots beyond `len(tokens)` may be reserved for drafts; rejected drafts are simply written over, never committed.
* **close() gives everything back**, at any point, as often as you like; leaving the `with` block calls it. What was
  committed stays cached until evicted, the rest is free. Cancelling is closing.
* If `read` or `write` of `Offload` raise, the call raises the same and the account stays exact.

Look-up goes to the token: of a page that agrees only in its first k tokens those k are reused, by copy on write. A page
that was offloaded comes back whole (of its tokens those that agree are reused) and only inside `lease`;
`lease.restored` counts tokens that came from a tier, they are part of `matched`. A page that cannot be restored is
computed; `cache.refused` counts why by "get:REASON".

Eviction happens in `reserve` and `lease`, never to a page in use, never to a page before the ones that are cached after
it, least recently used first. `cache.counts` gives pages by state (free + cached + in_use = total), `cache.check()`
proves the account from scratch, `paranoid=True` does so after every operation (tests). `on_event` receives an `Event`
for each page stored, removed, restored or evicted; it must neither raise nor call the cache.

Persistence: `Offload(HostTier(bytes, below=DiskTier(folder, bytes)), read, write, lasting=True)`; pages go there when
they are evicted, some at each `cache.save(n)` (call it between steps: what it left a killed process loses), and all at
`cache.flush()`, to be called before the process ends.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from localmodel.engine.cache.errors import BrokenAccount, CacheError, OutOfPages
from localmodel.engine.cache.identity import PAGE_TOKENS, Identify, Root, blake2b_256, check_ids
from localmodel.engine.cache.pages import Copy, Counts
from localmodel.engine.cache.radix import Match
from localmodel.engine.cache.store import Offload, OnEvent, PageStore


@dataclass(frozen=True, slots=True)
class Remap:
    """Entry `index` of a lease's table was page `old` and is page `new`, which holds the same KV."""

    index: int
    old: int
    new: int


class KVCache:
    """The prefix cache over a fixed number of pages. See the top of this module."""

    def __init__(
        self,
        pages: int,
        *,
        offload: Offload | None = None,
        identify: Identify = blake2b_256,
        on_event: OnEvent | None = None,
        paranoid: bool = False,
    ) -> None:
        self._store = PageStore(pages, offload, identify, on_event, paranoid)
        self._leases: set[Lease] = set()
        self._paranoid = paranoid

    @property
    def counts(self) -> Counts:
        """Pages by state."""
        return self._store.pool.counts

    @property
    def refused(self) -> Counter[str]:
        """How often a tier refused a page, by "put:REASON" and "get:REASON"."""
        return self._store.refused

    def match(self, root: Root, tokens: Sequence[int], limit: int | None = None) -> Match:
        """The longest start of `tokens` in memory, without claiming it: true until the next operation."""
        return self._store.index.match(root, tokens, _limit(tokens, limit))

    def lease(self, root: Root, tokens: Sequence[int], *, limit: int | None = None) -> "Lease":
        """Claim the longest cached start of `tokens`, at most `limit` of them, restoring pages from the tier.

        Raises CacheError for a token id that is no 32-bit number or a limit outside 0 … len(tokens).
        """
        check_ids(tokens)
        lease = Lease(self, self._store, root, tokens)
        self._leases.add(lease)
        try:
            lease.claim(_limit(tokens, limit))
        except BaseException:
            lease.close()
            raise
        self.verify()
        return lease

    def save(self, limit: int) -> int:
        """Save up to `limit` pages that only memory has in a lasting tier; returns how many are left to save."""
        return self._store.save(limit)

    def flush(self) -> int:
        """Save all pages in the tier, for the next process; returns how many are there. 0 without a tier."""
        return self._store.flush()

    def ended(self, lease: "Lease") -> None:
        """A lease has given its pages back (called by the lease)."""
        self._leases.discard(lease)
        self.verify()

    def verify(self) -> None:
        """`check()` if paranoid."""
        if self._paranoid:
            self.check()

    def check(self) -> None:
        """Recount pages, trees and holders from scratch. Raises BrokenAccount."""
        pool = self._store.pool
        pool.check()
        self._store.index.check()
        holders = Counter(page for lease in self._leases for page in lease.held())
        for page in range(pool.counts.total):
            if pool.refs(page) != holders[page]:
                raise BrokenAccount(f"page {page} is held {holders[page]} times, the account says {pool.refs(page)}")


class Lease:
    """One sequence's claim on pages. Made by `KVCache.lease`; a context manager that closes itself."""

    def __init__(self, cache: KVCache, store: PageStore, root: Root, tokens: Sequence[int]) -> None:
        self.root = root
        self.matched = 0
        self.restored = 0
        self.committed = 0
        self._cache = cache
        self._store = store
        self._tokens = list(tokens)
        self._pages: list[int] = []
        self._shared_tail = False  # the table's last page is another's: copy before writing
        self._source: int | None = None  # what a copy reads from, held until the next call
        self._done = 0  # pages of the table that are full and in the index
        self._open = True

    @property
    def pages(self) -> tuple[int, ...]:
        """The table: position p is in slot p % 16 of page pages[p // 16]."""
        return tuple(self._pages)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sequence so far: the prompt and what was appended."""
        return tuple(self._tokens)

    def held(self) -> list[int]:
        """Every page this lease holds."""
        return self._pages if self._source is None else [*self._pages, self._source]

    def claim(self, limit: int) -> None:
        """Match, lock and restore (called once, by the cache)."""
        index = self._store.index
        found = index.match(self.root, self._tokens, limit)
        index.lock(found)
        self._pages = list(found.pages)
        self._done = len(found.pages)
        if found.tail is not None:
            self._pages.append(found.tail.page)
        self._shared_tail = found.tail is not None
        self.matched = self.committed = found.tokens
        while self._restore_one(limit):
            pass

    def _restore_one(self, limit: int) -> bool:
        """Restore the page after the full ones, if that reuses more tokens; true if there may be another."""
        start = self._done * PAGE_TOKENS
        if min(start + PAGE_TOKENS, limit) <= self.matched:
            return False
        above = self._store.index.node_of(self._pages[self._done - 1]) if self._done else None
        wanted = tuple(self._tokens[start : start + PAGE_TOKENS])
        found = self._store.restore(self.root, above, wanted, self.matched - start + 1)
        if found is None:
            return False
        page, shared = found
        reach = min(start + shared, limit)
        if self._shared_tail:
            self._store.index.unlock([self._pages.pop()])
        self._pages.append(page)
        self._shared_tail = reach < start + PAGE_TOKENS
        self._done += not self._shared_tail
        self.restored += reach - start
        self.matched = self.committed = reach
        return not self._shared_tail

    def append(self, tokens: Iterable[int]) -> None:
        """The sequence goes on with these tokens; their KV is not computed yet."""
        self._alive()
        new = list(tokens)
        check_ids(new, len(self._tokens))
        self._tokens += new

    def reserve(self, n: int | None = None) -> list[Copy]:
        """Pages for the first n positions (default: all tokens so far); returns what must be copied before writing.

        Raises OutOfPages, with nothing changed, if they cannot be had.
        """
        self._alive()
        self._release_source()
        want = len(self._tokens) if n is None else n
        new = max(0, -(-want // PAGE_TOKENS) - len(self._pages))
        fork = self._shared_tail and want > self.matched
        take_over = self._must_take_over(new, fork)
        for _ in range(new):
            self._pages.append(self._store.take())
        copies = self._own_tail(take_over) if fork else []
        self._cache.verify()
        return copies

    def _must_take_over(self, new: int, fork: bool) -> bool:
        """Whether the page to copy must be taken over instead: nobody else uses it and there is no page for a copy.

        Without this a prompt that fills the pool could never run a second time. Raises OutOfPages.
        """
        pool = self._store.pool
        missing = new + fork - pool.available
        if missing <= 0:
            return False
        if missing == 1 and fork and pool.refs(self._pages[self._done]) == 1:
            return True
        raise OutOfPages(f"{new + fork} pages wanted, {pool.available} can be had: {pool.counts}")

    def _own_tail(self, take_over: bool) -> list[Copy]:
        source = self._pages[self._done]
        copies = []
        if not take_over:
            copies = [self._store.fork(source, self.matched - self._done * PAGE_TOKENS)]
            self._pages[self._done] = copies[0].target
            self._source = source
        elif (node := self._store.index.node_of(source)) is not None:
            self._store.evict(node)
        self._shared_tail = False
        return copies

    def commit(self, n: int) -> list[Remap]:
        """The KV of the first n tokens is written: share it. Returns where the table now names another, equal page."""
        self._alive()
        if n > min(len(self._tokens), len(self._pages) * PAGE_TOKENS):
            have = f"{len(self._tokens)} tokens and {len(self._pages)} pages"
            raise CacheError(f"{n} tokens cannot be committed, the lease has {have}")
        if n <= self.committed:
            return []
        if self._shared_tail:
            raise CacheError(f"positions from {self.matched} on are shared, reserve before computing and committing")
        remaps = [remap for _ in range(self._done, n // PAGE_TOKENS) if (remap := self._share_page())]
        if n % PAGE_TOKENS:
            self._insert(self._tokens[self._done * PAGE_TOKENS : n])
        self.committed = n
        self._release_source()
        self._cache.verify()
        return remaps

    def _share_page(self) -> Remap | None:
        """Publish the next full page, or use the equal one that is there in its place."""
        i = self._done
        old = self._pages[i]
        new = self._insert(self._tokens[i * PAGE_TOKENS : (i + 1) * PAGE_TOKENS])
        self._done += 1
        if new == old:
            return None
        self._store.pool.hold(new)
        self._pages[i] = new
        self._store.pool.drop(old)
        return Remap(i, old, new)

    def _insert(self, tokens: list[int]) -> int:
        index = self._store.index
        above = index.node_of(self._pages[self._done - 1]) if self._done else None
        return index.insert(above or index.top(self.root), tuple(tokens), self._pages[self._done]).page

    def _release_source(self) -> None:
        if self._source is not None:
            source, self._source = self._source, None
            self._store.index.unlock([source])

    def close(self) -> None:
        """Give everything back. Committed pages stay cached, all others are free. Closing again does nothing."""
        if not self._open:
            return
        self._open = False
        self._release_source()
        self._store.used(self._pages)
        pages, self._pages = self._pages, []
        self._store.index.unlock(pages)
        self._cache.ended(self)

    def _alive(self) -> None:
        if not self._open:
            raise CacheError("this lease is closed, its pages may be another's")

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _limit(tokens: Sequence[int], limit: int | None) -> int:
    if limit is None:
        return len(tokens)
    if not 0 <= limit <= len(tokens):
        raise CacheError(f"limit {limit} for a prompt of {len(tokens)} tokens, allowed are 0 to {len(tokens)}")
    return limit
