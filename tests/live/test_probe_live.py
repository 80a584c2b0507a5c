"""The probes against hosted APIs: run with `pytest tests/live --live` and a key in the environment. They cost money.

CACHEWRIGHT_LIVE_MODEL_ANTHROPIC (…_OPENAI, …_DEEPSEEK) names the model; each test spends at most 0.50 USD.
"""

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import inside
import pytest

pytestmark = pytest.mark.live

MODELS = {"anthropic": "claude-haiku-5-5", "openai": "gpt-6-luna", "deepseek": "deepseek-flash"}
BUDGET = ("--yes", "--budget", "0.50", "--json")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=MODELS)
def hosted_api(request: pytest.FixtureRequest) -> list[str]:
    name = str(request.param)
    if not os.environ.get(f"{name.upper()}_API_KEY"):
        pytest.skip(f"{name.upper()}_API_KEY is not set")
    return ["--target", name, "--model", os.environ.get(f"CACHEWRIGHT_LIVE_MODEL_{name.upper()}", MODELS[name])]


@pytest.fixture
def cachewright(tmp_path: Path) -> Run:
    own = {"XDG_DATA_HOME": f"{tmp_path / 'data'}", "XDG_CACHE_HOME": f"{tmp_path / 'cache'}"}
    return partial(inside.cachewright, tmp_path, {**os.environ, **own})


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_four(cachewright: Run, hosted_api: list[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The lake is cold in winter and warm in summer. " * 600)
    done = cachewright("probe", "four", "notes.txt", *hosted_api, *BUDGET, "--out", "run.jsonl")
    *requests, verdict = rows(done)
    assert all(row["complete"] for row in requests), done.stderr
    assert verdict["verdict"] in ("confirmed", "refuted", "unconfirmed")
    assert all(row["cost_usd"] is not None for row in requests)
    assert cachewright("audit", "run.jsonl.trace.jsonl", "--no-store").returncode == 0


def test_fanout(cachewright: Run, hosted_api: list[str]) -> None:
    found = rows(cachewright("probe", "fanout", *hosted_api, *BUDGET))[-1]
    assert len(found["table"]) == 4


def test_quick_rules(cachewright: Run, hosted_api: list[str]) -> None:
    only = ("--only", "breakpoints", "--only", "minimum", "--only", "lookback") if "anthropic" in hosted_api else ()
    done = cachewright("probe", "rules", *hosted_api, *BUDGET, *only, "--out", "run.jsonl")
    claims = [row for row in rows(done) if "claim" in row]
    assert claims and all(row["finding"] in ("confirmed", "refuted", "inconclusive") for row in claims)
    assert cachewright("probe", "diff", "run.jsonl").returncode in (0, 1)
