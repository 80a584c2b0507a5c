"""The probes of automatic caches, against servers that behave as OpenAI and DeepSeek document."""

from typing import Any

import pytest

pytest.importorskip("openai", reason="the SDK is not installed")

from habits import AutomaticCache, UnitsCache
from hosted import Fault, hosted
from workbench import lab_at

from localmodel.rules.errors import RulesError
from localmodel.rules.load import load
from probes.api import granularity, units
from probes.api.claim import Claim
from probes.api.exchange import Clock


@pytest.fixture
def rules(request: pytest.FixtureRequest) -> str:
    try:
        load(request.param)
    except RulesError as error:
        pytest.skip(f"no rules to predict by yet: {error}")
    return str(request.param)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(("step", "boundaries", "shared"), [(128, False, True), (1, True, False), (64, False, True)])
def test_steps_and_shared_prefixes(api: Any, step: int, boundaries: bool, shared: bool) -> None:
    cache = AutomaticCache(step=step, boundaries=boundaries)
    with hosted(cache) as server, lab_at(server.url, None, api, "some-model") as lab:
        one, two = granularity.run(lab)
    assert one.value == step
    assert two.value is shared
    # Without rules nothing is predicted, so nothing is confirmed or refuted.
    assert {one.finding, two.finding} == {"inconclusive"}
    assert "no prediction" in two.why


def test_missing_cache_fields_are_unknown() -> None:
    with hosted(AutomaticCache()) as server, lab_at(server.url, None, "chat", "m") as lab:
        server.faults = {number: Fault(usage={"prompt_tokens": 9, "completion_tokens": 1}) for number in range(1, 20)}
        found = granularity.run(lab)
    assert [claim.why for claim in found] == ["the usage does not say what was read"] * 2


def test_units_are_read_whole_and_common_prefixes_from_the_second_time_on() -> None:
    extends, branches = _units(None)
    assert extends.observation == {"hit": [False, True], "as_documented": True}
    assert branches.observation == {"hit": [False, False, True], "as_documented": True}


@pytest.mark.parametrize("rules", ["deepseek"], indirect=True)
def test_the_rules_of_deepseek_predict_it(rules: str) -> None:
    assert [claim.finding for claim in _units(rules)] == ["confirmed", "confirmed"]


@pytest.mark.parametrize("rules", ["deepseek"], indirect=True)
def test_a_cache_that_reads_any_common_beginning_refutes_them(rules: str) -> None:
    _, branches = _units(rules, AutomaticCache(step=1, minimum=0))
    assert branches.finding == "refuted"


@pytest.mark.parametrize("rules", ["openai"], indirect=True)
@pytest.mark.parametrize(
    ("model", "step", "boundaries", "finding"),
    [
        ("gpt-5.1", 128, False, "confirmed"),
        ("gpt-6-sol", 1, True, "confirmed"),
        ("gpt-6-sol", 128, False, "refuted"),
    ],
)
def test_the_rules_of_openai_predict_it(rules: str, model: str, step: int, boundaries: bool, finding: str) -> None:
    cache = AutomaticCache(step=step, boundaries=boundaries)
    with hosted(cache) as server, lab_at(server.url, rules, "chat", model) as lab:
        found = granularity.run(lab)
    assert [claim.finding for claim in found] == [finding, finding]


def _units(rules: str | None, cache: Any = None) -> list[Claim]:
    with hosted(cache or UnitsCache()) as server, lab_at(server.url, rules, "chat", "deepseek-v4-pro") as lab:
        lab.clock = Clock(sleep=lambda seconds: None)  # this server builds at once
        return units.run(lab)
