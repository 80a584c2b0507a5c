"""Sessions of other tools than Claude Code against the misses that INDEX.tsv counts by a simple rule.

The rule: a response read less than half of the smaller of its input and the input before it, which had at least 4,000
tokens, and the conversation was not summarised in between. Numbers alone are recorded there, so that no miss is blamed
on a change of text. Each difference is named here, with why.
"""

from pathlib import Path

import pytest

from auditor.audit import audit
from auditor.records import Audit
from localmodel.rules.book import Rulebook
from traces import io
from traces.facts import COMPACT, words_of

SMALL = 4_000
# Below this nothing is called a loss: providers round hits down.
ROUNDING = 1_024
BLAMELESS = {"unknown", "ttl_expired", "provider_side", "not_yet_readable"}

# Rows that the rule calls a miss and the audit does not, with what the audit says.
NOT_OURS: dict[str, dict[int, str]] = {
    # began 3 s before the call that it continues: of two requests in flight neither could read the other's entry
    "pi/pi-mono-large-session.jsonl": {466: "cold_write"},
    # 54,340 tokens after 135,377: history was cut, and what was read may be all that the two have in common
    "opencode/oc-nb-10-25miss.json": {50: "hit"},
}
# Partial losses that the rule leaves out since half or more was read: how many, and the smallest.
MORE = {
    "codex/cx-xa-2f-0.121-38dups.jsonl": (17, 1_206),
    "codex/cx-av-88-0.141-8miss.jsonl": (10, 3_061),
    "pi/pi-mono-large-session.jsonl": (0, None),
    "opencode/oc-nb-10-25miss.json": (52, 1_028),
    "opencode/oc-nb-93-redacted-id.json": (1, 1_032),
    "mini_swe_agent/msa-pytest-dev__pytest-6197.traj.json": (21, 2_188),
}


def by_the_rule(made: Audit) -> set[int]:
    """Positions of calls that the simple rule calls a miss."""
    found, before = set(), 0
    for place, audited in enumerate(made.calls):
        total, read = audited.call.usage.input_tokens, audited.call.usage.read_tokens or 0
        if not total:
            continue
        summarised = any(word.startswith(COMPACT) for word in words_of(audited.call))
        if before >= SMALL and 2 * read < min(before, total) and not summarised:
            found.add(place)
        before = total
    return found


@pytest.mark.parametrize("name", MORE)
def test_each_difference_from_the_index_is_explained(shared: Path, name: str) -> None:
    index = {
        row.split("\t")[0]: row.split("\t")[7] for row in (shared / "traces" / "INDEX.tsv").read_text().splitlines()
    }
    made = audit(io.read(shared / "traces" / name), Rulebook(), lambda _: None)
    rule = by_the_rule(made)
    assert len(rule) == int(index[name].split(" ")[0])
    lost = {
        n: one.diagnosis.lost_tokens for n, one in enumerate(made.calls) if one.diagnosis and one.diagnosis.lost_tokens
    }
    left = {made.calls[place].call.seq: made.calls[place].verdict for place in rule - set(lost)}
    assert left == NOT_OURS.get(name, {})
    more = [tokens for place, tokens in lost.items() if place not in rule]
    assert (len(more), min(more, default=None)) == MORE[name]
    assert all(tokens > ROUNDING for tokens in lost.values())
    assert {
        one.diagnosis.primary.cause for one in made.calls if one.diagnosis and one.diagnosis.lost_tokens
    } <= BLAMELESS
