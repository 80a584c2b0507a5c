"""Prices, bills and the price cache."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from auditor.errors import BadPriceFile
from auditor.price_cache import PriceCache, cache_name, extract, is_variant
from auditor.price_rows import PriceRow, Window, at, load_prices, plain, row_from, row_to
from auditor.pricing import Cost, PriceList, as_json, as_text, cost, equivalents, open_prices, rates_of, show
from localmodel.rules.types import Rates
from traces.schema import Ttl, Usage

ROOT = Path(__file__).parents[3]
CASES = ROOT.parent / "shared" / "cases"
SONNET = row_from(
    {"input": "3.00", "cache_read": "0.30", "cache_write_5m": "3.75", "cache_write_1h": "6.00", "output": "15.00"},
    "test",
)
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> PriceList:
    return open_prices(cache_directory=tmp_path_factory.mktemp("prices"))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def amounts(row: PriceRow | None, tokens: int = 0) -> list[str]:
    assert row is not None
    kinds = (row.input, row.write_5m, row.write_1h, row.read, row.output)
    return ["?" if price is None else plain(price) for price in (at(kind, tokens) for kind in kinds)]


# model, moment, total input tokens, then input / 5m write / 1h write / read / output in US dollars per million
ANTHROPIC = [
    ("claude-fable-5-2", "2026-11-09", 0, "8 10 16 0.2 40"),
    ("claude-mythos-5-2", "2026-11-09", 0, "8 10 16 0.2 40"),
    ("claude-fable-5-1", "2026-11-08T23:59:59", 0, "10 12.5 20 0.25 50"),
    ("claude-fable-5-1", "2026-11-09", 0, "10 12.5 20 0.25 50"),
    ("claude-mythos-5-1", "2026-09-01", 0, "10 12.5 20 0.25 50"),
    ("claude-fable-5", "2026-06-09", 0, "10 12.5 20 1 50"),
    ("claude-mythos-5", "2026-06-09", 0, "10 12.5 20 1 50"),
    ("claude-opus-5-5", "2026-09-22", 0, "4 5 8 0.2 20"),
    *((f"claude-opus-{n}", "2026-10-01", 0, "5 6.25 10 0.5 25") for n in ("5", "4-8", "4-7", "4-6", "4-5")),
    *((f"claude-opus-{n}", "2026-01-01", 0, "15 18.75 30 1.5 75") for n in ("4-1", "4", "4-20250514")),
    ("claude-sonnet-5-5", "2026-09-28", 0, "2 2.5 4 0.2 10"),
    ("claude-sonnet-5-5", "2026-10-06T23:59:59", 0, "2 2.5 4 0.2 10"),
    ("claude-sonnet-5-5", "2026-10-07", 0, "2 2.5 4 0.1 10"),
    ("claude-sonnet-5-5-20260928", "2026-10-06", 0, "2 2.5 4 0.2 10"),
    ("claude-sonnet-5", "2026-08-31", 0, "2 2.5 4 0.2 10"),
    ("claude-sonnet-5", "2026-09-01", 0, "2 2.5 4 0.2 10"),
    *((f"claude-sonnet-{n}", "2026-06-01", 0, "3 3.75 6 0.3 15") for n in ("4-6", "4-5", "4", "4-20250514")),
    ("claude-haiku-5-5", "2026-10-07", 100_000, "0.1 0.125 0.2 0.01 0.5"),
    ("claude-haiku-5-5", "2026-10-07", 100_001, "0.5 0.625 1 0.05 2.5"),
    ("claude-haiku-4-5", "2026-06-01", 0, "1 1.25 2 0.1 5"),
    ("claude-3-5-haiku-20241022", "2025-01-01", 0, "0.8 1 1.6 0.08 4"),
    # long context, whole request; none on the 4.6 models since 2026-03-13
    ("claude-opus-4-6", "2026-03-12T23:59:59", 200_000, "5 6.25 10 0.5 25"),
    ("claude-opus-4-6", "2026-03-12T23:59:59", 200_001, "10 12.5 20 1 37.5"),
    ("claude-opus-4-6", "2026-03-13", 200_001, "5 6.25 10 0.5 25"),
    ("claude-sonnet-4-6", "2026-03-12", 200_001, "6 7.5 12 0.6 22.5"),
    ("claude-sonnet-4-6", "2026-03-13", 200_001, "3 3.75 6 0.3 15"),
    ("claude-sonnet-4-5", "2026-03-12", 200_001, "6 7.5 12 0.6 22.5"),
    ("claude-sonnet-4", "2026-03-12", 200_001, "6 7.5 12 0.6 22.5"),
]


@pytest.mark.parametrize(("model", "day", "tokens", "expected"), ANTHROPIC)
def test_each_price_of_anthropic(prices: PriceList, model: str, day: str, tokens: int, expected: str) -> None:
    assert amounts(prices.rate("anthropic", model, moment(day)), tokens) == expected.split()


OTHERS = [
    ("openai", "gpt-6.1-sol", "2026-11-01", 0, "2 2.5 5 0.1 10"),
    ("openai", "gpt-6.1-terra", "2026-11-01", 0, "1 1.25 2.5 0.05 5"),
    ("openai", "gpt-6-sol", "2026-11-01", 0, "2 2.5 5 0.2 10"),
    ("openai", "gpt-6-luna", "2026-11-01", 0, "0.1 0.125 0.25 0.01 0.5"),
    ("openai", "gpt-6-astra", "2026-11-01", 0, "10 12.5 25 1 50"),
    ("openai", "gpt-5.6-sol", "2026-08-20T23:59:59", 0, "5 6.25 12.5 0.5 30"),
    ("openai", "gpt-5.6-sol", "2026-08-21", 0, "4 5 10 0.4 20"),
    ("openai", "gpt-5.6-sol", "2026-08-21", 272_000, "4 5 10 0.4 20"),
    ("openai", "gpt-5.6-sol", "2026-08-21", 272_001, "8 10 20 0.8 30"),
    ("openai", "gpt-5.6-terra", "2026-07-29", 0, "2.5 3.125 6.25 0.25 15"),
    ("openai", "gpt-5.6-terra", "2026-07-30", 0, "2 2.5 5 0.2 12"),
    ("openai", "gpt-5.6-luna", "2026-07-29", 0, "1 1.25 2.5 0.1 6"),
    ("openai", "gpt-5.6-luna", "2026-07-30", 0, "0.2 0.25 0.5 0.02 1.2"),
    ("openai", "gpt-5.5", "2026-07-01", 0, "5 ? ? 0.5 30"),
    ("openai", "gpt-5.1", "2026-01-01", 0, "1.25 ? ? 0.125 10"),
    ("openai", "gpt-4.1", "2026-01-01", 0, "2 ? ? 0.5 8"),
    # peak hours: 01-04 and 06-10 UTC, Monday to Friday, not on Chinese holidays, from 2026-08-16 16:00 on
    ("deepseek", "deepseek-v4-pro", "2026-08-14T02:30", 0, "0.435 ? ? 0.003625 0.87"),
    ("deepseek", "deepseek-v4-pro", "2026-08-16T15:59:59", 0, "0.435 ? ? 0.003625 0.87"),
    ("deepseek", "deepseek-v4-pro", "2026-08-16T16:00", 0, "0.66 ? ? 0.022 1.98"),
    ("deepseek", "deepseek-v4-pro", "2026-08-17T02:30", 0, "1.32 ? ? 0.044 3.96"),
    ("deepseek", "deepseek-flash", "2026-11-13T00:59:59", 0, "0.15 ? ? 0.003 0.6"),
    ("deepseek", "deepseek-flash", "2026-11-13T01:00", 0, "0.3 ? ? 0.006 1.2"),
    ("deepseek", "deepseek-flash", "2026-11-13T04:00", 0, "0.15 ? ? 0.003 0.6"),
    ("deepseek", "deepseek-flash", "2026-11-13T09:59:59", 0, "0.3 ? ? 0.006 1.2"),
    ("deepseek", "deepseek-flash", "2026-11-14T02:30", 0, "0.15 ? ? 0.003 0.6"),  # a Saturday
    ("deepseek", "deepseek-flash", "2026-10-01T02:30", 0, "0.15 ? ? 0.003 0.6"),  # National Day, a Thursday
    ("deepseek", "deepseek-v4-flash", "2026-09-09", 0, "0.22 ? ? 0.007 0.66"),
    ("deepseek", "deepseek-v4-flash", "2026-08-15", 0, "0.14 ? ? 0.0028 0.28"),
]


@pytest.mark.parametrize(("provider", "model", "day", "tokens", "expected"), OTHERS)
def test_prices_of_others(prices: PriceList, provider: str, model: str, day: str, tokens: int, expected: str) -> None:
    assert amounts(prices.rate(provider, model, moment(day)), tokens) == expected.split()


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "claude-test-sonnet"),
        ("anthropic", "claude-opus-9-9"),
        ("anthropic", "claude-opus-4-10"),  # genai-prices would take it for claude-opus-4-1
        ("anthropic", "claude-sonnet-4-6-turbo"),
        ("anthropic", "gpt-5.6-sol"),
        ("openai", "gpt-5-nano-xyz"),
        ("openai", "gpt-5.6-like"),
        ("google_cloud", "gemini-3.6-flash-lite"),
        ("bedrock", "anthropic.claude-opus-9-9-v1:0"),
        ("nobody", "gpt-5"),
    ],
)
def test_unknown_model_is_unpriced(prices: PriceList, provider: str, model: str) -> None:
    assert prices.rate(provider, model, None) is None
    assert prices.rate(provider, None, None) is None


@pytest.mark.parametrize(
    ("provider", "model", "price"),
    [
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "3.3"),
        ("bedrock", "arn:aws:bedrock:us-east-1:1:inference-profile/global.anthropic.claude-opus-5-5", "4"),
        ("google_cloud", "claude-haiku-4-5@20251001", "1"),
        ("foundry", "claude-sonnet-5-5", "2"),
        ("openai", "gpt-5.2-20251211", "1.75"),
        ("anthropic", "Claude-Opus-5", "5"),
        ("anthropic", "claude-opus-4-8[1m]", "5"),
        ("anthropic", "anthropic/claude-opus-5", "5"),
    ],
)
def test_names_on_other_platforms(prices: PriceList, provider: str, model: str, price: str) -> None:
    assert amounts(prices.rate(provider, model, moment("2026-10-20")))[0] == price


def test_azure_gets_the_makers_correction(prices: PriceList) -> None:
    row = prices.rate("foundry", "claude-sonnet-5-5", moment("2026-10-06"))
    assert row is not None
    assert row.read == Decimal("0.20")


def test_the_latest_row_is_no_peak_row(prices: PriceList) -> None:
    row = prices.rate("deepseek", "deepseek-v4-pro", None)
    assert row is not None
    assert row.input == Decimal("0.66")


def test_a_variant_is_dated_not_a_neighbour() -> None:
    assert is_variant("claude-opus-4-20250514", "claude-opus-4")
    assert is_variant("gpt-5-2025-08-07", "gpt-5")
    assert is_variant("x-20250929-v1:0", "x")
    assert not is_variant("claude-opus-4-1", "claude-opus-4")
    assert not is_variant("acme-coder-5.3-mini", "acme-coder-5.3")
    assert not is_variant("gpt-5" + "-2025-08-07" * 5000 + "!", "gpt-5")  # and in linear time


# --- bills


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
    assert (plain(t1.usd), t1.partial, t1.reasons) == (expected["t1"], False, ())
    t2 = bill(prices, rows["t2"], anthropic_usage(rows["t2"]["usage"]), tier="1h")
    assert (plain(t2.usd), t2.reasons) == (expected["t2"]["cost"], ("write_tier_inferred",))
    for name in ("t3", "t4"):
        unclear = bill(prices, rows[name], anthropic_usage(rows[name]["usage"]))
        assert (plain(unclear.low), plain(unclear.high)) == (expected[name]["low"], expected[name]["high"])
        assert (unclear.usd, unclear.partial, unclear.reasons) == (unclear.low, True, ("write_tier_unknown",))


@needs_cases
def test_case_b16_writes_are_a_slice_of_the_input() -> None:
    prices, rows, expected = case("B16")
    for name, row in rows.items():
        total = bill(prices, row, openai_usage(row["usage"]))
        assert (plain(total.usd), total.partial) == (expected[name]["cost_usd"], False)


@needs_cases
def test_case_b22_b23_a_neighbours_price_is_not_used() -> None:
    prices, rows, expected = case("B22_B23")
    for name in ("u1", "u2", "u4"):
        assert plain(bill(prices, rows[name], openai_usage(rows[name]["usage"])).usd) == expected[name]
    assert prices.rate("any", rows["u3"]["model"], None) is None


@needs_cases
@pytest.mark.parametrize(("name", "tokens"), [("A10", 41_500), ("A43", 60_000)])
def test_avoidable_money_is_the_difference_of_two_bills(name: str, tokens: int) -> None:
    expected = json.loads((CASES / name / "expected.json").read_text())
    row = load_prices(CASES / name / "prices.json")["claude-test-sonnet"][0]
    written = cost(Usage(tokens + 9, 0, tokens, tokens, 0, 150), row)
    read = cost(Usage(tokens + 9, tokens, 0, 0, 0, 150), row)
    assert plain(written.usd - read.usd) == expected["avoidable_cost_usd"]


def test_the_length_tier_holds_for_the_whole_request(prices: PriceList) -> None:
    row = prices.rate("anthropic", "claude-haiku-5-5", None)
    assert row is not None
    below = cost(Usage(100_000, 90_000, 9_000, 9_000, 0, 1_000), row)
    above = cost(Usage(100_001, 90_001, 9_000, 9_000, 0, 1_000), row)
    assert below.usd == Decimal("0.0001") + Decimal("0.0009") + Decimal("0.001125") + Decimal("0.0005")
    assert above.usd == Decimal("0.0005") + Decimal("0.00450005") + Decimal("0.005625") + Decimal("0.0025")


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
    assert [plain(total.low), plain(total.usd), plain(total.high)] == [low, usd, high]
    assert (list(total.reasons), total.partial) == (reasons, bool(reasons))


def test_tokens_without_a_price_are_not_free() -> None:
    row = PriceRow(input=Decimal(1))
    total = cost(Usage(100, 10, 30, 10, 20, 5), row)
    assert total.reasons == ("no_read_price", "no_write_price", "no_write_1h_price", "no_output_price")
    assert (total.usd, total.partial) == (Decimal("0.00006"), True)
    assert cost(Usage(100, 0, 30, None, None, 0), row, tier="1h").reasons == ("no_write_1h_price",)
    assert cost(Usage(100, 0, 30, None, None, 0), row).reasons == ("no_write_price",)
    assert cost(Usage(100, 0, 0, None, None, 0), PriceRow()).reasons == ("no_input_price",)


def test_openai_itemises_long_writes(prices: PriceList) -> None:
    row = prices.rate("openai", "gpt-6-sol", None)
    assert row is not None
    usage = Usage(1_000_000, 0, 1_000_000, None, None, 0)
    assert (plain(cost(usage, row).usd), cost(usage, row).reasons) == ("5", ())  # above 272,000: twice 2.50
    assert plain(cost(usage, row, tier="1h").usd) == "10"
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


# --- the user's price file


def test_own_prices_come_first_and_keep_their_dates(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[["claude-opus-5"]]\nsince = 2026-10-01\ninput = 0.3\nper = 1000\n'
        '[["claude-opus-5"]]\nuntil = 2026-10-01\ninput = [[0, "7"], [1000, "9"]]\n'
    )
    prices = open_prices(path, tmp_path)
    assert amounts(prices.rate("anthropic", "claude-opus-5", moment("2026-09-30T23:59")), 1000)[0] == "7"
    assert amounts(prices.rate("anthropic", "claude-opus-5-20260801", moment("2026-09-30")), 1001)[0] == "9"
    assert amounts(prices.rate("anthropic", "claude-opus-5", moment("2026-10-01")))[0] == "300"
    assert amounts(prices.rate("anthropic", "claude-opus-5", None))[0] == "300"
    assert amounts(prices.rate("anthropic", "claude-opus-5-5", None))[0] == "4"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"m": {"currency": "EUR", "input": "3"}}', "model \"m\": currency is 'EUR', only USD"),
        ("a.json", '{"m": {"input": "-3"}}', "input is '-3'; give a number of 0 or more"),
        ("a.json", '{"m": {"input": "1e999999"}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": "NaN"}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": true}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": "3", "per": 0}}', "per is 0"),
        ("a.json", '{"m": {"input": "3", "cached": "1"}}', "unknown key 'cached'"),
        ("a.json", '{"m": {"output": "3"}}', "no input price"),
        ("a.json", '{"m": {"input": [[5, "3"]]}}', "tiers start at [5] tokens"),
        ("a.json", '{"m": {"input": ["3"]}}', "tiers must be pairs"),
        ("a.json", '{"m": {"input": "3", "since": "soon"}}', "since is 'soon'"),
        ("a.json", '{"m": {"input": "3", "hours": "1-2", "except": 5}}', "give hours such as"),
        ("a.json", '{"m": {"input": "3", "unsplit": "2h"}}', "give 5m or 1h"),
        ("a.json", '{"m": {"input": "3", "cache_write": "1", "cache_write_5m": "1"}}', "keep one"),
        ("a.json", '{"m": 3}', "must be a table"),
        ("a.json", "[]", "holds a list"),
        ("a.json", "{", "not JSON"),
        ("a.toml", '[gpt-5.4]\ninput = "3"\n', "quote a model name that holds a dot"),
        ("a.toml", "x =", "not TOML"),
    ],
)
def test_a_bad_price_file_is_one_clear_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(BadPriceFile) as caught:
        load_prices(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_price_file(tmp_path: Path) -> None:
    with pytest.raises(BadPriceFile, match=r"none\.json: cannot be read \(No such file or directory\)"):
        load_prices(tmp_path / "none.json")


def test_the_written_form_keeps_a_row() -> None:
    row = PriceRow(
        input=((0, Decimal("0.15")), (1000, Decimal("0.30"))),
        read=Decimal("0.003"),
        output=Decimal("0.6"),
        since=moment("2026-09-10"),
        until=moment("2026-12-01T16:30"),
        window=Window(time(22), time(4), (1, 5), (date(2026, 10, 1),)),
        unsplit="5m",
        source="somewhere",
        checked=date(2026, 11, 29),
        note="why",
    )
    assert row_from(json.loads(json.dumps(row_to(row))), "test") == row


def test_a_span_ends_before_its_last_moment() -> None:
    row = PriceRow(since=moment("2026-10-01"), until=moment("2026-10-02"))
    days = ("2026-09-30T23:59:59", "2026-10-01", "2026-10-01T23:59:59", "2026-10-02")
    assert [row.active(moment(day)) for day in days] == [False, True, True, False]
    assert row.active(datetime.fromisoformat("2026-10-02T01:00:00+02:00"))
    assert row.active(datetime(2026, 10, 1, 12))


def test_rows_with_hours_overrule_plain_rows_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"m": [{"input": "2", "hours": "01:00-04:00"}, {"input": "1", "since": "2026-01-01"}]}))
    prices = PriceList(lambda provider, model: (), load_prices(path))
    assert amounts(prices.rate("any", "m", moment("2026-05-01T02:00")))[0] == "2"
    assert amounts(prices.rate("any", "m", moment("2026-05-01T05:00")))[0] == "1"


def test_a_window_over_midnight() -> None:
    window = Window(time(22), time(4))
    hours = [hour for hour in range(24) if window.active(datetime(2026, 10, 1, hour, tzinfo=UTC))]
    assert hours == [0, 1, 2, 3, 22, 23]


# --- the cache file

PROGRAM = """
import sys
from pathlib import Path
from auditor.pricing import open_prices
prices = open_prices(cache_directory=Path(sys.argv[1]))
for name in sys.argv[2:]:
    provider, model = name.split("/")
    row = prices.rate(provider, model, None)
    print(row and row.input)
print("genai_prices" in sys.modules)
"""


def run(folder: Path, *models: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *models]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_a_known_model_does_not_import_genai_prices(tmp_path: Path) -> None:
    models = ("anthropic/claude-opus-5", "anthropic/claude-opus-9-9")
    assert run(tmp_path, *models) == ["5", "None", "True"]
    assert run(tmp_path, *models) == ["5", "None", "False"]
    assert run(tmp_path, *models, "openai/gpt-5")[-1] == "True"


def test_the_cache_gives_the_same_rows(tmp_path: Path) -> None:
    for provider, model in [("openai", "gpt-5.6-sol"), ("deepseek", "deepseek-flash"), ("anthropic", "no-such")]:
        first = PriceCache(tmp_path).history(provider, model)
        assert PriceCache(tmp_path).history(provider, model) == first == extract(provider, model)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff",
        b"",
        b"[]",
        b'{"anthropic/claude-opus-5": 3}',
        b'{"anthropic/claude-opus-5": [{"input": "much"}]}',
        b'{"anthropic/claude-opus-5": [3]}',
    ],
)
def test_a_corrupt_cache_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / cache_name()
    path.write_bytes(content)
    rows = PriceCache(tmp_path).history("anthropic", "claude-opus-5")
    assert rows[0].input == Decimal(5)
    assert json.loads(path.read_bytes()).keys() == {"anthropic/claude-opus-5"}


def test_an_unwritable_cache_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", Path("/proc/none")):
        assert PriceCache(folder).history("anthropic", "claude-opus-5")[0].input == Decimal(5)


def test_two_processes_may_race(tmp_path: Path) -> None:
    models = [f"anthropic/claude-opus-4-{n}" for n in (1, 5, 6, 7, 8)]
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda order: run(tmp_path, *order), [models, models[::-1]])
    assert one[:-1] == two[-2::-1]
    written = json.loads((tmp_path / cache_name()).read_bytes())
    assert written.keys() <= set(models)
    assert written
    assert [path.name for path in tmp_path.iterdir()] == [cache_name()]


# --- showing prices


def test_show_finds_a_model_without_its_provider(prices: PriceList) -> None:
    rows = show(prices, "claude-sonnet-5-5")
    assert [row.read for row in rows] == [Decimal("0.20"), Decimal("0.10")]
    assert show(prices, "anthropic/claude-sonnet-5-5") == rows
    assert show(prices, "claude-sonnet-5-5", moment("2026-10-07")) == rows[1:]
    assert show(prices, "claude-opus-9-9") == []
    assert show(prices, "nobody/claude-sonnet-5-5") == []


def test_show_prefers_the_users_price() -> None:
    prices = PriceList(lambda provider, model: (), {"org/m": (SONNET,)})
    assert show(prices, "org/m") == [SONNET]


def test_shown_text_has_a_line_a_tier(prices: PriceList) -> None:
    lines = as_text(show(prices, "claude-haiku-5-5")).splitlines()
    assert lines[0].split()[:3] == ["since", "until", "when"]
    assert lines[1].split()[:5] == ["0.1", "0.125", "0.2", "0.01", "0.5"]
    assert lines[2].split()[:6] == ["100,000", "0.5", "0.625", "1", "0.05", "2.5"]
    peak = as_text(show(prices, "deepseek-flash", moment("2026-11-13T02:00"))).splitlines()[1]
    assert peak.split()[:8] == ["2026-09-10", "01:00-04:00", "UTC", "days", "1,2,3,4,5", "0.3", "?", "?"]


def test_shown_json_is_a_price_file(prices: PriceList, tmp_path: Path) -> None:
    rows = show(prices, "deepseek-v4-pro")
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"deepseek-v4-pro": as_json(rows)}))
    own = load_prices(path)
    assert set(own["deepseek-v4-pro"]) == set(rows)
    peak = PriceList(lambda provider, model: (), own).rate("deepseek", "deepseek-v4-pro", moment("2026-08-17T02:30"))
    assert amounts(peak)[0] == "1.32"
