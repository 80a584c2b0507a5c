"""Cases about bills and damaged files, audited through the command line: each answers as its expected.json says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
Audit = Callable[..., Json]


class Case:
    """One folder of cases: its files, and what it expects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: Json = json.loads((folder / "expected.json").read_text())

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture
def case(shared: Path) -> Callable[[str], Case]:
    return lambda name: Case(shared / "cases" / name)


def by_id(report: Json) -> dict[str, Json]:
    return {call["id"]: call for call in report["calls"]}


def test_b01_b02_each_response_once(audit: Audit, case: Callable[[str], Case]) -> None:
    b01 = case("B01_B02")
    totals, expected = audit(b01 / "projects")["totals"], b01.expected
    names = {"calls": "calls", "input": "uncached_tokens", "cache_write": "write_tokens", "cache_read": "read_tokens"}
    for theirs, ours in (names | {"output": "output_tokens"}).items():
        assert totals[ours] == expected[theirs]
    for model, each in expected["by_model"].items():
        found = totals["by_model"][model]
        assert (found["calls"], found["output_tokens"]) == (each["calls"], each["output"])


def test_b07_b08_write_tiers(audit: Audit, case: Callable[[str], Case]) -> None:
    b07 = case("B07_B08")
    report = audit(b07 / "usage.jsonl", "--prices", b07 / "prices.json")
    costs, expected = {name: call["cost"] for name, call in by_id(report).items()}, b07.expected
    assert (costs["t1"]["amount"], costs["t1"]["flags"]) == (expected["t1"], [])
    assert (costs["t2"]["amount"], costs["t2"]["flags"]) == (expected["t2"]["cost"], ["write_tier_inferred"])
    for name in ("t3", "t4"):
        assert {side: costs[name][side] for side in ("low", "high")} == expected[name]
        assert (costs[name]["partial"], costs[name]["flags"]) == (True, ["write_tier_unknown"])
    totals = report["totals"]
    assert (totals["cost_low_usd"], totals["cost_high_usd"], totals["partial"]) == ("0.780144", "0.915144", True)


def test_b16_writes_are_a_slice_of_the_input(audit: Audit, case: Callable[[str], Case]) -> None:
    b16 = case("B16")
    calls = by_id(audit(b16 / "usage.jsonl", "--prices", b16 / "prices.json"))
    for name, expected in b16.expected.items():
        call = calls[name]
        found = {"uncached": call["uncached_tokens"], "read": call["read_tokens"], "write": call["write_tokens"]}
        assert found | {"cost_usd": call["cost"]["amount"]} == expected
        assert call["diagnosis"] is None, "rows without times say nothing of an order"


@pytest.mark.parametrize("name", ["response.json", "stream.sse"])
def test_b17_b18_hit_and_miss_fields(audit: Audit, case: Callable[[str], Case], name: str) -> None:
    b17 = case("B17_B18")
    (call,) = audit(b17 / name, "--prices", b17 / "prices.json")["calls"]
    found = {part: call[f"{part}_tokens"] for part in ("read", "uncached", "write", "output")}
    assert found | {"cost_usd": call["cost"]["amount"]} == b17.expected


def test_b22_b23_unknown_is_not_zero_and_not_the_neighbours(
    audit: Audit, case: Callable[[str], Case], cachewright: Callable[..., str]
) -> None:
    b22 = case("B22_B23")
    options = (b22 / "usage.jsonl", "--prices", b22 / "prices.json")
    report, expected = audit(*options), b22.expected
    costs = {name: call["cost"] for name, call in by_id(report).items()}
    for name in ("u1", "u2", "u4"):
        assert (costs[name]["amount"], costs[name]["flags"]) == (expected[name], [])
    assert costs["u3"] is expected["u3"] is None
    assert costs["u5"]["amount"] == expected["u5"]["cost"] and expected["u5"]["flag"] in costs["u5"]["flags"]
    totals = report["totals"]
    assert (totals["cost_usd"], totals["partial"]) == (expected["total_usd"], expected["partial"])
    assert totals["unpriced"] == expected["unpriced"]
    text = " ".join(cachewright("audit", "--no-store", *options).split())
    assert "$0.1370 with output (partial)" in text
    assert "no price known for model 'acme-coder-5.3-mini' (1 calls, 1,209,000 tokens)" in text


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_b27_usage_spread_over_a_stream(audit: Audit, case: Callable[[str], Case], name: str) -> None:
    b27 = case("B27")
    (call,) = audit(b27 / f"{name}.sse")["calls"]
    found = {
        "input": call["uncached_tokens"],
        "write": call["write_tokens"],
        "read": call["read_tokens"],
        "output": call["output_tokens"],
        "write_1h": call.get("write_1h_tokens"),
    }
    expected = b27.expected[name]
    assert {part: found[part] for part in expected} == expected


def test_c02_c05_every_common_damage(audit: Audit, case: Callable[[str], Case]) -> None:
    c02 = case("C02_C05")
    report, expected = audit(c02 / "s1.jsonl"), c02.expected
    totals = report["totals"]
    assert totals["calls"] - totals["unknown_calls"] == expected["calls_with_usage"]
    assert totals["unknown_calls"] == expected["usage_unknown"]
    names = {"input": "uncached_tokens", "write": "write_tokens", "read": "read_tokens", "output": "output_tokens"}
    for theirs, ours in names.items():
        assert totals[ours] == expected[theirs]
    raw = (c02 / "s1.jsonl").read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(raw) if byte == 10)]
    rejects = [row for row in report["rejected"] if not row["pending"]]
    assert [row["line"] for row in rejects] == [row["line"] for row in expected["rejects"]]
    assert [row["offset"] for row in rejects] == [starts[row["line"] - 1] for row in rejects]
    stub = rejects[1]
    recovered = raw[stub["offset"] + stub["length"] :].split(b"\n")[0]
    assert json.loads(recovered)["requestId"] == expected["rejects"][1]["recovered"]
    (pending,) = (row for row in report["rejected"] if row["pending"])
    assert pending["length"] == expected["pending_tail_bytes"]


def test_c06_records_made_locally_are_no_calls(audit: Audit, case: Callable[[str], Case]) -> None:
    c06 = case("C06")
    totals = audit(c06 / "s1.jsonl")["totals"]
    assert (totals["calls"], [*totals["by_model"]]) == (c06.expected["calls"], c06.expected["models"])


def test_f11_streams_with_and_without_usage(audit: Audit, case: Callable[[str], Case]) -> None:
    f11 = case("F11")
    for name, expected in f11.expected.items():
        (call,) = audit(f11 / f"{name}.sse")["calls"]
        if expected.get("usage", 0) is None:
            tokens = [call[f"{part}_tokens"] for part in ("input", "read", "write", "output")]
            assert (tokens, call["cost"], call["diagnosis"]) == ([None] * 4, None, None)
            assert (call["answer"], call["verdict"]) == (expected["status"], "unknown")
        else:
            assert {part: call[f"{part}_tokens"] for part in expected} == expected
    (unasked,) = audit(f11 / "no_usage.sse")["calls"]
    assert "include_usage" in unasked["note"]


def test_c06_the_entry_has_expired(cachewright: Callable[..., str], case: Callable[[str], Case]) -> None:
    c06 = case("C06")
    now = json.loads((c06 / "question.json").read_text())["now"]
    (row,) = json.loads(cachewright("now", c06 / "s1.jsonl", "--at", now, "--json"))["rows"]
    found = (row["state"], row["seconds_since_expiry"], row["next_input_tokens"])
    expected = c06.expected
    assert found == (expected["cache_state"], expected["seconds_since_expiry"], expected["next_rewrite_tokens_approx"])


def test_c08_days_by_zone(cachewright: Callable[..., str], case: Callable[[str], Case]) -> None:
    c08 = case("C08")
    for zone, days in c08.expected.items():
        options = ("audit", c08 / "usage.csv", "--no-store", "--tz", zone, "--json", "--by")
        found = json.loads(cachewright(*options, "day"))
        assert {row["day"]: row["input_tokens"] for row in found["rows"]} == days
        assert found["total"]["input_tokens"] == sum(days.values()) == 3600
        hours = [row["hour"] for row in json.loads(cachewright(*options, "hour"))["rows"]]
        assert len(hours) == 8, "all in hours of their own, the repeated one too"
        if zone == "Europe/Madrid":
            assert hours[2:4] == ["2026-10-25T02:00+0200", "2026-10-25T02:00+0100"]
