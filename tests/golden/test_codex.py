"""Recorded Codex sessions: caches that promise nothing, and no body, so nobody is accused of a change."""

from collections import Counter
from pathlib import Path

from auditor.audit import audit
from auditor.records import Audit
from localmodel.rules.book import Rulebook
from traces import io

# Losses by cause, and tokens lost, of each file; the smaller ones are within what OpenAI rounds a hit down to.
EXPECTED = {
    "cx-0.159.1-excerpt": {},
    "cx-av-88-0.141-8miss": {"unknown": 18},
    "cx-xa-2f-0.121-38dups": {"unknown": 24, "ttl_expired": 1},
}


def audited(path: Path) -> Audit:
    return audit(io.read(path), Rulebook(), lambda _: None)


def test_no_change_is_claimed_that_nothing_shows(shared: Path) -> None:
    for name, expected in EXPECTED.items():
        made = audited(shared / "traces" / "codex" / f"{name}.jsonl")
        found = [one.diagnosis for one in made.calls if one.diagnosis is not None and one.diagnosis.lost_tokens]
        assert Counter(each.primary.cause for each in found) == expected, name
        for each in found:
            names = [finding.cause for finding in each.findings]
            assert len(names) == len(set(names)), "each cause once"
            assert "ttl_expired" in names[:1] or "provider_side" in names
            assert each.primary.cause != "unknown" or any("best effort" in line for line in each.primary.evidence)


def test_expiry_is_claimed_only_where_idle_time_usually_suffices(shared: Path) -> None:
    made = audited(shared / "traces" / "codex" / "cx-xa-2f-0.121-38dups.jsonl")
    (one,) = (each for each in made.calls if each.diagnosis and each.diagnosis.primary.cause == "ttl_expired")
    assert one.diagnosis is not None and one.diagnosis.primary.status == "likely"
    assert int(one.diagnosis.primary.facts["gap_start_to_start_s"]) >= 3600
