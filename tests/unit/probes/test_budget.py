"""Money: the bound holds before sending, what is unknown counts in full, and nothing is sent beyond the limit."""

from decimal import Decimal
from typing import Any

import pytest
from habits import Habits, MessagesCache
from workbench import dream_lab

from auditor.price_rows import PriceRow
from probes.api import bodies, four, invalidation, suite
from probes.api.budget import Budget
from probes.api.claim import Claim
from probes.api.exchange import Exchange
from probes.api.lab import Lab
from probes.errors import BudgetReached

ROW = PriceRow(input=Decimal(4), read=Decimal("0.2"), write_5m=Decimal(5), write_1h=Decimal(8), output=Decimal(20))


def lab_with(limit: str | None, **habits: Any) -> Lab:
    lab = dream_lab(MessagesCache(Habits(**habits)))
    lab.budget = Budget(ROW, free=False, limit=None if limit is None else Decimal(limit))
    return lab


def test_costs_are_those_of_the_price_table() -> None:
    lab = lab_with(None)
    body = bodies.about("m", lab.document())
    one, two = lab.send("a", body), lab.send("b", body)
    written = one.usage.write_tokens or 0
    rest = (one.usage.input_tokens or 0) - written
    assert lab.budget.cost(one) == (written * Decimal(5) + rest * 4 + 20) / 1_000_000
    assert lab.budget.cost(two) == (written * Decimal("0.2") + rest * 4 + 20) / 1_000_000
    assert lab.budget.spent == sum(filter(None, map(lab.budget.cost, lab.exchanges)))
    assert lab.budget.open == 0 and not lab.budget.uncertain


def test_the_bound_is_above_every_cost() -> None:
    lab = lab_with(None)
    invalidation.run(lab)
    for exchange in lab.exchanges:
        cost = lab.budget.cost(exchange)
        assert cost is not None and cost < lab.budget.bound(exchange.body)


@pytest.mark.parametrize("limit", ["0.005", "0.02", "0.05"])
def test_a_budget_is_never_exceeded(limit: str) -> None:
    lab = lab_with(limit)
    chosen = [suite.PROBES[name] for name in ("minimum", "lookback", "invalidation", "lifetime")]
    claims: list[Claim] = []
    with pytest.raises(BudgetReached, match=r"next request may cost up to \$"):
        for claim in suite.run(lab, chosen):
            claims.append(claim)  # noqa: PERF402
    assert lab.budget.spent <= Decimal(limit)
    assert {claim.finding for claim in claims} <= {"confirmed", "refuted", "inconclusive"}
    assert "not run" in claims[-1].why or "next request" in claims[-1].why


def test_nothing_is_sent_that_does_not_fit() -> None:
    lab = lab_with("0.000001")
    with pytest.raises(BudgetReached):
        four.run(lab, "words " * 2000)
    assert lab.exchanges == []
    assert four.verdict(lab)["verdict"] == "incomplete"


def exchange(**rest: Any) -> Exchange:
    lab = lab_with(None)
    made = lab.send("a", bodies.about("m", lab.document()))
    for name, value in rest.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    "rest",
    [
        {"usage_raw": {}},
        {"usage_raw": {"input_tokens": 5, "output_tokens": 5}},
        {"usage_raw": {"input_tokens": -5, "cache_read_input_tokens": 0, "output_tokens": 5}},
        {"complete": False, "error": "broke off"},
    ],
)
def test_what_is_unknown_counts_in_full(rest: dict[str, Any]) -> None:
    made = exchange(**rest)
    budget = Budget(ROW, free=False, limit=Decimal(1))
    budget.reserve(made.body)
    budget.settle(made)
    assert budget.cost(made) is None
    assert budget.spent == budget.bound(made.body) > 0
    assert budget.uncertain


def test_a_refusal_costs_nothing() -> None:
    made = exchange(complete=False, status=529, began_s=None, error="http 529")
    budget = Budget(ROW, free=False, limit=Decimal(1))
    budget.reserve(made.body)
    budget.settle(made)
    assert budget.spent == budget.open == budget.cost(made) == Decimal(0)


def test_images_and_tool_prompts_lie_within_the_allowance() -> None:
    assert Budget(ROW, free=False).bound({"max_tokens": 0}) >= Decimal("0.0163")
