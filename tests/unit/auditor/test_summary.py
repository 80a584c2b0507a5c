"""Sums of the store are those of an audit, whichever way they are added up."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from auditor import summary
from auditor.audit import audit
from auditor.money import Money
from auditor.outcomes import outcome_rows
from auditor.pricing import PriceList, open_prices
from auditor.store import Store
from auditor.totals import totals
from localmodel.rules.load import load
from traces import io
from traces.schema import Call, Usage

FOURTEEN = Path(__file__).parents[3] / "traces" / "recorded" / "fourteen" / "calls.jsonl"
MODELS = ("claude-sonnet-4-5", "claude-opus-4-5", "deepseek-chat", "unpriced-model", None)
START = datetime(2025, 8, 20, 23, 50, tzinfo=UTC)
_names = count()


@pytest.fixture(scope="module")
def prices() -> PriceList:
    return open_prices()


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    made = []
    for number in range(draw(st.integers(1, 12))):
        read = draw(st.one_of(st.none(), st.integers(0, 150_000)))
        short, long = draw(st.integers(0, 90_000)), draw(st.sampled_from([0, 0, 70_000]))
        rest = draw(st.integers(0, 60_000))
        usage = Usage(short + long + rest + (read or 0), read, short + long, short, long, draw(st.integers(0, 900)))
        model = draw(st.sampled_from(MODELS))
        made.append(
            Call(
                id=f"{number}",
                trace=draw(st.sampled_from(["a", "b"])),
                provider="deepseek" if model == "deepseek-chat" else "anthropic",
                started_at=START + timedelta(hours=draw(st.integers(0, 700))),
                seq=number,
                kind=draw(st.sampled_from(["main", "keepalive"])),
                model=model,
                status=draw(st.sampled_from([200, 200, 529])),
                usage=draw(st.sampled_from([usage, usage, usage, Usage()])),
                facts=draw(st.sampled_from([None, None, {"since": ["x"]}, {"speed": "fast"}, {"service": "batch"}])),
            )
        )
    return made


@settings(max_examples=60, deadline=None)
@given(calls())
def test_sessions_and_breakdowns_are_the_totals_of_an_audit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Call]
) -> None:
    prices = open_prices()
    with Store.open(tmp_path_factory.mktemp("store") / f"{next(_names)}.db") as store:
        store.add(rows)
        found = summary.sessions(store, prices)
        broken = summary.breakdown(store, prices, "none")
    assert {session.trace for session in found} == {row.trace for row in rows}
    for session in found:
        own = [row for row in rows if row.trace == session.trace]
        result = audit(own, load("anthropic"), lambda one: None)
        # Calls with unknown usage are in no token sum here; their output is, in an audit, in the dollars.
        known = [one for one in result.calls if one.call.usage.read_tokens is not None]
        whole = totals(known, Money(known, prices)).whole
        assert (session.calls, session.cost.calls) == (len(own), whole.calls)
        assert (session.cost.input_tokens, session.cost.read_tokens) == (whole.input_tokens, whole.read_tokens)
        assert session.cost.equivalents == pytest.approx(whole.equivalents, abs=Decimal("1e-9"))
        assert session.cost.usd == pytest.approx(whole.usd, abs=Decimal("1e-12"))
        assert session.cost.unpriced == whole.calls - whole.priced_calls
        assert (session.hit_ratio is None) == (whole.hit_ratio is None)
        assert session.hit_ratio == pytest.approx(whole.hit_ratio, abs=1e-6)
    all_sessions = summary.total(session.cost for session in found)
    for costs in broken.values():
        assert summary.total(costs.values()) == pytest.approx(all_sessions) or _same(
            summary.total(costs.values()), all_sessions
        )


def _same(one: summary.Cost, other: summary.Cost) -> bool:
    exact = ("calls", "input_tokens", "read_tokens", "write_tokens", "unpriced")
    money = abs(one.usd - other.usd) < Decimal("1e-9") and abs(one.equivalents - other.equivalents) < Decimal("1e-6")
    return money and all(getattr(one, name) == getattr(other, name) for name in exact)


def test_a_session_in_fast_mode_costs_what_an_audit_says(tmp_path: Path, prices: PriceList) -> None:
    calls = [replace(call, model="claude-opus-4-8", facts={"speed": "fast"}) for call in io.read(FOURTEEN)]
    usual = [replace(call, trace="usual", facts=None) for call in calls]
    with Store.open(tmp_path / "a.db") as store:
        store.add([*calls, *usual])
        found = {one.trace: one.cost.usd for one in summary.sessions(store, prices)}
        days = summary.breakdown(store, prices, "none")["day"]
    result = audit(calls, load("anthropic"), lambda one: None)
    assert found["fourteen"] == totals(result.calls, Money(result.calls, prices)).whole.usd
    assert found["fourteen"] > found["usual"]
    assert summary.total(days.values()).usd == sum(found.values())


def test_causes_are_those_of_calls_that_paid_again_and_the_rest_is_named(tmp_path: Path, prices: PriceList) -> None:
    ruleset = load("anthropic")
    with Store.open(tmp_path / "a.db") as store:
        store.add(io.read(FOURTEEN))
        assert list(summary.breakdown(store, prices, ruleset.digest)["cause"]) == ["not judged"]
        result = audit(
            store.calls(), ruleset, lambda one: None if one.call.key is None else store.request(one.call.key)
        )
        store.save_outcomes(ruleset.digest, outcome_rows(result))
        found = summary.breakdown(store, prices, ruleset.digest)["cause"]
    expected = {
        name: (each.calls, each.tokens)
        for name, each in totals(result.calls, Money(result.calls, prices)).by_cause.items()
    }
    assert {name: (each.calls, each.lost_tokens) for name, each in found.items() if each.lost_tokens} == {
        name: one for name, one in expected.items() if name != "new_content"
    }
    assert found["nothing paid again"].calls == 7


def test_a_sum_reaches_no_tier_that_no_call_reached(tmp_path: Path, prices: PriceList) -> None:
    with Store.open(tmp_path / "a.db") as store:
        store.add(io.read(FOURTEEN))
        (session,) = summary.sessions(store, prices)
    assert session.cost.input_tokens > 200_000
    assert (session.cost.equivalents, session.cost.usd) == (Decimal("381701.0"), Decimal("1.208103"))
    assert session.model == "claude-sonnet-4-5"


def test_the_latest_sessions_are_summed_up_alike(tmp_path: Path, prices: PriceList) -> None:
    rows = [
        replace(call, trace=f"{number}", started_at=(call.started_at or START) + timedelta(days=number))
        for number in range(5)
        for call in io.read(FOURTEEN)
    ]
    with Store.open(tmp_path / "a.db") as store:
        store.add(rows)
        assert summary.latest(store, prices, 3) == summary.sessions(store, prices)[:3]
        assert [one.trace for one in summary.latest(store, prices, 9)] == ["4", "3", "2", "1", "0"]


def test_tokens_paid_again_and_hits(tmp_path: Path) -> None:
    ruleset = load("anthropic")
    with Store.open(tmp_path / "a.db") as store:
        store.add(io.read(FOURTEEN))
        assert summary.lost(store, ruleset.digest) == {}
        result = audit(
            store.calls(), ruleset, lambda one: None if one.call.key is None else store.request(one.call.key)
        )
        store.save_outcomes(ruleset.digest, outcome_rows(result))
        assert summary.lost(store, ruleset.digest) == {"fourteen": 197_650}
        assert summary.spark(store, "fourteen")[:3] == [0.0, 0.85, pytest.approx(0.8696, abs=1e-4)]
