"""Calls of other providers than Anthropic: each under its own provider's rules, or, without any, by its usage alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def _row(seq: int, start: str, cached: int, provider: str = "openai", model: str = "gpt-6-sol", said: int = 1) -> Json:
    turns = [{"role": "user", "content": f"question {n}"} for n in range(said)]
    request = {"model": model, "messages": [{"role": "system", "content": "Be brief."}, *turns]}
    usage = {"prompt_tokens": 50_000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "seq": seq,
        "trace": provider,
        "provider": provider,
        "started_at": f"2026-11-01T{start}Z",
        "request": request,
        "response": {"usage": usage},
    }


def _written(folder: Path, rows: Sequence[Json]) -> Path:
    trace = folder / "calls.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return trace


def test_no_cause_is_told_without_rules(tmp_path: Path, audit: Callable[..., Json]) -> None:
    cached = [(1, "10:00:00", 0), (2, "10:01:00", 49_920), (3, "10:20:00", 0)]
    report = audit(_written(tmp_path, [_row(*one, provider="someone") for one in cached]))
    assert [call["verdict"] for call in report["calls"]] == ["cold_write", "hit", "miss"]
    lost = report["calls"][2]["diagnosis"]
    assert (lost["cause"], lost["status"], lost["ruled_out"], lost["policy"]) == ("unknown", "possible", [], None)
    assert "no rules are known for provider 'someone'" in " ".join(lost["evidence"])
    assert [call["basis"] for call in report["calls"]] == ["usage"] * 3
    assert any("someone" in warning for warning in report["warnings"])


def test_each_call_is_judged_by_its_own_providers_rules(tmp_path: Path, audit: Callable[..., Json]) -> None:
    rows = [
        _row(1, "10:00:00", 0),
        _row(2, "10:00:30", 0, "deepseek", "deepseek-flash"),
        _row(3, "10:01:00", 49_920),
        _row(4, "10:01:30", 49_984, "deepseek", "deepseek-flash"),
        _row(5, "10:20:00", 0),
    ]
    report = audit(_written(tmp_path, rows))
    assert [call["verdict"] for call in report["calls"]] == ["cold_write", "cold_write", "hit", "hit", "miss"]
    lost = report["calls"][4]["diagnosis"]
    assert (lost["cause"], lost["policy"]) == ("provider_side", None), "a best-effort cache missed: nobody's fault"
    assert [one["cause"] for one in lost["ruled_out"]][:1] == ["ttl_expired"], "19 minutes: entries live for 30"
    assert not report["warnings"]
    assert report["ruleset"]["provider"] == "openai+deepseek"


def test_a_forced_ruleset_judges_every_call(tmp_path: Path, audit: Callable[..., Json]) -> None:
    report = audit(_written(tmp_path, [_row(1, "10:00:00", 0, "my-gateway")]), "--rules", "openai")
    assert (report["ruleset"]["provider"], report["warnings"]) == ("openai", [])


def test_cached_tokens_cost_what_each_provider_says(tmp_path: Path, audit: Callable[..., Json]) -> None:
    """49,920 of 50,000 tokens read and 10 of output, in dollars per million (prices of November 2026)."""
    cases = (
        ("openai", "gpt-6-sol", "0.20", "2", "10"),
        ("openai", "gpt-6.1-sol", "0.10", "2", "10"),
        ("openai", "gpt-5.1", "0.125", "1.25", "10"),
        ("deepseek", "deepseek-v4-pro", "0.022", "0.66", "1.98"),
    )
    for provider, model, read, plain, output in cases:
        report = audit(_written(tmp_path, [_row(1, "12:00:00", 49_920, provider, model)]))
        want = (49_920 * float(read) + 80 * float(plain) + 10 * float(output)) / 1e6
        assert abs(float(report["totals"]["cost_usd"]) - want) < 1e-9, (model, report["totals"])
