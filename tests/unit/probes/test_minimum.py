"""The minimum is found to the token, wherever it lies."""

import pytest
from habits import Habits, MessagesCache
from workbench import dream_lab

from probes.api import minimum, suite
from probes.errors import NoCaching


@pytest.mark.parametrize("true", [16, 64, 777, 1023, 1024, 1025, 1300, 2048, 4096, 9000])
def test_the_true_minimum(true: int) -> None:
    lab = dream_lab(MessagesCache(Habits(minimum=true)))  # the rules say 1,024
    (claim,) = minimum.run(lab)
    assert claim.value == true
    assert claim.finding == ("confirmed" if true == 1024 else "refuted")
    assert f"{true - 1} tokens were not cached, {true} were" in claim.why
    assert len(lab.exchanges) < 24


def test_a_right_rule_takes_few_requests() -> None:
    lab = dream_lab(MessagesCache(Habits(minimum=1024)))
    minimum.run(lab)
    assert len(lab.exchanges) <= 6


def test_the_prediction_is_the_rules_own() -> None:
    (claim,) = minimum.run(dream_lab(MessagesCache(Habits(minimum=64))))
    assert claim.prediction["cached"] != claim.observation["cached"]
    (claim,) = minimum.run(dream_lab(MessagesCache(Habits(minimum=1024))))
    assert claim.prediction["cached"] == claim.observation["cached"]


def test_a_wrong_minimum_spoils_no_other_prediction() -> None:
    lab = dream_lab(MessagesCache(Habits(minimum=64)))
    first, second = suite.run(lab, [suite.PROBES["minimum"], suite.PROBES["prewarm"]])
    assert (first.finding, first.expected) == ("refuted", 1024)
    assert (second.finding, second.prediction) == ("confirmed", {"hit": True})
    assert (lab.exchanges[-1].usage.input_tokens or 0) < 200  # and documents got short


def test_no_caching_is_said_and_not_measured() -> None:
    lab = dream_lab(MessagesCache(Habits(caches=False)))
    with pytest.raises(NoCaching, match="was not written to the cache"):
        minimum.run(lab)
    assert len(lab.exchanges) < 8
