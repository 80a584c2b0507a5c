"""Lookback, breakpoint limit, isolation, pre-warm: each finds the true value, and says so only where controls held."""

import pytest
from habits import Asked, Habits, Json, MessagesCache
from workbench import dream_lab

from probes.api import breakpoints, isolation, lookback, prewarm


@pytest.mark.parametrize("true", [2, 5, 19, 20, 21, 37, 90])
def test_lookback(true: int) -> None:
    (claim,) = lookback.run(dream_lab(MessagesCache(Habits(lookback=true))))
    assert (claim.value, claim.finding) == (true, "confirmed" if true == 20 else "refuted")
    assert (claim.prediction == claim.observation) is (true == 20)


def test_an_unbounded_lookback_is_a_lower_bound() -> None:
    (claim,) = lookback.run(dream_lab(MessagesCache(Habits(lookback=10**6))))
    assert claim.finding == "refuted"
    assert claim.value["at_most"] is None and "more than" in claim.why


def test_entries_that_vanish_prove_nothing_about_lookback() -> None:
    (claim,) = lookback.run(dream_lab(MessagesCache(Habits(ttl_5m=0.005))))
    assert claim.finding == "inconclusive"
    assert "gone" in claim.why


@pytest.mark.parametrize("true", [5, 20])
@pytest.mark.parametrize("refreshes", [True, False])
def test_lookback_is_found_where_an_entry_lives_for_two_requests_only(true: int, refreshes: bool) -> None:
    (claim,) = lookback.run(dream_lab(MessagesCache(Habits(lookback=true, ttl_5m=0.025, refreshes=refreshes))))
    assert claim.value == true


class Forgetful(MessagesCache):
    """Misses one request, as another machine would."""

    def __init__(self, missed: int) -> None:
        super().__init__(Habits())
        self.missed, self.count = missed, 0

    def ask(self, key: str, body: Json, now: float) -> Asked:
        self.count += 1
        return super().ask("elsewhere" if self.count == self.missed else key, body, now)


def test_one_lost_request_does_not_refute_lookback() -> None:
    for missed in range(3, 7):
        (claim,) = lookback.run(dream_lab(Forgetful(missed)))
        assert claim.finding != "refuted", missed


@pytest.mark.parametrize("true", [1, 2, 3, 4, 5, 9, 40])
def test_breakpoints(true: int) -> None:
    (claim,) = breakpoints.run(dream_lab(MessagesCache(Habits(marks=true))))
    assert (claim.value, claim.finding) == (true, "confirmed" if true == 4 else "refuted")


@pytest.mark.parametrize("shared", [False, True])
def test_isolation(shared: bool) -> None:
    (claim,) = isolation.run(dream_lab(MessagesCache(Habits(shared=shared))))
    assert claim.finding == ("refuted" if shared else "confirmed")
    assert claim.observation["hit"] == [False, shared, True]
    assert claim.prediction["hit"] == [False, False, True]


def test_isolation_needs_two_keys() -> None:
    lab = dream_lab(MessagesCache(Habits()))
    lab.key_fps = lab.key_fps[:1]
    (claim,) = isolation.run(lab)
    assert claim.finding == "inconclusive" and "CACHEWRIGHT_PROBE_SECOND_KEY" in claim.why
    assert lab.exchanges == []


@pytest.mark.parametrize(
    ("habit", "finding"), [("writes", "confirmed"), ("ignored", "refuted"), ("refused", "refuted")]
)
def test_prewarm(habit: str, finding: str) -> None:
    (claim,) = prewarm.run(dream_lab(MessagesCache(Habits(prewarm=habit))))  # type: ignore[arg-type]
    assert claim.finding == finding
