"""Conversations that write for five minutes and for an hour: only what was written for five is gone after ten."""

from datetime import UTC, datetime, timedelta

import pytest

from auditor.audit import audit
from auditor.records import Diagnosis
from localmodel.rules.book import Rulebook
from traces.schema import Call, Usage

START = datetime(2026, 6, 1, tzinfo=UTC)
Row = tuple[int, int, int, int]
"""Minutes since the start, and tokens read, written for five minutes, and for an hour."""


def last_diagnosis(*rows: Row) -> Diagnosis | None:
    calls = [
        Call(
            id=f"m{number}",
            trace="t",
            provider="anthropic",
            started_at=START + timedelta(minutes=minute),
            seq=number,
            model="claude-opus-4-8",
            usage=Usage(read + short + long, read, short + long, short, long, 1),
        )
        for number, (minute, read, short, long) in enumerate(rows)
    ]
    return audit(calls, Rulebook(None), lambda _: None).calls[-1].diagnosis


def shares(diagnosis: Diagnosis | None) -> dict[str, int]:
    assert diagnosis is not None
    return {finding.cause: finding.lost_tokens for finding in diagnosis.findings if finding.lost_tokens}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # the hour's entry was read after it was written, and stands: five minutes explain their own share only
        ([(0, 0, 0, 50_000), (1, 50_000, 2_000, 0), (11, 0, 0, 52_500)], {"unknown": 50_000, "ttl_expired": 2_000}),
        ([(0, 0, 300, 50_000), (11, 0, 0, 50_800)], {"unknown": 50_000, "ttl_expired": 300}),
        ([(0, 0, 0, 9_000), (1, 9_000, 50_000, 0), (11, 0, 0, 60_000)], {"ttl_expired": 50_000, "unknown": 9_000}),
        # the hour's entry was read: what is lost was written for five minutes
        ([(0, 0, 0, 50_000), (1, 50_000, 2_000, 0), (11, 50_000, 0, 2_500)], {"ttl_expired": 2_000}),
        # an hour has passed, or the prefix was rewritten since, or nothing was written for an hour
        ([(0, 0, 0, 50_000), (1, 50_000, 2_000, 0), (70, 0, 0, 52_500)], {"ttl_expired": 52_000}),
        ([(0, 0, 0, 50_000), (1, 9_000, 42_000, 0), (11, 0, 0, 52_500)], {"ttl_expired": 51_000}),
        ([(0, 0, 50_000, 0), (1, 50_000, 2_000, 0), (11, 0, 52_500, 0)], {"ttl_expired": 52_000}),
    ],
)
def test_idle_time_takes_what_was_written_for_less(rows: list[Row], expected: dict[str, int]) -> None:
    assert shares(last_diagnosis(*rows)) == expected


def test_the_larger_share_comes_first_and_idle_time_is_not_ruled_out_beside_itself() -> None:
    diagnosis = last_diagnosis((0, 0, 0, 50_000), (1, 50_000, 2_000, 0), (11, 0, 0, 52_500))
    assert diagnosis is not None
    assert diagnosis.primary.cause == "unknown"
    assert any("50,000 tokens had been written for an hour" in line for line in diagnosis.primary.evidence)
    assert "ttl_expired" not in {finding.cause for finding in diagnosis.ruled_out}
