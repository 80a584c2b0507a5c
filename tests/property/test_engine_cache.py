"""Random streams against the naive cache: forks, partial pages, aborts anywhere, eviction, offload, restart.

A fake slab holds for every position a number that depends on the namespace and on all tokens up to it, as real KV does;
so a page of another prefix or another tenant, a page overwritten while in use or a forgotten copy is a wrong number.
"""

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from localmodel.engine.cache.core import KVCache, Lease
from localmodel.engine.cache.disk import DiskTier
from localmodel.engine.cache.errors import OutOfPages
from localmodel.engine.cache.identity import PAGE_TOKENS, Root, blake2b_256
from localmodel.engine.cache.naive import NaiveCache, NaiveLease
from localmodel.engine.cache.pages import Copy
from localmodel.engine.cache.store import Event, Offload
from localmodel.engine.cache.tiers import HostTier, PageBytes, Payload

ROOTS = tuple(Root("w", "t", "c", "bf16", "l", "exact", f"tenant {i}") for i in range(3))
_SLOTS = struct.Struct(f"<{PAGE_TOKENS}Q")
JUNK = 2**64 - 1


def truth(root: Root, tokens: Sequence[int]) -> int:
    """The KV of the last of these tokens."""
    return xxhash.xxh3_64_intdigest(repr((root.namespace, tuple(tokens))).encode())


def truths(root: Root, tokens: Sequence[int], n: int) -> list[int]:
    return [truth(root, tokens[: p + 1]) for p in range(n)]


def weak(key: bytes, data: bytes) -> bytes:
    """A digest of 8 bits: collisions in every run."""
    return blake2b_256(key, data)[:1].ljust(32, b"\0")


class Slab:
    """What an engine would hold: 16 numbers a page."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def page(self, page: int) -> list[int]:
        return self.slots.setdefault(page, [0] * PAGE_TOKENS)

    def read(self, page: int) -> bytes:
        return _SLOTS.pack(*self.page(page))

    def write(self, page: int, payload: Payload) -> None:
        self.slots[page] = list(_SLOTS.unpack(payload))

    def copy(self, copies: Sequence[Copy]) -> None:
        for one in copies:
            self.page(one.target)[: one.tokens] = self.page(one.source)[: one.tokens]

    def see(self, pages: Sequence[int], n: int) -> list[int]:
        return [self.page(pages[p // PAGE_TOKENS])[p % PAGE_TOKENS] for p in range(n)]

    def compute(self, lease: Lease | NaiveLease, start: int, end: int) -> None:
        """Write positions start to end - 1, and junk in all reserved ones after them, as rejected drafts would."""
        if start == end:
            return
        for p in range(start, len(lease.pages) * PAGE_TOKENS):
            value = truth(lease.root, lease.tokens[: p + 1]) if p < end else JUNK
            self.page(lease.pages[p // PAGE_TOKENS])[p % PAGE_TOKENS] = value


class Request:
    """One request in both caches, and how much of it is computed."""

    def __init__(self, lease: Lease, naive: NaiveLease) -> None:
        self.lease = lease
        self.naive = naive
        self.computed = lease.matched
        self.reserved = lease.matched


class RadixAgainstNaive(RuleBasedStateMachine):
    """The machine; subclasses say how identities are made."""

    identify = staticmethod(blake2b_256)
    live: Bundle[Request] = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.said: list[tuple[int, ...]] = [()]
        self.sequences: list[Request] = []
        self.events: list[Event] = []
        self.forgot = False

    def teardown(self) -> None:
        for one in self.sequences:
            one.lease.close()
        if hasattr(self, "cache"):
            self.cache.check()
            assert self.cache.counts.in_use == 0
        self.folder.cleanup()

    @initialize(pages=st.sampled_from([4, 7, 12, 80]), tier=st.sampled_from(["none", "host", "both", "lasting"]))
    def start(self, pages: int, tier: str) -> None:
        self.pages = pages
        self.tier = tier
        self.naive, self.naive_slab = NaiveCache(), Slab()
        self.boot()

    def boot(self) -> None:
        self.slab = Slab()
        tier: PageBytes | None = None
        if self.tier == "host":
            tier = HostTier(6 * _SLOTS.size)
        elif self.tier in ("both", "lasting"):
            tier = HostTier(3 * _SLOTS.size, DiskTier(Path(self.folder.name), 12 * (4096 + _SLOTS.size)))
        self.cache = KVCache(
            self.pages,
            offload=None if tier is None else Offload(tier, self.slab.read, self.slab.write, self.tier == "lasting"),
            identify=self.identify,
            on_event=self.events.append,
            paranoid=True,
        )

    @rule(
        target=live,
        root=st.sampled_from(ROOTS),
        pick=st.integers(0, 10**6),
        cut=st.integers(0, 10**6),
        new=st.lists(st.integers(0, 1), max_size=40),
        full=st.booleans(),
    )
    def open(self, root: Root, pick: int, cut: int, new: list[int], full: bool) -> Any:
        old = self.said[pick % len(self.said)]
        tokens = (old[: cut % (len(old) + 1)] + tuple(new))[:60]
        limit = len(tokens) if full else max(0, len(tokens) - 1)
        self.said.append(tokens)
        lease = self.cache.lease(root, tokens, limit=limit)
        naive = self.naive.lease(root, tokens, limit=limit)
        assert lease.matched <= naive.matched <= limit
        if not (self.forgot or any(event.kind == "evicted" for event in self.events)):
            assert lease.matched == naive.matched
        one = Request(lease, naive)
        self.sequences.append(one)
        return one

    @rule(one=live, drafts=st.integers(0, 20), share=st.integers(1, 3))
    def reserve(self, one: Request, drafts: int, share: int) -> None:
        n = max(one.lease.matched, len(one.lease.tokens) * share // 3) + drafts
        before = (self.cache.counts, one.lease.pages)
        try:
            copies = one.lease.reserve(n)
        except OutOfPages:
            counts = self.cache.counts
            new = -(-n // PAGE_TOKENS) - len(one.lease.pages)
            assert new + 1 > counts.free + counts.cached
            # A copy's source is given back by the next call, even a failing one: at most one page changes its state.
            assert one.lease.pages == before[1] and before[0].in_use - counts.in_use in (0, 1)
            return
        self.slab.copy(copies)
        self.naive_slab.copy(one.naive.reserve(n))
        one.reserved = max(one.reserved, n)

    @rule(one=live, upto=st.integers(1, 4))
    def compute(self, one: Request, upto: int) -> None:
        room = min(one.reserved, len(one.lease.tokens))
        end = one.computed + (room - one.computed) * upto // 4
        self.slab.compute(one.lease, one.computed, end)
        self.naive_slab.compute(one.naive, one.naive.committed, end)
        one.computed = end

    @rule(one=live, back=st.integers(0, 5))
    def commit(self, one: Request, back: int) -> None:
        n = max(one.lease.committed, one.computed - back)
        table = list(one.lease.pages)
        for remap in one.lease.commit(n):
            assert table[remap.index] == remap.old
            table[remap.index] = remap.new
        assert tuple(table) == one.lease.pages
        one.naive.commit(n)

    @rule(one=live, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def decode(self, one: Request, tokens: list[int]) -> None:
        if len(one.lease.tokens) < 70:
            one.lease.append(tokens)
            one.naive.append(tokens)
            self.said.append(one.lease.tokens)

    @rule(one=consumes(live))
    def close(self, one: Request) -> None:
        one.lease.close()
        one.lease.close()
        self.sequences.remove(one)

    @precondition(lambda self: self.tier == "lasting")
    @rule(limit=st.integers(0, 6))
    def save(self, limit: int) -> None:
        self.cache.save(limit)

    @precondition(lambda self: not self.sequences and self.tier in ("both", "lasting"))
    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        if not killed:
            self.cache.flush()
        self.forgot = True
        self.boot()

    @invariant()
    def nothing_is_lost_and_nothing_wrong_is_seen(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        counts = self.cache.counts
        assert counts.free + counts.cached + counts.in_use == counts.total == self.pages
        for one in self.sequences:
            expected = truths(one.lease.root, one.lease.tokens, one.computed)
            assert self.slab.see(one.lease.pages, one.computed) == expected
            known = one.naive.committed
            assert self.naive_slab.see(one.naive.pages, known) == truths(one.naive.root, one.naive.tokens, known)


class WeakIdentities(RadixAgainstNaive):
    """The same with identities of 8 bits."""

    identify = staticmethod(weak)


QUICK = settings(
    max_examples=75,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("machine", [RadixAgainstNaive, WeakIdentities])
def test_radix_equals_naive(machine: type[RadixAgainstNaive]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


Turn = tuple[int, int, list[int], str]
TURNS = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.lists(st.integers(0, 1), max_size=50),
        st.sampled_from(["go on", "go on", "stop", "kill"]),
    )
)


@pytest.mark.parametrize("place", ["host", "disk", "both"])
@settings(max_examples=40, deadline=None)
@given(stream=TURNS)
def test_what_a_tier_without_bound_holds_comes_back(place: str, stream: list[Turn]) -> None:
    """One request at a time in a pool little larger than itself: the common prefix is reused to the token, also by the
    next process: after a stop, and after a kill by one that had the time to save."""
    slab, naive = Slab(), NaiveCache()
    with tempfile.TemporaryDirectory() as folder:

        def boot() -> KVCache:
            disk = None if place == "host" else DiskTier(Path(folder), 10**9)
            tier = disk if place == "disk" and disk is not None else HostTier(10**9, disk)
            return KVCache(8, offload=Offload(tier, slab.read, slab.write, place != "host"), paranoid=True)

        cache = boot()
        said: list[tuple[int, ...]] = [()]
        for pick, cut, new, then in stream:
            old = said[pick % len(said)]
            tokens = (old[: cut % (len(old) + 1)] + tuple(new))[:100]
            said.append(tokens)
            with cache.lease(ROOTS[0], tokens) as lease, naive.lease(ROOTS[0], tokens) as oracle:
                assert lease.matched == oracle.matched
                assert slab.see(lease.pages, lease.matched) == truths(ROOTS[0], tokens, lease.matched)
                slab.copy(lease.reserve())
                slab.compute(lease, lease.matched, len(tokens))
                lease.commit(len(tokens))
                oracle.reserve()
                oracle.commit(len(tokens))
            assert cache.counts.in_use == 0
            assert not cache.refused
            if then != "go on" and place != "host":
                assert cache.save(100) == 0 if then == "kill" else cache.flush() >= 0
                slab.slots.clear()
                cache = boot()
