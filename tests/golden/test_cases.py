"""Cases of public bug reports, audited through the command line: each answers as its expected.json says."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
Audit = Callable[..., Json]

# The cases' words for a cause, in ours: a cause and the subclass of its change.
WORDS: dict[str, tuple[str, str | None]] = {
    "tools_reordered": ("tools_changed", "reordered"),
    "message_block_moved": ("history_rewritten", "moved"),
    "system_text_changed": ("system_changed", "date_or_clock"),
    "serialisation_only": ("tools_changed", "serialisation"),
    "ttl_expired": ("ttl_expired", None),
}


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


def pointer(path: str) -> str:
    """`messages[0].content[1]` as a JSON pointer."""
    return "/" + re.sub(r"\[(\d+)\]", r"/\1", path).replace(".", "/")


def diagnosis(report: Json, row: int) -> Json:
    (call,) = (call for call in report["calls"] if call["seq"] == row)
    assert call["diagnosis"] is not None
    return dict(call["diagnosis"])


def check(report: Json, expected: Json) -> Json:
    """What the answers to A03, A10, A12 and A14 have in common."""
    row = expected.get("call", 2)
    others = [call for call in report["calls"] if call["seq"] != row]
    assert not any(call["diagnosis"] for call in others)
    found = diagnosis(report, row)
    assert report["calls"][row - 1]["verdict"] == expected["verdict"]
    assert (found["cause"], found["change"], found["status"]) == (*WORDS[expected["cause"]], "established")
    assert found["path"] == found["first_change"]["path"] == pointer(expected["path"])
    assert "ttl_expired" not in [one["cause"] for one in found["also"]]
    assert "ttl_expired" in [one["cause"] for one in found["ruled_out"]]
    return found


def test_a03_a_block_moved(audit: Audit, case: Callable[[str], Case]) -> None:
    a03 = case("A03")
    report = audit(a03 / "calls.jsonl")
    found = check(report, a03.expected)
    assert found["first_change"]["moved_to"] == pointer(a03.expected["moved_to"])
    assert found["also"] == [], "one moved block, not a removal and an insertion"
    assert report["calls"][1]["read_tokens"] == 17_000, "up to the end of system"
    assert found["lost_tokens"] == 150_000


def test_a10_the_date_rolled_over(audit: Audit, case: Callable[[str], Case]) -> None:
    a10 = case("A10")
    expected = a10.expected
    found = check(audit(a10 / "calls.jsonl", "--prices", a10 / "prices.json"), expected)
    first = found["first_change"]
    assert (first["char_offset"], first["kind"]) == (expected["char_offset"], expected["subclass"])
    assert (first["before"], first["after"]) == ("Wed Jun 17", "Thu Jun 18")
    assert found["lost_tokens"] == expected["avoidable_rewrite_tokens"]
    assert found["avoidable_usd"] == expected["avoidable_cost_usd"]
    (evidence,) = (one["evidence"][0] for one in found["ruled_out"] if one["cause"] == "ttl_expired")
    assert evidence.startswith(f"{expected['gap_s']} s ") and f"{expected['ttl_s']} s" in evidence


def test_a12_tools_in_another_order(audit: Audit, case: Callable[[str], Case]) -> None:
    a12 = case("A12")
    found = check(audit(a12 / "calls.jsonl"), a12.expected)
    assert set(found["first_change"]["names"]) == set(a12.expected["moved"])
    assert (found["first_change"]["before"], found["first_change"]["after"]) == ("fs_find", "tracker_issue")
    assert "message" not in " ".join(found["evidence"]) and found["also"] == []


@pytest.fixture
def a14_calls(case: Callable[[str], Case], tmp_path: Path) -> Path:
    """The two bodies of A14 as calls, byte for byte, so that the order of keys survives."""
    a14 = case("A14")
    usage = json.loads((a14 / "usage.json").read_text())
    path = tmp_path / "a14.jsonl"
    with path.open("wb") as file:
        for number, start in ((1, 0), (2, usage["gap_s"])):
            row = {"provider": "anthropic", "started_at": f"2026-05-01T10:00:{start:02}Z", "seq": number}
            row |= {"response": {"usage": usage[f"call{number}"]}, "request": None}
            file.write(json.dumps(row).encode().replace(b"null", (a14 / f"request{number}.json").read_bytes()) + b"\n")
    return path


def test_a14_another_order_of_keys(audit: Audit, case: Callable[[str], Case], a14_calls: Path) -> None:
    found = check(audit(a14_calls), case("A14").expected)
    assert found["policy"] == "stable_serialisation"


def test_a14_compared_as_bodies(cachewright: Callable[..., str], case: Callable[[str], Case]) -> None:
    a14 = case("A14")
    found = json.loads(cachewright("diff", a14 / "request1.json", a14 / "request2.json", "--json"))
    assert (found["cause"], found["change"]) == WORDS[a14.expected["cause"]]
    assert found["first_change"]["path"] == pointer(a14.expected["path"])
    for name in ("first_byte_offset", "semantically_equal"):
        assert found[name] == a14.expected[name]


def test_a24_a_refused_request_is_no_miss(audit: Audit, case: Callable[[str], Case], tmp_path: Path) -> None:
    a24 = case("A24_A25_A46")
    response = json.loads((a24 / "r1.response.json").read_text())
    row = {"provider": "anthropic", "started_at": "2026-05-01T10:00:00Z", "status": response["status"]}
    row |= {"request": json.loads((a24 / "r1.json").read_text()), "response": response}
    served = {**row, "started_at": "2026-05-01T10:01:00Z", "status": 200}
    served["response"] = {"usage": {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 15}}
    path = tmp_path / "sent.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(served)}\n")
    report = audit(path)
    call, totals = report["calls"][0], report["totals"]
    assert (call["verdict"], call["diagnosis"], call["input_tokens"], call["read_tokens"]) == ("unknown",) + (None,) * 3
    assert "status 400" in call["note"]
    assert (totals["failed_calls"], totals["calls"], totals["hit_ratio"]) == (1, 1, 0.75)


RULES = """schema = 1
inherits = "anthropic"
[sources]
case = "the case's own minimums"
"""
MINIMUM = """[[min_tokens]]
models = ["{model}"]
value = {tokens}
status = "assumed"
checked = 2026-05-01
source = "case"
"""


def test_a26_minimum_breakpoint_or_working(audit: Audit, case: Callable[[str], Case], tmp_path: Path) -> None:
    a26 = case("A26")
    minimums = json.loads((a26 / "minimums.json").read_text())
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES + "".join(MINIMUM.format(model=name, tokens=least) for name, least in minimums.items()))
    report = audit(a26 / "calls.jsonl", "--rules", rules)
    for row, answer in a26.expected.items():
        call = report["calls"][int(row) - 1]
        if answer in ("below_minimum", "no_breakpoint"):
            assert call["verdict"] == "not_engaged", "never engaged is no miss"
            found = diagnosis(report, int(row))
            assert (found["cause"], found["lost_tokens"], found["status"]) == (answer, 0, "established")
        else:
            assert (call["verdict"], call["diagnosis"]) == (answer, None)
    assert diagnosis(report, 1)["facts"]["minimum"] == 4096
    assert "this model's minimum of 4,096" in diagnosis(report, 1)["evidence"][0]


def test_a38_a40_idle_break_and_no_bodies(audit: Audit, case: Callable[[str], Case]) -> None:
    a38 = case("A38_A40")
    report = audit(a38 / "calls.jsonl")
    assert {f"{call['seq']}" for call in report["calls"] if call["diagnosis"]} == set(a38.expected)
    second, fourth, sixth = (diagnosis(report, row) for row in (2, 4, 6))
    assert (second["cause"], second["status"]) == ("ttl_expired", "established")
    assert "history_rewritten" in [one["cause"] for one in second["ruled_out"]]
    assert (fourth["cause"], [one["cause"] for one in fourth["ruled_out"]]) == ("unknown", ["ttl_expired"])
    assert any("bodies were not recorded" in text for text in fourth["evidence"])
    assert (sixth["cause"], sixth["status"]) == ("ttl_expired", "likely")
    assert any("a change of text cannot be excluded" in text for text in sixth["evidence"])
    assert not Decimal(sixth["avoidable_equivalents"] or 0) and not Decimal(sixth["avoidable_usd"] or 0)


def test_a42_the_lifetime_counts_from_the_start(audit: Audit, case: Callable[[str], Case]) -> None:
    a42 = case("A42")
    report, expected = audit(a42 / "calls.jsonl"), a42.expected
    found = diagnosis(report, 2)
    assert (found["cause"], found["status"]) == (expected["2"]["cause"], "established")
    assert found["facts"]["gap_start_to_start_s"] == expected["2"]["gap_start_to_start_s"]
    assert f"only {expected['2']['gap_end_to_start_s']} s after that response ended" in found["evidence"][1]
    for row in (3, 4):
        assert report["calls"][row - 1]["verdict"] == expected[f"{row}"]
        assert report["calls"][row - 1]["diagnosis"] is None


def test_a43_parallel_cold_start(audit: Audit, case: Callable[[str], Case]) -> None:
    a43 = case("A43")
    report, expected = audit(a43 / "calls.jsonl", "--prices", a43 / "prices.json"), a43.expected
    assert [report["calls"][n]["verdict"] for n in (0, 4)] == [expected["1"], expected["5"]]
    assert diagnosis(report, 1)["lost_tokens"] == 0 and report["calls"][4]["diagnosis"] is None
    found = [diagnosis(report, row) for row in (2, 3, 4)]
    assert {expected[row] for row in "234"} == {"concurrent_cold_start"}
    assert {(one["cause"], one["status"], one["change"]) for one in found} == {
        ("not_yet_readable", "established", None)
    }
    assert sum(one["lost_tokens"] for one in found) == expected["avoidable_rewrite_tokens"]
    assert sum(Decimal(one["avoidable_usd"]) for one in found) == Decimal(expected["avoidable_cost_usd"])
    assert all("ttl_expired" in [out["cause"] for out in one["ruled_out"]] for one in found)


def test_b29_absent_null_and_zero(audit: Audit, case: Callable[[str], Case]) -> None:
    b29 = case("B29")
    report, expected = audit(b29 / "calls.jsonl"), b29.expected
    answers = {"unknown": "unknown", "cold_start": "cold_write", "hit": "hit", "miss_cause_unknown": "miss"}
    answers["usage_unknown"] = "unknown"
    for call in report["calls"]:
        assert call["verdict"] == answers[expected[f"{call['seq']}"]]
    diagnosed = {call["seq"]: call["diagnosis"] for call in report["calls"] if call["diagnosis"]}
    assert set(diagnosed) == {5} and (diagnosed[5]["cause"], diagnosed[5]["lost_tokens"]) == ("unknown", 0)
    assert [call["read_tokens"] for call in report["calls"]] == [None, 0, 58_368, None, 0, None]
    assert "usage not reported" in report["calls"][5]["note"] and "cached tokens" in report["calls"][3]["note"]
    totals, rate = report["totals"], expected["hit_rate"]
    assert (totals["unknown_calls"], totals["calls"] - totals["unknown_calls"]) == (
        rate["excluded_calls"],
        rate["known_calls"],
    )
    assert totals["hit_ratio"] == rate["token_weighted"]


def test_b31_the_hit_rate_is_weighted(audit: Audit, case: Callable[[str], Case]) -> None:
    b31 = case("B31")
    totals, expected = audit(b31 / "usage.csv")["totals"], b31.expected
    assert (totals["read_tokens"], totals["input_tokens"]) == (expected["read"], expected["total_input"])
    assert round(totals["hit_ratio"], 5) == expected["hit_rate"]
    assert totals["unknown_calls"] == expected["excluded_calls"]
