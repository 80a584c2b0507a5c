"""Bills: tokens by class at a price, what is unknown bounded, and the cases of the bug reports."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from auditor.price_rows import PriceRow, load_prices, plain, row_from
from auditor.pricing import Cost, PriceList, cost, equivalents, rates_of
from localmodel.rules.types import Rates
from traces.schema import Ttl, Usage

CASES = Path(__file__).parents[4] / "shared" / "cases"
SONNET = row_from(
    {"input": "3.00", "cache_read": "0.30", "cache_write_5m": "3.75", "cache_write_1h": "6.00", "output": "15.00"},
    "test",
)
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")


def anthropic_usage(usage: dict[str, Any]) -> Usage:
    """Anthropic's fields, whose input is the remainder, in this project's names."""
    write, read = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    split = usage.get("cache_creation", {})
    return Usage(
        input_tokens=usage["input_tokens"] + write + read,
        read_tokens=read,
        write_tokens=write,
        write_5m_tokens=split.get("ephemeral_5m_input_tokens"),
        write_1h_tokens=split.get("ephemeral_1h_input_tokens"),
        output_tokens=usage["output_tokens"],
    )


def openai_usage(usage: dict[str, Any]) -> Usage:
    details = usage["input_tokens_details"]
    return Usage(
        input_tokens=usage["input_tokens"],
        read_tokens=details["cached_tokens"],
        write_tokens=details.get("cache_write_tokens"),
        output_tokens=usage["output_tokens"],
    )


def case(name: str) -> tuple[PriceList, dict[str, Any], dict[str, Any]]:
    """A shared case: its price file, its rows by id, and the expected values."""
    folder = CASES / name
    prices = PriceList(lambda provider, model: (), load_prices(folder / "prices.json"))
    rows = [json.loads(line) for line in (folder / "usage.jsonl").read_text().splitlines()]
    return prices, {row["id"]: row for row in rows}, json.loads((folder / "expected.json").read_text())


def bill(prices: PriceList, row: dict[str, Any], usage: Usage, tier: Ttl | None = None) -> Cost:
    price = prices.rate("any", row["model"], None)
    assert price is not None
    return cost(usage, price, tier=tier)


@needs_cases
def test_case_b07_b08_write_lifetimes() -> None:
    prices, rows, expected = case("B07_B08")
    t1 = bill(prices, rows["t1"], anthropic_usage(rows["t1"]["usage"]))
    assert (plain(t1.amount), t1.partial, t1.reasons) == (expected["t1"], False, ())
    t2 = bill(prices, rows["t2"], anthropic_usage(rows["t2"]["usage"]), tier="1h")
    assert (plain(t2.amount), t2.reasons) == (expected["t2"]["cost"], ("write_tier_inferred",))
    for name in ("t3", "t4"):
        unclear = bill(prices, rows[name], anthropic_usage(rows[name]["usage"]))
        assert (plain(unclear.low), plain(unclear.high)) == (expected[name]["low"], expected[name]["high"])
        assert (unclear.amount, unclear.partial, unclear.reasons) == (unclear.low, True, ("write_tier_unknown",))


@needs_cases
def test_case_b16_writes_are_a_slice_of_the_input() -> None:
    prices, rows, expected = case("B16")
    for name, row in rows.items():
        total = bill(prices, row, openai_usage(row["usage"]))
        assert (plain(total.amount), total.partial) == (expected[name]["cost_usd"], False)


@needs_cases
def test_case_b22_b23_a_neighbours_price_is_not_used() -> None:
    prices, rows, expected = case("B22_B23")
    for name in ("u1", "u2", "u4"):
        assert plain(bill(prices, rows[name], openai_usage(rows[name]["usage"])).amount) == expected[name]
    assert prices.rate("any", rows["u3"]["model"], None) is None


@needs_cases
@pytest.mark.parametrize(("name", "tokens"), [("A10", 41_500), ("A43", 60_000)])
def test_avoidable_money_is_the_difference_of_two_bills(name: str, tokens: int) -> None:
    expected = json.loads((CASES / name / "expected.json").read_text())
    row = load_prices(CASES / name / "prices.json")["claude-test-sonnet"][0]
    written = cost(Usage(tokens + 9, 0, tokens, tokens, 0, 150), row)
    read = cost(Usage(tokens + 9, tokens, 0, 0, 0, 150), row)
    assert plain(written.amount - read.amount) == expected["avoidable_cost_usd"]


def test_the_length_tier_holds_for_the_whole_request(prices: PriceList) -> None:
    row = prices.rate("anthropic", "claude-haiku-5-5", None)
    assert row is not None
    below = cost(Usage(100_000, 90_000, 9_000, 9_000, 0, 1_000), row)
    above = cost(Usage(100_001, 90_001, 9_000, 9_000, 0, 1_000), row)
    assert below.amount == Decimal("0.0001") + Decimal("0.0009") + Decimal("0.001125") + Decimal("0.0005")
    assert above.amount == Decimal("0.0005") + Decimal("0.00450005") + Decimal("0.005625") + Decimal("0.0025")


@pytest.mark.parametrize(
    ("usage", "low", "usd", "high", "reasons"),
    [
        # which part was read is unknown: between all at 0.30 and all at 3.00
        (Usage(1_000_000, None, 0, None, None, 0), "0.3", "3", "3", ["read_tokens_unknown"]),
        (Usage(1_000_000, 0, None, None, None, 0), "3", "3", "6", ["write_tokens_unknown"]),
        (Usage(None, 1_000_000, 0, None, None, 0), "0.3", "0.3", "0.3", ["input_tokens_unknown"]),
        (Usage(1_000_000, 0, 0, None, None, None), "3", "3", "3", ["output_tokens_unknown"]),
        # the total is the sum of the split, so one part gives the other
        (Usage(1_000_000, 0, 1_000_000, 400_000, None, 0), "5.1", "5.1", "5.1", []),
        (Usage(1_000_000, 0, 1_000_000, None, 600_000, 0), "5.1", "5.1", "5.1", []),
        (Usage(1_000_000, 0, None, 400_000, 600_000, 0), "5.1", "5.1", "5.1", []),
        # a total above the split: the rest has no known lifetime
        (Usage(1_000_000, 0, 1_000_000, 400_000, 500_000, 0), "4.875", "4.875", "5.1", ["write_tier_unknown"]),
        (Usage(10, 0, 0, 1_000_000, 0, 0), "3.75003", "3.75003", "3.75003", ["write_split_exceeds_total"]),
        (Usage(10, 20, 0, 0, 0, 0), "0.000006", "0.000006", "0.000006", ["parts_exceed_input"]),
    ],
)
def test_what_is_unknown_is_said_and_bounded(usage: Usage, low: str, usd: str, high: str, reasons: list[str]) -> None:
    total = cost(usage, SONNET)
    assert [plain(total.low), plain(total.amount), plain(total.high)] == [low, usd, high]
    assert (list(total.reasons), total.partial) == (reasons, bool(reasons))


def test_tokens_without_a_price_are_not_free() -> None:
    row = PriceRow(input=Decimal(1))
    total = cost(Usage(100, 10, 30, 10, 20, 5), row)
    assert total.reasons == ("no_read_price", "no_write_price", "no_write_1h_price", "no_output_price")
    assert (total.amount, total.partial) == (Decimal("0.00006"), True)
    assert cost(Usage(100, 0, 30, None, None, 0), row, tier="1h").reasons == ("no_write_1h_price",)
    assert cost(Usage(100, 0, 30, None, None, 0), row).reasons == ("no_write_price",)
    assert cost(Usage(100, 0, 0, None, None, 0), PriceRow()).reasons == ("no_input_price",)


def test_openai_itemises_long_writes(prices: PriceList) -> None:
    row = prices.rate("openai", "gpt-6-sol", None)
    assert row is not None
    usage = Usage(1_000_000, 0, 1_000_000, None, None, 0)
    assert (plain(cost(usage, row).amount), cost(usage, row).reasons) == ("5", ())  # above 272,000: twice 2.50
    assert plain(cost(usage, row, tier="1h").amount) == "10"
    assert cost(usage, row, tier="1h").reasons == ("write_tier_inferred",)
    assert cost(usage, row, tier="5m").reasons == ()


def test_equivalents_and_rates() -> None:
    rates = rates_of(SONNET)
    assert rates == Rates(write_5m=Decimal("1.25"), write_1h=Decimal(2), read=Decimal("0.1"))
    assert equivalents(Usage(1000, 500, 300, 200, 100), rates) == 200 + 250 + 200 + 50
    assert equivalents(Usage(1000, 500, 300), rates) == 200 + 375 + 50
    assert equivalents(Usage(1000, 500, 300), rates, tier="1h") == 200 + 600 + 50
    assert equivalents(Usage(1000, 500), rates) == 550
    assert equivalents(Usage(1000), rates) is None


def test_rates_follow_the_length_tier_and_stay_unknown(prices: PriceList) -> None:
    row = prices.rate("openai", "gpt-5.5", None)
    assert row is not None
    assert rates_of(row, 300_000) == Rates(write_5m=Decimal(1), write_1h=Decimal(1), read=Decimal("0.1"))
    assert rates_of(PriceRow(input=Decimal(0), read=Decimal(0))) is None
    assert rates_of(PriceRow(input=Decimal(1))) is None
