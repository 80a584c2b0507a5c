"""KVCache by example: sharing to the token, copy on write, merging, eviction, cancelling, use that is refused."""

import time
from collections.abc import Callable

import pytest

from localmodel.engine.cache.core import KVCache, Lease, Remap
from localmodel.engine.cache.errors import BrokenAccount, CacheError, OutOfPages
from localmodel.engine.cache.identity import Root
from localmodel.engine.cache.pages import Copy, Counts, PagePool
from localmodel.engine.cache.store import Event, Offload
from localmodel.engine.cache.tiers import HostTier, Payload

ROOT = Root("weights", "tokenizer", "template", "bf16", "layout", "exact", "tenant")
OTHER = Root("weights", "tokenizer", "template", "bf16", "layout", "exact", "somebody else")


def tokens(n: int, start: int = 0) -> list[int]:
    return list(range(start, start + n))


def run(cache: KVCache, prompt: list[int], root: Root = ROOT) -> int:
    """Compute a prompt and leave it cached; how many tokens were reused."""
    with cache.lease(root, prompt) as lease:
        lease.reserve()
        lease.commit(len(prompt))
        return lease.matched


def counts(cache: KVCache) -> tuple[int, int, int]:
    now = cache.counts
    return now.free, now.cached, now.in_use


@pytest.fixture
def cache() -> KVCache:
    return KVCache(16, paranoid=True)


def test_a_prefix_is_reused_to_the_token(cache: KVCache) -> None:
    run(cache, tokens(40))
    for prompt, reused in [
        (tokens(40), 40),
        (tokens(60), 40),
        (tokens(39), 39),
        ([*tokens(21), 99], 21),
        ([*tokens(35), 99], 35),
        ([99, *tokens(40)], 0),
        ([], 0),
    ]:
        assert cache.match(ROOT, prompt).tokens == reused
        with cache.lease(ROOT, prompt) as lease:
            assert lease.matched == reused


@pytest.mark.parametrize("limit", [0, 1, 15, 16, 17, 31, 32, 39, 40])
def test_a_limit_may_fall_anywhere(cache: KVCache, limit: int) -> None:
    run(cache, tokens(40))
    with cache.lease(ROOT, tokens(40), limit=limit) as lease:
        assert lease.matched == limit
        assert len(lease.pages) == -(-limit // 16)


def test_a_block_multiple_prompt_run_twice_computes_its_last_token(cache: KVCache) -> None:
    run(cache, tokens(32))
    with cache.lease(ROOT, tokens(32), limit=31) as lease:
        shared = lease.pages
        (copy,) = lease.reserve()
        assert copy == Copy(shared[1], lease.pages[1], 15) and lease.pages[1] != shared[1]
        # The computed page equals the cached one: that one stays, and the duplicate is free again.
        assert lease.commit(32) == [Remap(1, copy.target, shared[1])]
        assert lease.pages == shared
    assert counts(cache) == (14, 2, 0)


def test_nothing_is_copied_while_nothing_is_written(cache: KVCache) -> None:
    run(cache, tokens(20))
    with cache.lease(ROOT, tokens(20)) as lease:
        shared = lease.pages
        assert lease.reserve() == []
        assert lease.pages == shared
        assert counts(cache) == (14, 0, 2)
        lease.append([7])
        assert [copy.tokens for copy in lease.reserve()] == [4]
        assert counts(cache) == (13, 0, 3)
        assert lease.reserve() == []  # the copy is done: its source needs no holding any more
        assert counts(cache) == (13, 1, 2)


def test_a_running_sequence_is_shared_and_its_tail_stays_its_own(cache: KVCache) -> None:
    first = cache.lease(ROOT, tokens(20))
    first.reserve()
    first.commit(20)
    with cache.lease(ROOT, [*tokens(20), 500]) as second:
        assert second.matched == 20
        (copy,) = second.reserve()
        assert copy.source == first.pages[1]
        first.append([600])
        assert first.reserve() == []  # it owns the page, so it goes on in place
        first.commit(21)
        second.commit(21)
    assert cache.match(ROOT, [*tokens(20), 500]).tokens == cache.match(ROOT, [*tokens(20), 600]).tokens == 21
    first.close()


def test_two_that_computed_the_same_end_with_one_set_of_pages(cache: KVCache) -> None:
    one, two = cache.lease(ROOT, tokens(40)), cache.lease(ROOT, tokens(40))
    for lease in (one, two):
        assert lease.matched == 0
        lease.reserve()
    mine = two.pages
    assert one.commit(40) == []
    assert two.commit(40) == [Remap(0, mine[0], one.pages[0]), Remap(1, mine[1], one.pages[1])]
    assert two.pages == (*one.pages[:2], mine[2])
    one.close()
    two.close()
    assert counts(cache) == (13, 3, 0)


def test_a_longer_tail_takes_the_place_of_a_shorter_one() -> None:
    events: list[Event] = []
    cache = KVCache(8, on_event=events.append, paranoid=True)
    run(cache, tokens(5))
    run(cache, tokens(9))
    assert [(event.kind, event.tokens) for event in events] == [("stored", 5), ("removed", 5), ("stored", 9)]
    assert counts(cache) == (7, 1, 0)
    run(cache, tokens(7))  # is already there, and longer
    assert counts(cache) == (7, 1, 0)


@pytest.mark.parametrize("field", Root.__slots__)
def test_roots_that_differ_in_one_field_share_nothing(cache: KVCache, field: str) -> None:
    run(cache, tokens(40))
    values = {name: getattr(ROOT, name) for name in Root.__slots__}
    assert cache.match(Root(**values), tokens(40)).tokens == 40
    assert run(cache, tokens(40), Root(**{**values, field: "other"})) == 0


def test_fields_of_a_root_cannot_run_into_each_other(cache: KVCache) -> None:
    assert Root("ab", "c", "", "", "", "", "").canonical() != Root("a", "bc", "", "", "", "", "").canonical()


def test_eviction_takes_the_oldest_leaf_and_tails_first() -> None:
    events: list[Event] = []
    cache = KVCache(6, on_event=events.append, paranoid=True)
    run(cache, tokens(48))
    run(cache, tokens(48, 100))
    run(cache, tokens(33))  # uses the first prompt again, its last page only for one token
    events.clear()
    run(cache, tokens(48, 200))
    assert [event.kind for event in events if event.kind != "stored"] == ["evicted"] * 3
    assert cache.match(ROOT, tokens(48, 100)).tokens == 0
    assert cache.match(ROOT, tokens(48)).tokens == 48
    events.clear()
    run(cache, tokens(16, 300))
    assert cache.match(ROOT, tokens(48)).tokens == 32


def test_pages_in_use_are_never_evicted() -> None:
    cache = KVCache(4, paranoid=True)
    run(cache, tokens(32))
    with cache.lease(ROOT, tokens(32), limit=20) as lease, cache.lease(ROOT, tokens(64, 100)) as big:
        assert lease.matched == 20
        with pytest.raises(OutOfPages, match="4 pages wanted, 2 can be had"):
            big.reserve()
        assert big.pages == () and counts(cache) == (2, 0, 2)
        big.reserve(32)
        with pytest.raises(OutOfPages):
            big.reserve(33)
    assert cache.match(ROOT, tokens(32)).tokens == 32


def test_a_prompt_that_fills_the_pool_runs_again() -> None:
    cache = KVCache(4, paranoid=True)
    run(cache, tokens(64))
    with cache.lease(ROOT, tokens(64), limit=63) as lease:
        assert lease.matched == 63
        assert lease.reserve() == []  # no page for a copy: the cached one is taken over
        assert lease.commit(64) == []
    assert counts(cache) == (0, 4, 0) and cache.match(ROOT, tokens(64)).tokens == 64
    with cache.lease(ROOT, tokens(64), limit=40) as lease:  # taken over in the middle: what follows it must go
        lease.reserve()
        lease.commit(64)
    assert cache.match(ROOT, tokens(64)).tokens == 64


def test_a_page_that_two_sequences_want_to_write_is_not_taken_over() -> None:
    cache = KVCache(4, paranoid=True)
    run(cache, tokens(64))
    with cache.lease(ROOT, tokens(64), limit=63) as one, cache.lease(ROOT, tokens(64), limit=63):
        with pytest.raises(OutOfPages):
            one.reserve()
        assert one.matched == 63 and counts(cache) == (0, 0, 4)


def open_only(lease: Lease) -> None:
    del lease


def prefill_part(lease: Lease) -> None:
    lease.reserve(30)
    lease.commit(17)


def prefill_uncommitted(lease: Lease) -> None:
    lease.reserve()


def one_token(lease: Lease) -> None:
    lease.reserve()
    lease.commit(len(lease.tokens))
    lease.append([1])
    lease.reserve()


def last_token(lease: Lease) -> None:
    one_token(lease)
    lease.commit(len(lease.tokens))


@pytest.mark.parametrize("steps", [open_only, prefill_uncommitted, prefill_part, one_token, last_token])
def test_two_hundred_cancels_leave_nothing_in_use(cache: KVCache, steps: Callable[[Lease], None]) -> None:
    for i in range(200):
        with cache.lease(ROOT, [*tokens(20), *tokens(30, i % 7)]) as lease:
            steps(lease)
        free, cached, in_use = counts(cache)
        assert (free + cached, in_use) == (16, 0)


def test_an_exception_inside_a_lease_cancels_it(cache: KVCache) -> None:
    with pytest.raises(KeyError), cache.lease(ROOT, tokens(40)) as lease:
        lease.reserve()
        raise KeyError
    assert counts(cache) == (16, 0, 0)


def test_reading_removes_and_changes_nothing(cache: KVCache) -> None:
    run(cache, tokens(40))
    for n in range(40):
        cache.match(ROOT, tokens(n))
        cache.match(OTHER, tokens(n))
        cache.lease(OTHER, tokens(n)).close()
    assert counts(cache) == (13, 3, 0)


def test_drafts_that_were_rejected_leave_no_trace(cache: KVCache) -> None:
    with cache.lease(ROOT, tokens(16)) as lease:
        lease.reserve(16 + 5)
        lease.commit(16)
        assert len(lease.pages) == 2
    assert counts(cache) == (15, 1, 0)


def test_wrong_use_is_refused(cache: KVCache) -> None:
    run(cache, tokens(20))
    with pytest.raises(CacheError, match=r"limit 6 for a prompt of 5 tokens"):
        cache.lease(ROOT, tokens(5), limit=6)
    for bad in (-1, 2**32):
        with pytest.raises(CacheError, match=f"token 1 has id {bad}"):
            cache.lease(ROOT, [3, bad])
    with cache.lease(ROOT, tokens(21)) as lease:
        with pytest.raises(CacheError, match="positions from 20 on are shared"):
            lease.commit(21)
        with pytest.raises(CacheError, match="22 tokens cannot be committed, the lease has 21 tokens and 2 pages"):
            lease.commit(22)
        with pytest.raises(CacheError, match="token 21 has id -2"):
            lease.append([-2])
    for call in (lease.reserve, lambda: lease.commit(21), lambda: lease.append([1])):
        with pytest.raises(CacheError, match="closed"):
            call()
    assert counts(cache) == (14, 2, 0)


def test_an_error_of_the_engine_costs_no_page() -> None:
    failing = False

    def read(page: int) -> bytes:
        if failing:
            raise OSError("device lost")
        return bytes(8)

    def write(page: int, payload: Payload) -> None:
        raise OSError("device lost")

    cache = KVCache(2, offload=Offload(HostTier(1000), read, write), paranoid=True)
    run(cache, tokens(32))
    run(cache, tokens(32, 100))
    with pytest.raises(OSError, match="device lost"):
        cache.lease(ROOT, tokens(32))
    assert cache.counts.in_use == 0
    failing = True
    with cache.lease(ROOT, tokens(32, 200)) as lease:
        with pytest.raises(OSError, match="device lost"):
            lease.reserve()
        cache.check()
    assert cache.counts.in_use == 0


def test_the_account_notices_what_is_wrong() -> None:
    pool = PagePool(3)
    page = pool.allocate()
    assert pool.counts == Counts(2, 0, 1, 3) and pool.state(page) == "in use"
    assert pool.drop(page)
    with pytest.raises(CacheError, match=f"page {page} is dropped"):
        pool.drop(page)
    with pytest.raises(CacheError, match=f"page {page} is free"):
        pool.hold(page)
    with pytest.raises(CacheError, match="cannot enter the index"):
        pool.publish(page)
    with pytest.raises(CacheError, match="a pool of 0 pages"):
        PagePool(0)
    pool.check()
    pool._free.append(page)
    with pytest.raises(BrokenAccount, match="1 pages are free twice"):
        pool.check()
    cache = KVCache(3)
    run(cache, tokens(16))
    cache._store.pool.hold(cache.match(ROOT, tokens(16)).pages[0])
    with pytest.raises(BrokenAccount, match="held 0 times, the account says 1"):
        cache.check()


def best_of(times: int, work: Callable[[], object]) -> float:
    """CPU seconds, so that a busy machine does not fail the test."""
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return best


def test_long_prompts_are_looked_up_and_stored_in_milliseconds() -> None:
    cache = KVCache(12_000)
    for i in range(19):
        run(cache, [*tokens(40), i, *tokens(8192 - 41, 1000)])
    for i in range(400):
        run(cache, [*tokens(15, 50_000), i])  # siblings that part in their last token
    assert cache.counts.cached > 10_000
    prompt = [*tokens(40), 7, *tokens(8192 - 41, 1000)]
    assert cache.match(ROOT, prompt).tokens == 8192
    assert best_of(5, lambda: cache.match(ROOT, prompt)) < 0.005

    def insert(first: int) -> float:
        with cache.lease(ROOT, [first, *prompt]) as lease:
            lease.reserve()
            return best_of(1, lambda: lease.commit(8193))

    assert min(insert(10**6 + i) for i in range(3)) < 0.010
    cache.check()
