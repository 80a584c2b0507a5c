"""Prices under other terms, of a day gone by, in another currency; what is charged beside a response; the overlay."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from auditor import price_check
from auditor.audit import audit
from auditor.money import Money
from auditor.price_rows import PriceRow, load_prices, row_from, row_to
from auditor.pricing import PriceList, cost
from auditor.records import Audit
from auditor.totals import Totals, totals
from localmodel.rules.book import Rulebook
from traces import io
from traces.schema import Usage

Json = dict[str, Any]
ROW = {"input": "10", "cache_read": "1", "cache_write_5m": "12.5", "output": "50"}
USAGE = {"input_tokens": 100_000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 0}


def priced(tmp_path: Path, content: Json, as_of: datetime | None = None) -> PriceList:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(content))
    return PriceList(lambda provider, model: (), load_prices(path), as_of)


def audited(*rows: Json) -> Audit:
    base = {"provider": "anthropic", "trace": "t", "model": "m", "started_at": "2026-11-02T10:00:00Z"}
    calls = [io.parse(json.dumps(base | {"id": f"c{number}"} | row).encode()) for number, row in enumerate(rows)]
    return audit(calls, Rulebook(), lambda one: None)


def bill(made: Audit, prices: PriceList) -> Totals:
    return totals(made.calls, Money(made.calls, prices))


@pytest.mark.parametrize(
    ("terms", "usd"),
    [({}, "1"), ({"service_tier": "batch"}, "0.5"), ({"speed": "fast"}, "2"), ({"inference_geo": "us"}, "1.1"),
     ({"service_tier": "standard", "speed": "standard", "inference_geo": "global"}, "1"),
     ({"service_tier": "batch", "inference_geo": "us"}, "0.55")],
)  # fmt: skip
def test_each_term_multiplies_all_prices(tmp_path: Path, terms: Json, usd: str) -> None:
    prices = priced(tmp_path, {"m": ROW | {"times": {"batch": "0.5", "fast": "2", "geo_us": "1.1"}}})
    whole = bill(audited({"response": {"usage": USAGE | terms}}), prices).whole
    assert (whole.usd, whole.reasons) == (Decimal(usd), set())


def test_terms_without_a_price_are_partial(tmp_path: Path) -> None:
    found = bill(audited({"response": {"usage": USAGE | {"service_tier": "priority"}}}), priced(tmp_path, {"m": ROW}))
    assert (found.whole.usd, found.partial, found.whole.reasons) == (Decimal(1), True, {"no_terms_price"})


def test_terms_of_the_usual_models_are_known(prices: PriceList) -> None:
    usage = Usage(1_000, 0, 0, 0, 0, 0)
    for model, terms, usd in (("claude-opus-5-5", "fast", "0.008"), ("claude-opus-5", "batch", "0.0025")):
        row = prices.rate("anthropic", model, None, (terms,))
        assert row is not None and cost(usage, row).amount == Decimal(usd)
    row = prices.rate("openai", "gpt-6-sol", None, ("priority",))
    assert row is not None and cost(usage, row).amount == Decimal("0.004")


def test_a_row_keeps_its_terms_and_currency() -> None:
    row = row_from(ROW | {"currency": "CNY", "times": {"batch": "0.5"}}, "here")
    assert (row.currency, row.times) == ("CNY", (("batch", Decimal("0.5")),))
    assert row_from(row_to(row), "there") == row


def test_two_currencies_are_never_added(tmp_path: Path) -> None:
    prices = priced(tmp_path, {"m": ROW, "n": ROW | {"currency": "CNY"}})
    made = audited({"response": {"usage": USAGE}}, {"model": "n", "response": {"usage": USAGE}})
    found = bill(made, prices).whole
    assert (found.usd, found.other, found.priced_calls) == (Decimal(1), {"CNY": Decimal(1)}, 2)


def test_past_totals_do_not_move_when_a_list_grows(tmp_path: Path) -> None:
    old: list[Json] = [ROW | {"since": "2026-01-01"}]
    new = [*old, ROW | {"since": "2026-11-10", "input": "20"}]
    rows: list[Json] = [
        {"response": {"usage": USAGE}},
        {"started_at": "2026-11-20T00:00:00Z", "response": {"usage": USAGE}},
    ]
    before, after = (bill(audited(*rows[:1]), priced(tmp_path, {"m": each})).whole.usd for each in (old, new))
    assert before == after == 1
    assert bill(audited(*rows), priced(tmp_path, {"m": new})).whole.usd == 3
    pinned = priced(tmp_path, {"m": new}, datetime(2026, 11, 9, tzinfo=UTC))
    assert bill(audited(*rows), pinned).whole.usd == 2


def test_passes_beside_a_response_are_charged_at_their_own_price(tmp_path: Path) -> None:
    passes = [
        {"type": "compaction"} | USAGE | {"input_tokens": 50_000},
        {"type": "message"} | USAGE,
        {"type": "advisor_message", "model": "dear"} | USAGE,
    ]
    made = audited({"response": {"usage": USAGE | {"iterations": passes}}})
    assert [(one.call.kind, one.call.model) for one in made.calls] == [
        ("main", "m"),
        ("summary", "m"),
        ("side", "dear"),
    ]
    assert all(one.diagnosis is None for one in made.calls)
    prices = priced(tmp_path, {"m": ROW, "dear": ROW | {"input": "30"}})
    assert bill(made, prices).whole.usd == Decimal("1") + Decimal("0.5") + Decimal("3")


def test_the_overlay_differs_from_the_package_only_where_it_says_so() -> None:
    found = price_check.check(datetime(2026, 11, 30, tzinfo=UTC))
    assert found and all(each.expected for each in found)
    assert {each.price for each in found if "sonnet-5-5" in each.model} == {"cache_read"}
    assert {each.price for each in found if "mythos" in each.model} == {"absent"}
    assert {(each.price, each.ours, each.theirs) for each in found if each.model == "o3"} == {
        ("cache_read", "2.5", "0.5")
    }


def test_a_correction_that_corrects_nothing_any_more_is_unexpected() -> None:
    rows = (PriceRow(input=Decimal(1)),)
    assert not list(price_check.parting(rows, rows, datetime(2026, 11, 30, tzinfo=UTC)))
    other = (PriceRow(input=Decimal(2)),)
    (one,) = price_check.parting(rows, other, datetime(2026, 11, 30, tzinfo=UTC))
    assert (one[0], one[2], one[3]) == ("input", "1", "2")


def test_native_rows_of_one_name_are_calls_of_their_own_under_any_terms() -> None:
    row = {"id": "same", "response": {"usage": USAGE | {"speed": "fast"}}}
    calls = [one.call for one in audited(row, row).calls]
    seen: set[object] = set()
    assert [io.is_copy(call, seen) for call in calls] == [False, False]
