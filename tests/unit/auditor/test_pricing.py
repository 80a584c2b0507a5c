"""Prices by model, platform and date, and how they are shown."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from auditor.price_cache import is_variant
from auditor.price_rows import PriceRow, at, load_prices, plain, row_from
from auditor.pricing import PriceList, as_json, as_text, show

SONNET = row_from(
    {"input": "3.00", "cache_read": "0.30", "cache_write_5m": "3.75", "cache_write_1h": "6.00", "output": "15.00"},
    "test",
)


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


@pytest.mark.parametrize("model", ["gemini-3.8-flash", "gemini-4-argon"])
def test_batch_is_half_of_the_price_in_force_before_and_after_an_announced_rise(prices: PriceList, model: str) -> None:
    for day in ("2026-10-20", "2027-02-01"):
        usual = prices.rate("google", model, moment(day))
        batch = prices.rate("google", model, moment(day), ("batch",))
        assert [Decimal(price) * 2 for price in amounts(batch)[:1]] == [Decimal(price) for price in amounts(usual)[:1]]
