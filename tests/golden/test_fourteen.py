"""The 14-row trace: every number of its expected.json by computation, and the report as bytes."""

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path("traces/recorded/fourteen")
EXPECTED = json.loads((Path(__file__).parents[2] / FOLDER / "expected.json").read_text())
BODIES = EXPECTED["with_bodies"]

Json = dict[str, Any]


@pytest.fixture
def report(audit: Callable[..., Json]) -> Json:
    return audit(FOLDER / "calls.jsonl")


def diagnosis(report: Json, row: int) -> Json:
    found: Json = report["calls"][row - 1]["diagnosis"]
    assert report["calls"][row - 1]["seq"] == row
    return found


def what_if(report: Json, policy: str) -> Json:
    (found,) = (row for row in report["what_if"] if row["policy"] == policy)
    return dict(found)


def alone(report: Json, policy: str) -> dict[int, Json]:
    """Read and written tokens of the rows that a policy changes, by row."""
    numbers = {call["id"]: call["seq"] for call in report["calls"]}
    return {
        numbers[call["id"]]: {"write": call["write_tokens"], "read": call["read_tokens"]}
        for call in what_if(report, policy)["changed"]
    }


def saving(report: Json, policy: str) -> Decimal:
    return Decimal(what_if(report, policy)["saving_equivalents"])


def test_totals(report: Json) -> None:
    totals, expected = report["totals"], EXPECTED["totals"]
    for name in ("calls", "input_tokens", "write_tokens", "read_tokens"):
        assert totals[name] == expected[name]
    assert round(totals["hit_ratio"], 4) == expected["hit_ratio"]
    assert Decimal(totals["input_equivalents"]) == Decimal(expected["input_equivalents"])
    assert (totals["uncached_tokens"], totals["unknown_calls"], totals["failed_calls"]) == (0, 0, 0)


def test_the_rules_reproduce_every_bill(report: Json) -> None:
    assert [call["agrees"] for call in report["calls"]] == [True] * 14
    for call in report["calls"]:
        assert call["predicted"] == {name: call[name] for name in ("read_tokens", "write_tokens")}


def test_only_the_broken_rows_lost_tokens(report: Json) -> None:
    lost = {call["seq"]: call["diagnosis"]["lost_tokens"] for call in report["calls"] if call["diagnosis"]}
    assert lost == {5: 32_800, 7: 36_150, 9: 31_800, 10: 1_500, 11: 34_800, 12: 0, 13: 30_300, 14: 30_300}
    verdicts = {call["seq"]: call["verdict"] for call in report["calls"]}
    assert {row for row, verdict in verdicts.items() if verdict == "hit"} == {2, 3, 4, 6, 8, 12}
    assert (verdicts[1], verdicts[5], verdicts[7], verdicts[9]) == ("cold_write", "miss", "miss", "partial_miss")


def test_row_5_a_tool_was_inserted(report: Json) -> None:
    expected, found = BODIES["5"], diagnosis(report, 5)
    assert {name: found[name] for name in ("cause", "change", "path")} == {
        name: expected[name] for name in ("cause", "change", "path")
    }
    assert found["status"] == "established" and found["first_change"]["token_offset"] == 3_000
    changed = alone(report, "stable_tools")
    assert changed[5] == {name: expected["alone"][name] for name in ("write", "read")}
    assert saving(report, "stable_tools") == Decimal(expected["alone"]["saving_equivalents"])


def test_row_7_the_entry_expired(report: Json) -> None:
    expected, found = BODIES["7"], diagnosis(report, 7)
    assert found["cause"] == expected["cause"]
    midnight = datetime.fromisoformat(report["calls"][0]["started_at"])
    for name in ("expired_at", "keepalive_at"):
        assert f"0{datetime.fromisoformat(found['facts'][name]) - midnight}" == expected[name]
    assert alone(report, "keep_alive") == {7: {name: expected["alone"][name] for name in ("write", "read")}}
    assert saving(report, "keep_alive") == Decimal(expected["alone"]["saving_equivalents"])
    assert what_if(report, "keep_alive")["calls"] == 15


def test_rows_9_and_10_the_tool_choice_changed(report: Json) -> None:
    changed = alone(report, "keep_tool_choice_auto")
    for row in (9, 10):
        expected, found = BODIES[f"{row}"], diagnosis(report, row)
        assert (found["cause"], found["parameter"]) == (expected["cause"], expected["parameter"])
        assert changed[row] == expected["alone"]
    assert set(changed) == {9, 10}
    assert saving(report, "keep_tool_choice_auto") == Decimal(BODIES["10"]["saving_equivalents_9_and_10"])
    assert what_if(report, "keep_tool_choice_auto")["quality_risk"]


def test_row_10_reconnects_to_the_entry_of_row_8(report: Json) -> None:
    eighth, tenth = report["calls"][7], report["calls"][9]
    assert tenth["read_tokens"] == eighth["read_tokens"] + eighth["write_tokens"] == 39_150
    assert diagnosis(report, 10)["reference"] == report["calls"][8]["id"]
    assert BODIES["10"]["note"] == "restored; reconnects to the entry of row 8"


def test_row_11_is_beyond_the_lookback(report: Json) -> None:
    expected, found = BODIES["11"], diagnosis(report, 11)
    assert found["cause"] == expected["cause"]
    assert found["facts"] == {name: expected[name] for name in ("distance", "limit")}
    for fix in ("mark_previous_endpoint", "merge_blocks"):  # the two ways out, each alone
        assert alone(report, fix) == {11: {name: expected["alone"][name] for name in ("write", "read")}}
        assert saving(report, fix) == Decimal(expected["alone"]["saving_equivalents"])
    assert found["policy"] == "mark_previous_endpoint", "the other one is an alternative and in no total"
    assert "merge_blocks" not in report["what_if"][-1]["policies"]


def test_rows_12_to_14_started_together(report: Json) -> None:
    expected = BODIES["12-14"]
    for row in (12, 13, 14):
        assert diagnosis(report, row)["cause"] == expected["cause"]
    for row in (13, 14):
        (also,) = diagnosis(report, row)["also"]
        assert also["cause"] == "no_breakpoint"
        assert also["evidence"][0].startswith(expected["also"])
        assert diagnosis(report, row)["reference"] == report["calls"][11]["id"]
    changed = alone(report, "shared_endpoint_stagger")
    unchanged = {name: report["calls"][11][f"{name}_tokens"] for name in ("write", "read")}
    assert {f"{row}": changed.get(row, unchanged) for row in (12, 13, 14)} == expected["alone"]
    assert saving(report, "shared_endpoint_stagger") == Decimal(expected["saving_equivalents"])


def test_all_fixes(report: Json) -> None:
    row, expected = report["what_if"][-1], EXPECTED["all_fixes"]
    assert row["policy"] == "all"
    for name in ("calls", "write_tokens", "read_tokens"):
        assert row[name] == expected[name]
    assert round(row["hit_ratio"], 4) == expected["hit_ratio"]
    assert Decimal(row["input_equivalents"]) == Decimal(expected["input_equivalents"])
    assert set(row["policies"]) == {
        *("stable_tools", "keep_tool_choice_auto", "mark_previous_endpoint", "shared_endpoint_stagger", "keep_alive")
    }


def test_forced_tool_paths(report: Json) -> None:
    assert what_if(report, "keep_tool_choice_auto")["paths"] == EXPECTED["forced_tool_paths_rows_9_10"]


def test_each_saving_is_shared_out_over_its_rows(report: Json) -> None:
    for row in report["what_if"]:
        shares = [call["diagnosis"] for call in report["calls"] if call["diagnosis"]]
        parts = [Decimal(one["avoidable_equivalents"]) for one in shares if one["policy"] == row["policy"]]
        assert not parts or sum(parts) == Decimal(row["saving_equivalents"])


# Facts of each sentence in expected.json, by row: all of the first stand in the evidence or in what is ruled out, and
# the causes that remain are exactly the last.
USAGE_ONLY: dict[int, tuple[list[str], set[str]]] = {
    5: (
        ["35 s after the start of row 4", "expiry alone is ruled out", "1,850 where rounds grow 1,500", "extra 350",
         "tools, system, messages or configuration", "totals cannot place it"],
        {"tools_changed", "system_changed", "parameter_changed", "scope_changed", "provider_side", "evicted"},
    ),
    7: (["335 s since row 6 started", "start-based 300 s lifetime and no other refresh, expiry suffices",
         "185 s since it ended"], set()),
    9: (
        ["7,350", "tools+system boundary", "350 above the 7,000", "rows before row 5 imply",
         "whether the 350 is in tools or system, and why messages missed, stays open"],
        {"history_rewritten", "parameter_changed", "beyond_lookback", "no_breakpoint", "provider_side"},
    ),
    10: (
        ["full prefix of row 8 (39,150) matches again", "older entry was still there",
         "temporary configuration change or a temporary history rewrite both explain it"],
        {"parameter_changed", "history_rewritten", "provider_side"},
    ),
    11: (
        ["stops again at the tools+system boundary", "rows 12-14 read this row's full prefix",
         "check history, configuration, and the lookback distance of the new blocks"],
        {"history_rewritten", "parameter_changed", "beyond_lookback", "no_breakpoint", "provider_side"},
    ),
}  # fmt: skip


@pytest.fixture
def usage_report(audit: Callable[..., Json]) -> Json:
    return audit(FOLDER / "usage.csv")


@pytest.mark.parametrize("row", USAGE_ONLY)
def test_what_usage_alone_establishes(usage_report: Json, row: int) -> None:
    facts, remaining = USAGE_ONLY[row]
    found = diagnosis(usage_report, row)
    said = " | ".join([*found["evidence"], *(text for out in found["ruled_out"] for text in out["evidence"])])
    for fact in facts:
        assert fact in said
    assert {one["cause"] for one in found["also"]} == remaining
    assert (found["cause"], found["status"]) == (("ttl_expired", "likely") if row == 7 else ("unknown", "possible"))


def test_usage_alone_accuses_no_other_row_and_claims_no_money(usage_report: Json) -> None:
    diagnosed = {f"{call['seq']}" for call in usage_report["calls"] if call["diagnosis"]}
    assert diagnosed == set(EXPECTED["usage_only"])
    assert all(call["basis"] == "usage" and call["predicted"] is None for call in usage_report["calls"])
    assert all(Decimal(row["saving_equivalents"]) == 0 for row in usage_report["what_if"])
    for row in USAGE_ONLY:
        assert not any(diagnosis(usage_report, row)[name] for name in ("first_change", "path", "parameter"))
        assert not Decimal(diagnosis(usage_report, row)["avoidable_equivalents"] or 0)


def test_both_files_have_the_same_totals(report: Json, usage_report: Json) -> None:
    for name in ("calls", "input_tokens", "write_tokens", "read_tokens", "hit_ratio", "input_equivalents"):
        assert report["totals"][name] == usage_report["totals"][name]


@pytest.mark.parametrize("name", ["calls.jsonl", "usage.csv"])
def test_the_report_as_bytes(cachewright: Callable[..., str], golden: Callable[[str, bytes], None], name: str) -> None:
    """Text at 100 columns, the width where there is no terminal, and JSON."""
    stem = f"fourteen/{name.partition('.')[0]}"
    path = (FOLDER / name).as_posix()
    golden(f"{stem}.txt", cachewright("audit", path, "--no-store").encode())
    golden(f"{stem}.json", cachewright("audit", path, "--no-store", "--json").encode())
