"""Calls of a provider that the ruleset is not about: their usage is reported, their causes are not guessed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def _row(seq: int, start: str, cached: int) -> Json:
    request = {"model": "gpt-6-sol", "messages": [{"role": "system", "content": "Be brief."}]}
    usage = {"prompt_tokens": 50_000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "seq": seq,
        "provider": "openai",
        "started_at": f"2026-11-01T{start}Z",
        "request": request,
        "response": {"usage": usage},
    }


def test_no_cause_is_told_by_anothers_rules(tmp_path: Path, audit: Callable[..., Json]) -> None:
    trace = tmp_path / "openai.jsonl"
    rows = [_row(1, "10:00:00", 0), _row(2, "10:01:00", 49_920), _row(3, "10:20:00", 0)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = audit(trace)
    assert [call["verdict"] for call in report["calls"]] == ["cold_write", "hit", "miss"]
    lost = report["calls"][2]["diagnosis"]
    assert (lost["cause"], lost["status"], lost["ruled_out"], lost["policy"]) == ("unknown", "possible", [], None)
    assert "no rules are known for provider 'openai'" in " ".join(lost["evidence"])
    assert [call["basis"] for call in report["calls"]] == ["usage"] * 3
    assert any("openai" in warning for warning in report["warnings"])
