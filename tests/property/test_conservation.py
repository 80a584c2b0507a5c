"""No token is counted twice: losses fit the bill, causes add up to it, diagnoses share what a policy saves."""

import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import generate
import pytest

from auditor.audit import audit
from auditor.money import Money
from auditor.policies import POLICIES
from auditor.pricing import PriceList, open_prices
from auditor.records import Audit, Audited
from auditor.totals import totals
from auditor.whatif import Trial, table
from localmodel.rules.load import Ruleset, load
from traces import io
from traces.schema import JsonObject

CHUNKS = 4  # so that two workers share the seeds


@cache
def rules() -> Ruleset:
    return load("anthropic")


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> PriceList:
    return open_prices(cache_directory=tmp_path_factory.mktemp("prices"))


def audited(seed: int, healthy: bool = False) -> Audit:
    rng = Random(seed)
    make = generate.healthy_trace if healthy else generate.random_trace
    rows = make(rng, rng.randrange(2, 25))
    return of_rows(rows)


def of_rows(rows: list[dict[str, Any]]) -> Audit:
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies = {call.id: call.request for call in calls}
    return audit(calls, rules(), lambda one: bodies[one.call.id])


def without_counts(seed: int) -> Audit:
    """The same kind of trace as most recorders leave it: no exact count of any block."""
    rng = Random(seed)
    rows = generate.random_trace(rng, rng.randrange(2, 25))
    return of_rows([{name: value for name, value in row.items() if name != "tokens"} for row in rows])


def check_losses(result: Audit) -> None:
    for one in result.calls:
        if one.diagnosis is None:
            continue
        parts = [finding.lost_tokens for finding in one.diagnosis.findings]
        usage = one.call.usage
        paid = (usage.write_tokens or 0) + (usage.uncached_tokens or 0)
        assert min(parts) >= 0 and sum(parts) <= paid, (one.call.id, parts, paid)
        assert not any(finding.lost_tokens for finding in one.diagnosis.ruled_out)
        causes = [finding.cause for finding in one.diagnosis.findings if finding.lost_tokens]
        assert len(causes) == len(set(causes)), "every lost token belongs to one cause, every cause is named once"


def check_causes(result: Audit, prices: PriceList) -> None:
    sums = totals(result.calls, Money(result.calls, prices))
    causes = sums.by_cause.values()
    assert sum(each.written_tokens for each in causes) == sums.whole.write_tokens
    assert sum(each.uncached_tokens for each in causes) == sums.whole.uncached_tokens
    assert all(each.tokens == each.written_tokens + each.uncached_tokens for each in causes)
    lost = {name: each.tokens for name, each in sums.by_cause.items() if name != "new_content" and each.tokens}
    want: dict[str, int] = {}
    for one in result.calls:
        for finding in one.diagnosis.findings if one.diagnosis else []:
            if finding.lost_tokens:
                want[finding.cause] = want.get(finding.cause, 0) + finding.lost_tokens
    assert lost == want
    for group in (sums.by_kind, sums.by_agent, sums.by_model):
        assert sum(each.input_tokens for each in group.values()) == sums.whole.input_tokens
        assert sum((each.equivalents for each in group.values()), Decimal(0)) == sums.whole.equivalents


def check_money(result: Audit, prices: PriceList) -> None:
    trial = Trial(result, Money(result.calls, prices))
    rows = table(trial, POLICIES, budget=0)
    shared: dict[str, list[tuple[Decimal, Decimal | None]]] = {}
    for one in result.calls:
        found = one.diagnosis
        if found is not None and found.policy is not None:
            assert found.avoidable_equivalents is not None
            shared.setdefault(found.policy, []).append((found.avoidable_equivalents, found.avoidable_usd))
    by_name = {row.policy: row for row in rows}
    for name, parts in shared.items():
        assert sum(part for part, _ in parts) == by_name[name].saving_equivalents
        assert sum(usd or Decimal(0) for _, usd in parts) == by_name[name].saving_usd
    assert set(shared) == set(by_name["all"].policies)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_traces(chunk: int, prices: PriceList) -> None:
    for seed in range(chunk, 160, CHUNKS):
        result = audited(seed)
        check_losses(result)
        check_causes(result, prices)
        check_money(result, prices)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_traces_with_estimated_counts(chunk: int, prices: PriceList) -> None:
    for seed in range(chunk, 160, CHUNKS):
        result = without_counts(seed)
        check_losses(result)
        check_causes(result, prices)
        check_money(result, prices)


def test_healthy_traces_lose_nothing(prices: PriceList) -> None:
    for seed in range(40):
        result = audited(seed, healthy=True)
        check_causes(result, prices)
        sums = totals(result.calls, Money(result.calls, prices))
        assert sums.by_cause["new_content"].tokens == sums.whole.write_tokens + sums.whole.uncached_tokens


def body_of(one: Audited) -> JsonObject | None:
    return io.read_request(one.call.place) if one.call.place is not None and one.outcome is not None else None


@pytest.mark.parametrize("name", ["calls.jsonl", "usage.csv"])
def test_the_fourteen_rows(name: str, prices: PriceList) -> None:
    path = Path(__file__).parents[2] / "traces/recorded/fourteen" / name
    result = audit(io.read(path), rules(), body_of)
    check_losses(result)
    check_causes(result, prices)
    if name == "calls.jsonl":
        check_money(result, prices)
