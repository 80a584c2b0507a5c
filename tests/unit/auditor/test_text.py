"""The text report of a trace too long to list."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from auditor.audit import audit
from auditor.money import Money
from auditor.pricing import PriceList
from auditor.text import MOST_MISSES, render, shown
from auditor.totals import totals
from localmodel.rules.load import load
from traces import io

TRACE = Path(__file__).resolve().parents[3] / "traces" / "recorded" / "fourteen" / "calls.jsonl"


def _sessions(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        for line in TRACE.read_text().splitlines():
            row = json.loads(line)
            yield row | {"trace": f"run-{number}", "key_fp": f"key-{number}"}


@pytest.fixture
def report(tmp_path: Path) -> str:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in _sessions(4)))

    def body_of(audited: object) -> None:
        return None

    result = audit(io.read(path), load("anthropic"), body_of)
    money = Money(result.calls, PriceList(lambda provider, model: (), None))
    return shown(render(result, totals(result.calls, money), [], "long.jsonl"), 100)


def test_every_cause_is_explained_in_few_examples(report: str) -> None:
    heads = [line for line in report.splitlines() if line.startswith("  call ")]
    assert 0 < len(heads) <= MOST_MISSES
    for cause in ("tools_changed", "ttl_expired", "parameter_changed", "beyond_lookback", "not_yet_readable"):
        assert any(cause in head for head in heads), cause
    assert "more of these causes" in report


def test_calls_of_several_traces_are_named_by_their_trace(report: str) -> None:
    assert "call run-0:5 " in " ".join(report.split())
