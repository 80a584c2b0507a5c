"""Public reports of bills and files that tools got wrong, rebuilt in a few rows: each gets the right bill.

Each test is named for its row of the table; numbers are the reports', texts our own. Rows with recorded cases of their
own are in test_cases.py and test_cases_bill.py; a store made by an older version (B34): unit/auditor/test_store.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
Audit = Callable[..., Json]

CLAUDE = {"input": "3", "cache_read": "0.30", "cache_write_5m": "3.75", "cache_write_1h": "6", "output": "15"}
OPENAI = {"input": "2", "cache_read": "0.50", "output": "8"}
TIME = "2026-08-22T10:00:0{}.000Z"


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    usual: Json = {"currency": "USD", "per": 1_000_000}
    path.write_text(json.dumps({"claude-test": CLAUDE | usual, "gpt-test": OPENAI | usual}))
    return path


def rows(path: Path, *values: Json) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def native(provider: str, api: str, model: str, usage: Json) -> Json:
    made: Json = {"provider": provider, "api": api, "started_at": TIME.format(0), "request": {"model": model}}
    return made | {"response": {"model": model, "usage": usage}}


def answered(uuid: str, name: str | None, read: int, write: int, **rest: Any) -> Json:
    """A row of a Claude Code session."""
    usage: Json = {"input_tokens": 3, "cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    message: Json = {"model": "claude-test", "role": "assistant", "content": [], "stop_reason": "end_turn"}
    message |= {"usage": usage | {"output_tokens": 10}} | ({"id": name} if name else {})
    made: Json = {"type": "assistant", "uuid": uuid, "parentUuid": None, "sessionId": "s", "isSidechain": False}
    return made | {"timestamp": TIME.format(1), "version": "2.1.100", "message": message} | rest


def totals(audit: Audit, path: Path, prices: Path) -> Json:
    found: Json = audit(path, "--prices", prices)["totals"]
    return found


def test_b05_the_same_bill_from_the_providers_own_and_the_gateways_usage(
    audit: Audit, tmp_path: Path, prices: Path
) -> None:
    cached: Json = {"cache_creation_input_tokens": 12_000, "cache_read_input_tokens": 0}
    own = native("anthropic", "messages", "claude-test", {"input_tokens": 3, "output_tokens": 500} | cached)
    usage: Json = {
        "prompt_tokens": 12_003,
        "completion_tokens": 500,
        "prompt_tokens_details": {"cached_tokens": 0},
    } | cached
    log: Json = {"id": "x", "trace_id": "t", "call_type": "acompletion", "status": "success", "model": "claude-test"}
    log |= {"custom_llm_provider": "anthropic", "prompt_tokens": 12_003, "completion_tokens": 500}
    log |= {"startTime": 1_787_392_800.0, "endTime": 1_787_392_803.0, "metadata": {"usage_object": usage}}
    log |= {"messages": [{"role": "user", "content": "x"}], "response": {"id": "y", "usage": usage}}
    bills = [totals(audit, rows(tmp_path / name, row), prices) for name, row in (("a.jsonl", own), ("b.jsonl", log))]
    for bill in bills:
        assert bill["input_tokens"] == 3 + 12_000 + 0 == bill["uncached_tokens"] + bill["write_tokens"]
        assert Decimal(bill["cost_usd"]) == (3 * 3 + 12_000 * Decimal("3.75") + 500 * 15) / 1_000_000


def test_b06_cached_tokens_are_part_of_the_prompt(audit: Audit, tmp_path: Path, prices: Path) -> None:
    usage: Json = {"prompt_tokens": 17_111, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 17_102}}
    bill = totals(audit, rows(tmp_path / "a.jsonl", native("openai", "chat", "gpt-test", usage)), prices)
    assert (bill["uncached_tokens"], bill["read_tokens"]) == (9, 17_102)
    assert Decimal(bill["cost_usd"]) == (9 * 2 + 17_102 * Decimal("0.5")) / 1_000_000


def test_b14_reasoning_is_part_of_the_output(audit: Audit, tmp_path: Path, prices: Path) -> None:
    usage: Json = {"input_tokens": 20_793, "output_tokens": 2_315, "total_tokens": 23_108}
    usage |= {"output_tokens_details": {"reasoning_tokens": 2_303}, "input_tokens_details": {"cached_tokens": 0}}
    bill = totals(audit, rows(tmp_path / "a.jsonl", native("openai", "responses", "gpt-test", usage)), prices)
    assert bill["output_tokens"] == 2_315
    assert Decimal(bill["cost_usd"]) == Decimal(20_793 * 2 + 2_315 * 8) / 1_000_000


def test_b25_b33_sub_agents_count_once_and_summaries_never(audit: Audit, tmp_path: Path, prices: Path) -> None:
    agent = [answered(f"w{n}", f"msg_w{n}", 0, 1_000, isSidechain=True, agentId="f00") for n in range(2)]
    summary: Json = {"agentId": "f00", "totalTokens": 22_000, "usage": agent[1]["message"]["usage"]}
    told: Json = {"type": "user", "uuid": "r", "parentUuid": "w1", "sessionId": "s", "timestamp": TIME.format(2)}
    told |= {"message": {"role": "user", "content": []}, "toolUseResult": summary}
    rows(tmp_path / "p" / "s.jsonl", answered("a", "msg_a", 0, 4_000), *agent, told)
    rows(tmp_path / "p" / "s" / "subagents" / "agent-f00.jsonl", *agent)
    bill = totals(audit, tmp_path / "p", prices)
    assert (bill["calls"], bill["write_tokens"], bill["output_tokens"]) == (3, 4_000 + 2 * 1_000, 30)
    assert {kind: each["calls"] for kind, each in bill["by_kind"].items()} == {"main": 1, "subagent": 2}


def test_b26_copies_without_ids_are_not_counted_and_said(
    cachewright: Callable[..., str], tmp_path: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debug = answered("x", None, 0, 4_000)
    del debug["uuid"]
    path = rows(tmp_path / "s.jsonl", answered("a", "msg_a", 0, 4_000), debug)
    report = json.loads(cachewright("audit", path, "--json", "--no-store", "--prices", prices))
    assert report["totals"]["calls"] == 1
    assert "not counted" in json.dumps(report)


def test_b32_the_classes_stand_beside_each_other(
    cachewright: Callable[..., str], audit: Audit, tmp_path: Path, prices: Path
) -> None:
    usage: Json = {"input_tokens": 2_000, "cache_read_input_tokens": 500_000, "cache_creation_input_tokens": 25_000}
    path = rows(tmp_path / "a.jsonl", native("anthropic", "messages", "claude-test", usage | {"output_tokens": 0}))
    bill = totals(audit, path, prices)
    assert (bill["uncached_tokens"], bill["read_tokens"], bill["write_tokens"]) == (2_000, 500_000, 25_000)
    assert Decimal(bill["cost_usd"]) == (2_000 * 3 + 500_000 * Decimal("0.3") + 25_000 * Decimal("3.75")) / 1_000_000
    text = " ".join(cachewright("audit", path, "--no-store", "--prices", prices).split())
    assert "527,000 input tokens" in text and "25,000 written, 2,000 uncached" in text


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of its memory from /proc")
def test_c01_large_files_are_streamed(tmp_path: Path, prices: Path) -> None:
    """100 MB of snapshots and one row of 40 MB that holds usage, in less than three times its memory."""
    path = tmp_path / "s.jsonl"
    snapshot = {"type": "file-history-snapshot", "snapshot": {"x": "y" * 5_000_000}}
    with path.open("w") as file:
        for number in range(12):
            file.write(json.dumps(snapshot, separators=(",", ":")) + "\n")
            file.write(json.dumps(answered(f"a{number}", f"msg_{number}", 0, 4_000)) + "\n")
        file.write(json.dumps(answered("b", "msg_b", 0, 4_000, toolUseResult={"stdout": "y" * 40_000_000})) + "\n")
    script = "import sys; from tui.cli import main; main(['audit', *sys.argv[1:]], standalone_mode=False); "
    script += "print(open('/proc/self/status').read(), file=sys.stderr)"  # of this program alone, forked as it was
    command = [sys.executable, "-c", script, f"{path}", "--json", "--no-store", "--prices", f"{prices}"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[2])
    assert json.loads(done.stdout)["totals"]["calls"] == 13
    peak = next(int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("VmHWM:"))
    assert peak * 1024 < 120_000_000
