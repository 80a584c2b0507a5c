"""Continuous batching: the same tokens as alone, pages accounted for after every step, nothing left behind."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.cache.core import KVCache  # noqa: E402
from localmodel.engine.cache.identity import Root  # noqa: E402
from localmodel.engine.cache.store import Offload  # noqa: E402
from localmodel.engine.cache.tiers import HostTier  # noqa: E402
from localmodel.engine.errors import BadBatch, BadLogits  # noqa: E402
from localmodel.engine.sampling import Sampler, SamplingParams  # noqa: E402
from localmodel.engine.scheduler import Job, Scheduler  # noqa: E402

Tiny = Callable[[str, str], Any]
DRAW = random.Random(11)
TALK = [DRAW.randrange(320) for _ in range(200)]
ENDS = frozenset(range(0, 320, 13))


@dataclass
class Heard:
    """A listener that keeps what it is told; `enough`: this many tokens are enough."""

    reused: int | None = None
    begun: bool = False
    tokens: list[int] = field(default_factory=list)
    ended_as: str | None = None
    error: Exception | None = None
    enough: int | None = None
    broken: bool = False

    def claimed(self, reused: int) -> None:
        assert self.reused is None
        self.reused = reused

    def started(self) -> None:
        assert self.reused is not None and not self.begun
        self.begun = True

    def token(self, token: int) -> bool:
        assert self.begun and self.ended_as is None
        if self.broken:
            raise ValueError("broken listener")
        self.tokens.append(token)
        return len(self.tokens) == self.enough

    def ended(self, reason: str) -> None:
        assert self.ended_as is None
        self.ended_as = reason

    def failed(self, error: Exception) -> None:
        self.error = error
        if not self.broken:
            raise error


def root(namespace: str = "a") -> Root:
    return Root("w", "t", "c", "float32", "l", "n", namespace)


def scheduler(model: Any, pages: int = 64, *, host: int = 0, budget: int = 512, batch: int = 8) -> Scheduler:
    kv = model.new_kv(pages)
    offload = Offload(HostTier(host * kv.page_bytes), kv.read, kv.write) if host else None
    return Scheduler(model, kv, KVCache(pages, offload=offload, paranoid=True), budget, batch)


def job(tokens: Sequence[int], reuse: int = 0, most: int = 8, *, space: str = "a", heard: Heard | None = None,
        guide: Any = None, **sampling: Any) -> Job:  # fmt: skip
    params = SamplingParams(**sampling)
    return Job(root(space), list(tokens), reuse, most, ENDS, Sampler(params), heard or Heard(), guide)


def heard(one: Job) -> Heard:
    assert isinstance(one.listener, Heard)
    return one.listener


def steps(found: Scheduler, most: int = 1000) -> None:
    """Run until nothing is left; the account of pages must be right after every step."""
    for _ in range(most):
        if found.idle:
            break
        found.step()
        counted(found)
    assert found.idle, "still busy"
    assert found.counts.in_use == 0


def counted(found: Scheduler) -> None:
    counts = found.counts
    assert counts.free + counts.cached + counts.in_use == counts.total
    found.cache.check()


def alone(model: Any, tokens: Sequence[int], most: int) -> list[int]:
    """The greedy answer, each token computed from the whole text before it in one pass: the oracle."""
    kv, text = model.new_kv(64), list(tokens)
    while len(text) < len(tokens) + most:
        token = int(model.forward([Span(text, 0, range(64))], kv)[0].argmax())
        if token in ENDS:
            break
        text.append(token)
    return text[len(tokens) :]


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Any:
    return tiny("llama", "float32")


def test_a_prompt_in_chunks_beside_answers_in_a_batch(model: Any) -> None:
    found = scheduler(model, budget=33, batch=3)
    jobs = [job(TALK[start : start + 90], most=6) for start in (0, 20, 40, 60, 80)]
    for one in jobs:
        found.submit(one)
    steps(found)
    for one in jobs:
        assert heard(one).tokens == alone(model, one.tokens, 6)
        assert heard(one).ended_as in ("end", "length")
        assert heard(one).reused == 0


def test_a_long_prompt_does_not_stop_an_answer(model: Any) -> None:
    found = scheduler(model, budget=16)
    first, second = job(TALK[:10], most=8), job(TALK[20:180], most=1)
    found.submit(first)
    found.step()
    found.submit(second)
    before = len(heard(first).tokens)
    found.step()
    assert len(heard(first).tokens) == before + 1
    assert not heard(second).begun
    steps(found)


def test_steps_are_twice_as_long_while_nobody_decodes(model: Any) -> None:
    found = scheduler(model, budget=16)
    for talking in (False, True):
        prompt = job(TALK[20:180], most=1)
        if talking:
            found.submit(job(TALK[:10], most=60))
            found.step()
        found.submit(prompt)
        found.step()
        (run,) = (one for one in found.running if one.job is prompt)
        assert run.done == (15 if talking else 32)
        found.cancel(prompt)
    steps(found)


def test_reuse_is_what_was_allowed_to_the_token(model: Any) -> None:
    found = scheduler(model)
    cold = job(TALK[:100])
    found.submit(cold)
    steps(found)
    for reuse in (0, 1, 15, 16, 37, 99, 100):
        warm = job(TALK[:100], reuse)
        found.submit(warm)
        steps(found)
        assert heard(warm).reused == min(reuse, 99)
        assert heard(warm).tokens == heard(cold).tokens
    other = job(TALK[:100], 99, space="b")
    found.submit(other)
    steps(found)
    assert heard(other).reused == 0
    assert heard(other).tokens == heard(cold).tokens


def test_pages_are_shared_as_soon_as_they_are_computed(model: Any) -> None:
    found = scheduler(model, budget=16)
    long, late = job(TALK[:150], most=0), job(TALK[:60], 48, most=0)
    found.submit(long)
    for _ in range(2):
        found.step()
    found.submit(late)
    found.step()
    assert not heard(long).begun
    assert heard(late).reused == 48
    steps(found)


def test_evicted_and_restored_gives_the_same(model: Any) -> None:
    found = scheduler(model, pages=16, host=200)
    cold = job(TALK[:100])
    found.submit(cold)
    for start in range(0, 60, 20):
        found.submit(job(list(reversed(TALK))[start : start + 100]))
    steps(found)
    assert found.cache.match(root(), TALK[:100]).tokens < 96
    again = job(TALK[:100], 99)
    found.submit(again)
    steps(found)
    assert heard(again).reused == 99, "the tail comes back too"
    assert heard(again).tokens == heard(cold).tokens


def test_who_does_not_fit_waits_and_nobody_is_thrown_out(model: Any) -> None:
    found = scheduler(model, pages=16)
    jobs = [job(TALK[start : start + 100], most=20) for start in range(4)]
    for one in jobs:
        found.submit(one)
    found.step()
    assert [run.job for run in found.running] == jobs[:1]
    steps(found)
    assert all(heard(one).ended_as for one in jobs)
    with pytest.raises(BadBatch, match="cannot run in a pool of 16"):
        found.submit(job(TALK, most=200))
    with pytest.raises(BadBatch, match="window of 1024"):
        found.submit(job(TALK, most=900))


def test_cancelling_gives_pages_back_at_once(model: Any) -> None:
    found = scheduler(model, budget=32)
    for when in range(8):
        mine, other = job(TALK[:100], most=5), job(TALK[50:90], most=5)
        found.submit(mine)
        found.submit(other)
        for _ in range(when):
            found.step()
        found.cancel(mine)
        assert all(run.job is not mine for run in found.running)
        counted(found)
        told = len(heard(mine).tokens)
        steps(found)
        assert len(heard(mine).tokens) == told
        assert heard(other).tokens == alone(model, other.tokens, 5)
        found.cancel(mine)


def test_a_broken_listener_fails_alone(model: Any) -> None:
    found = scheduler(model)
    bad, good = job(TALK[:40], heard=Heard(broken=True)), job(TALK[:40])
    found.submit(bad)
    found.submit(good)
    steps(found)
    assert isinstance(heard(bad).error, ValueError)
    assert heard(good).tokens == alone(model, good.tokens, 8)


def test_who_has_no_numbers_to_draw_from_fails_alone(model: Any) -> None:
    found = scheduler(model)
    found.submit(job(TALK[:40], most=0))
    steps(found)
    found.kv.slab.fill_(torch.nan)
    bad = [job(TALK[:40], 32, heard=Heard(broken=True), temperature=heat, seed=1) for heat in (0.0, 1.0)]
    good = job(TALK[60:100])
    for one in (bad[0], good, bad[1]):
        found.submit(one)
    steps(found)
    assert all(isinstance(heard(one).error, BadLogits) and heard(one).reused == 32 for one in bad)
    assert heard(good).tokens == alone(model, good.tokens, 8)


def test_all_are_told_when_nothing_goes_on(model: Any) -> None:
    found = scheduler(model, batch=1)
    jobs = [job(TALK[:40], heard=Heard(broken=True)) for _ in range(2)]
    for one in jobs:
        found.submit(one)
    found.step()
    error = ValueError("a bug")
    found.abandon(error)
    assert found.idle
    assert heard(jobs[1]).error is error


def test_ways_to_end(model: Any) -> None:
    found = scheduler(model)
    none, two = job(TALK[:40], most=0), job(TALK[:40], heard=Heard(enough=2))
    found.submit(none)
    found.submit(two)
    steps(found)
    assert heard(none).begun and heard(none).tokens == [] and heard(none).ended_as == "length"
    assert len(heard(two).tokens) <= 2


def test_a_seed_gives_the_same_answer_whoever_is_beside(model: Any) -> None:
    answers = []
    for others in (0, 3):
        found = scheduler(model)
        mine = job(TALK[:40], temperature=1.0, top_p=0.9, seed=5)
        for number in range(others):
            found.submit(job(TALK[number : 50 + number], temperature=1.0, seed=number))
        found.submit(mine)
        steps(found)
        answers.append(heard(mine).tokens)
    assert answers[0] == answers[1]


Wish = tuple[int, int, int, int, int]
WISHES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 120), st.integers(0, 120), st.integers(0, 6), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(WISHES, st.integers(10, 30), st.sampled_from([0, 8, 100]))
def test_random_streams_answer_as_alone(model: Any, wishes: list[Wish], pages: int, host: int) -> None:
    """Each wish: talk, its length, tokens allowed, longest answer, steps before the next one (9: it is cancelled)."""
    found = scheduler(model, pages, host=host, budget=40, batch=3)
    jobs = []
    for talk, length, reuse, most, wait in wishes:
        text = [*TALK[:40], *([talk] * (talk > 0)), *TALK[40:]][:length]
        jobs.append(job(text, min(reuse, length), most, space="ab"[talk == 3]))
        found.submit(jobs[-1])
        for _ in range(wait % 4):
            found.step()
            counted(found)
        if wait == 9:
            found.cancel(jobs[-1])
    steps(found)
    for one, (*_, wait) in zip(jobs, wishes, strict=True):
        told = heard(one)
        assert told.error is None
        assert told.reused is None or told.reused <= min(one.reuse, len(one.tokens) - 1)
        wanted = alone(model, one.tokens, one.max_tokens)
        assert told.tokens == (wanted if told.ended_as else wanted[: len(told.tokens)])
        assert told.ended_as or wait == 9
