"""The trace generators: legal, seeded, true by the oracle; and the benchmark's sessions keep the 14 rows' numbers."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import generate
import naive
import talk

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]


def usage(row: Json) -> Json:
    found: Json = row["response"]["usage"]
    return found


def test_random_traces_are_seeded_legal_and_reach_all_outcomes() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(40):
        rows = generate.random_trace(Random(seed), 25)
        assert rows == generate.random_trace(Random(seed), 25) == json.loads(json.dumps(rows))
        for row in rows:
            assert_legal(row)
            if row["status"] < 400:
                seen = usage(row)
                outcomes["read"] += seen["cache_read_input_tokens"] > 0
                outcomes["5m"] += seen["cache_creation"]["ephemeral_5m_input_tokens"] > 0
                outcomes["1h"] += seen["cache_creation"]["ephemeral_1h_input_tokens"] > 0
                outcomes["mixed"] += 0 not in seen["cache_creation"].values()
                outcomes["below"] += seen["cache_read_input_tokens"] + seen["cache_creation_input_tokens"] == 0
            outcomes["failed"] += row["status"] >= 400
    assert all(outcomes[name] >= 10 for name in ("read", "5m", "1h", "mixed", "below", "failed")), outcomes


def assert_legal(row: Json) -> None:
    """At most 4 markers, hours first, none where none may stand; a known token count for each block."""
    blocks = naive.blocks_of(row)
    lifetimes = [block.ttl for block in blocks if block.ttl is not None]
    automatic = row["request"].get("cache_control")
    assert len(lifetimes) + bool(automatic) <= generate.MAX_MARKS
    assert all(block.markable for block in blocks if block.ttl is not None)
    lifetimes += [automatic["ttl"]] if automatic else []
    assert lifetimes == sorted(lifetimes)  # "1h" sorts before "5m"
    if automatic:
        target = [block for block in blocks if block.markable][-1]
        assert target.ttl in (None, automatic["ttl"])
    assert all(message["content"] for message in row["request"]["messages"])


def test_healthy_traces_read_all_that_the_call_before_left() -> None:
    resumed = 0
    for seed in range(40):
        left: dict[str, int] = {}
        for row in generate.healthy_trace(Random(seed), 25):
            seen = usage(row)
            if row["agent"] in left:
                assert seen["cache_read_input_tokens"] == left[row["agent"]], (seed, row["id"])
                resumed += left[row["agent"]] > 0
            left[row["agent"]] = seen["cache_read_input_tokens"] + seen["cache_creation_input_tokens"]
            assert_legal(row)
    assert resumed > 400


def test_minimum_is_that_of_the_model() -> None:
    assert talk.minimum({"request": {"model": "claude-opus-5"}}) == 512


def test_sessions_of_the_benchmark_keep_the_fourteen_rows_numbers(tmp_path: Path) -> None:
    out = tmp_path / "big.jsonl"
    script = ROOT / "tests" / "bench" / "generate.py"
    subprocess.run([sys.executable, str(script), "--sessions", "12", "--out", str(out)], check=True)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12 * 14
    assert [row["started_at"] for row in rows] == sorted(row["started_at"] for row in rows)
    assert 12 * 300_000 < out.stat().st_size < 12 * 400_000
    for row, seen in zip(rows, naive.replay(rows, min_tokens=1024), strict=True):
        reported = usage(row)["cache_read_input_tokens"], usage(row)["cache_creation_input_tokens"]
        assert (seen["read"], seen["write_5m"]) == reported, row["id"]
