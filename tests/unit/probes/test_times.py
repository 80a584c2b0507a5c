"""Lifetimes are stated as intervals that hold the truth; hits restart the clock; start and end are told apart."""

import pytest
from habits import Asked, Habits, Json, MessagesCache
from workbench import dream_lab

from probes.api import clock, lifetime
from probes.api.claim import between, fits
from probes.api.lifetime import Tried, bounds_of, early


@pytest.mark.parametrize("true", [3, 20, 60, 240, 299, 300, 301, 360, 590])
def test_the_interval_holds_the_true_lifetime(true: float) -> None:
    (claim,) = lifetime.run(dream_lab(MessagesCache(Habits(ttl_5m=true))))
    assert fits(claim.value, true)
    assert claim.value["at_most"] <= claim.value["above"] * 1.26
    if not fits(claim.value, 300):
        assert claim.finding == "refuted"
    assert f"more than {claim.value['above']:g} s" in claim.why


def test_a_right_rule_is_confirmed_as_an_interval() -> None:
    (claim,) = lifetime.run(dream_lab(MessagesCache(Habits())))
    assert claim.finding == "confirmed"
    assert 265 < claim.value["above"] < 300 <= claim.value["at_most"] < 335
    assert claim.prediction["hit"] == claim.observation["hit"]


def test_a_longer_lifetime_is_refuted_by_its_lower_bound() -> None:
    (claim,) = lifetime.run(dream_lab(MessagesCache(Habits(ttl_5m=3600))))
    assert (claim.finding, claim.value["at_most"]) == ("refuted", None)
    assert claim.value["above"] > 300
    assert "--max-wait" in claim.why


def test_waiting_is_bounded_and_then_nothing_is_claimed() -> None:
    lab = dream_lab(MessagesCache(Habits()), max_wait_s=100)
    start = lab.clock.steady()
    (claim,) = lifetime.run(lab)
    assert claim.finding == "inconclusive"
    assert lab.clock.steady() - start < 110


def test_the_hour() -> None:
    (claim,) = lifetime.run(dream_lab(MessagesCache(Habits()), max_wait_s=4000), ttl="1h")
    assert (claim.rule, claim.finding) == ("ttl_seconds_1h", "confirmed")


@pytest.mark.parametrize("refreshes", [True, False])
def test_refresh(refreshes: bool) -> None:
    (claim,) = clock.run_refresh(dream_lab(MessagesCache(Habits(refreshes=refreshes))))
    assert (claim.value, claim.finding) == (refreshes, "confirmed" if refreshes else "refuted")
    assert claim.observation["hit"] == [False, True, refreshes]
    assert claim.prediction["hit"] == [False, True, True]


@pytest.mark.parametrize("side", ["start", "end"])
def test_start_or_end(side: str) -> None:
    lab = dream_lab(MessagesCache(Habits(clock=side)), long_s=120)  # type: ignore[arg-type]
    (claim,) = clock.run_clock(lab)
    assert claim.value == ("request_start" if side == "start" else "response_end")
    assert claim.finding == ("confirmed" if side == "start" else "refuted")


def test_a_short_answer_cannot_tell_start_from_end() -> None:
    (claim,) = clock.run_clock(dream_lab(MessagesCache(Habits(clock="end")), long_s=5))
    assert claim.finding == "inconclusive"
    assert "long answer took 5 s" in claim.why


@pytest.mark.parametrize(("answer_s", "most"), [(0.001, 8000), (1.0, 700)])
def test_the_long_answer_is_as_long_as_the_servers_pace_asks_for(answer_s: float, most: int) -> None:
    lab = dream_lab(MessagesCache(Habits()), long_s=120)
    lab.sender.answer_s = answer_s  # type: ignore[attr-defined]
    clock.run_clock(lab)
    (asked,) = [one.body["max_tokens"] for one in lab.exchanges if one.case == "clock_write"]
    assert most * 0.8 < asked <= most


def test_the_bounds_are_measured_once() -> None:
    lab = dream_lab(MessagesCache(Habits()), long_s=120)
    lifetime.run(lab)
    before = len(lab.exchanges)
    clock.run_refresh(lab)
    clock.run_clock(lab)
    assert len(lab.exchanges) - before == 3 + 2 + 2


def test_an_early_loss_is_no_bound() -> None:
    tried = [Tried(10, 11, False, (1, 2)), Tried(20, 21, True, (3, 4)), Tried(30, 31, False, (5, 6))]
    assert bounds_of(tried) == (20, 31)
    assert early(tried) == tried[:1]
    assert "1 entries were gone earlier" in lifetime.sentence(bounds_of(tried), tried, 600)


class Evicting(MessagesCache):
    """Loses the entry of one request at once."""

    def __init__(self, lost: int) -> None:
        super().__init__(Habits())
        self.lost, self.count = lost, 0

    def ask(self, key: str, body: Json, now: float) -> Asked:
        self.count += 1
        return super().ask("elsewhere" if self.count == self.lost else key, body, now)


@pytest.mark.parametrize("lost", range(2, 14))
def test_an_evicted_entry_does_not_refute(lost: int) -> None:
    (claim,) = lifetime.run(dream_lab(Evicting(lost)))
    assert claim.finding in ("confirmed", "inconclusive")
    if lost == 4:
        assert claim.finding == "confirmed" and fits(claim.value, 300)


def test_where_nothing_is_ever_read_nothing_is_said_of_lifetimes() -> None:
    (claim,) = lifetime.run(dream_lab(MessagesCache(Habits(lookback=0))))
    assert (claim.finding, claim.value) == ("inconclusive", None)
    assert "no entry was read again" in claim.why


def test_wide_intervals_confirm_nothing() -> None:
    tried = [Tried(1, 2, True, (1, 2)), Tried(8, 9, False, (3, 4))]
    assert lifetime.agrees(tried, 5) is None
    assert lifetime.agrees([*tried, Tried(4.5, 5, True, (5, 6))], 5) is True
    assert lifetime.agrees(tried, 1) is False


def test_intervals_are_rounded_outwards() -> None:
    assert between(2.9996, 3.0001) == {"above": 2.999, "at_most": 3.001}
