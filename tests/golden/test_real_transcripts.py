"""Diagnoses of recorded Claude Code sessions, against the API's own labels and against a simple rule for misses.

The simple rule (the one of INDEX.tsv): a response of the main chain read less than 70 % of the smaller of its input and
the input before it, which had at least 4,000 tokens. Each row on which it and the audit differ is named here, with why.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from auditor.audit import audit
from auditor.records import Audit, Audited
from localmodel.rules.load import Ruleset, load
from traces import io
from traces.schema import Call

MISS = 0.7
SMALL = 4_000

Table = dict[int, str]

# What the audit says of the rows that the simple rule calls a miss.
RULE: dict[str, Table] = {
    "0ccf1a04-1b4c-43b6-8aa5-79e41db43a68": {31: "ttl_expired", 47: "model_changed", 61: "ttl_expired"},
    "cc-ec-25-microcompact": {
        9: "unknown",
        14: "unknown",
        24: "unknown",
        823: "unknown",
        406: "ttl_expired",
        750: "ttl_expired",
        376: "compaction",
        805: "compaction",  # nothing that was there before the summary was lost
    },
    "cc-ec-5c-opus45-1h-prefixmiss": {
        **dict.fromkeys((10, 63, 198, 246, 655, 808, 1048), "unknown"),
        **dict.fromkeys((540, 609, 626, 843, 1066), "ttl_expired"),
        314: "compaction",
        1101: "compaction",
    },
    "cc-ec-7d-modelswitch": {
        **dict.fromkeys((124, 188, 289, 363), "ttl_expired"),
        177: "model_changed",
        277: "history_rewritten",
        297: "unknown",
    },
    "cc-ec-cd-opus45-5m-14miss": {
        **dict.fromkeys((18, 79, 91, 96, 106, 301, 590, 595, 765, 832, 864), "ttl_expired"),
        **dict.fromkeys((232, 519, 873), "compaction"),
    },
    "cc-ec-ea0-fork-a": {},
    "cc-ec-ea2-fork-b": {},
    "cc-pf-07-fable5-clean": {},
    "cc-pf-35-fable5-unexplained": {
        608: "ttl_expired",
        1164: "ttl_expired",
        869: "provider_side",
        895: "provider_side",
        426: "compaction",
        1112: "compaction",
        430: "none",  # its predecessor wrote 18,895 of its 30,490 tokens, and all of these were read
    },
    "cc-pf-5f-opus48-toolsearch-ttl": {
        227: "tools_changed",
        **dict.fromkeys((403, 422, 468, 474), "ttl_expired"),
    },
}

# Losses below the rule's threshold: a few tokens of the end of the prefix, or a prefix cut back to an older call's.
MORE: dict[str, set[int]] = {
    "cc-ec-5c-opus45-1h-prefixmiss": {250, 718, 813},
    "cc-ec-7d-modelswitch": {109, 348, 396, 408},
}
PROMPT_CHANGES = {
    "tools_changed": {"tools_changed"},
    "system_changed": {"system_changed"},
    "messages_changed": {"history_rewritten", "compaction"},
    "model_changed": {"model_changed"},
}


@pytest.fixture(scope="module")
def rules() -> Ruleset:
    return load("anthropic")


@pytest.fixture(scope="module")
def audits(shared: Path, rules: Ruleset) -> dict[str, Audit]:
    folder = shared / "traces" / "claude_code"
    return {path.stem: audit(io.read(path), rules, lambda _: None) for path in sorted(folder.glob("*.jsonl"))}


def main_chain(made: Audit) -> list[Audited]:
    return [audited for audited in made.calls if audited.call.agent == "main"]


def simple_rule(calls: Iterable[Call]) -> set[int]:
    found, before = set(), 0
    for call in calls:
        total, read = call.usage.input_tokens or 0, call.usage.read_tokens or 0
        if before >= SMALL and total and read < MISS * min(before, total):
            found.add(call.seq)
        before = total
    return found


def cause(audited: Audited) -> str:
    return audited.diagnosis.primary.cause if audited.diagnosis is not None else "none"


def test_each_miss_of_the_simple_rule_is_explained(audits: dict[str, Audit]) -> None:
    for name, made in audits.items():
        chain = {audited.call.seq: audited for audited in main_chain(made)}
        rule = simple_rule(audited.call for audited in main_chain(made))
        assert {row: cause(chain[row]) for row in sorted(rule)} == dict(sorted(RULE[name].items())), name
        lossy = {row for row, audited in chain.items() if audited.diagnosis and audited.diagnosis.lost_tokens}
        assert lossy - rule == MORE.get(name, set()), name
        assert all(cause(chain[row]) in ("compaction", "none") for row in rule - lossy), name


def test_the_index_counts_what_the_simple_rule_finds(shared: Path, audits: dict[str, Audit]) -> None:
    for line in (shared / "traces" / "INDEX.tsv").read_text().splitlines()[1:]:
        name, *rest = line.split("\t")
        if name.startswith("claude_code/"):
            count = int(rest[6].split(" ")[0])
            assert len(RULE[Path(name).stem]) == count, name


def test_causes_agree_with_labels_that_name_a_change(audits: dict[str, Audit]) -> None:
    seen = []
    for made in audits.values():
        for audited in made.calls:
            label = audited.call.label
            if label and label.value in PROMPT_CHANGES and audited.diagnosis is not None:
                assert cause(audited) in PROMPT_CHANGES[label.value], audited.call
                assert audited.diagnosis.primary.status == "established"
                seen.append(label.value)
    assert sorted(seen) == ["messages_changed", "messages_changed", "tools_changed"]


def test_expiry_is_proved_by_the_gap(audits: dict[str, Audit]) -> None:
    """From the start of the latest call that used the prefix to this start, it is longer than the lifetime written."""
    found = 0
    for made in audits.values():
        for audited in made.calls:
            if cause(audited) != "ttl_expired":
                continue
            assert audited.diagnosis is not None
            facts = audited.diagnosis.primary.facts
            before = made.calls[audited.diagnosis.reference or 0]
            gap = (audited.at - before.at).total_seconds()
            assert gap >= int(facts["gap_start_to_start_s"]) - 1
            assert int(facts["gap_start_to_start_s"]) >= int(facts["ttl_s"])
            lifetime = 3600 if before.call.usage.write_1h_tokens else 300
            assert facts["ttl_s"] == lifetime
            found += 1
    assert found >= 28


def test_missing_labels_and_null_never_become_a_change_of_messages(audits: dict[str, Audit]) -> None:
    for made in audits.values():
        for audited in made.calls:
            label = audited.call.label
            if label is not None and label.value not in PROMPT_CHANGES:
                assert cause(audited) in ("none", "ttl_expired", "provider_side"), audited.call


def test_the_clean_session_is_accused_of_nothing(audits: dict[str, Audit]) -> None:
    made = audits["cc-pf-07-fable5-clean"]
    assert len(made.calls) == 123
    assert all(audited.diagnosis is None for audited in made.calls)


def test_forks_are_counted_once_and_go_on(shared: Path, rules: Ruleset) -> None:
    folder = shared / "traces" / "claude_code"
    files = [folder / "cc-ec-ea0-fork-a.jsonl", folder / "cc-ec-ea2-fork-b.jsonl"]
    made = audit(io.distinct(call for path in files for call in io.read(path)), rules, lambda _: None)
    assert len(made.calls) == 29
    assert not any(audited.diagnosis and audited.diagnosis.lost_tokens for audited in made.calls)


def test_case_b01_b02(shared: Path) -> None:
    folder = shared / "cases" / "B01_B02"
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    calls = list(io.distinct(call for path in io.find([folder / "projects"]) for call in io.read(path)))

    def total(count: Callable[[Call], int | None], model: str = "") -> int:
        return sum(count(call) or 0 for call in calls if model in (call.model or ""))

    assert len(calls) == expected["calls"]
    assert total(lambda call: call.usage.uncached_tokens) == expected["input"]
    assert total(lambda call: call.usage.write_tokens) == expected["cache_write"]
    assert total(lambda call: call.usage.read_tokens) == expected["cache_read"]
    assert total(lambda call: call.usage.output_tokens) == expected["output"]
    for model, each in expected["by_model"].items():
        assert total(lambda call: call.usage.output_tokens, model) == each["output"]
        assert total(lambda _: 1, model) == each["calls"]


def test_case_c06(shared: Path) -> None:
    """Records that the client made itself are no calls and touch no clock."""
    (call,) = io.read(shared / "cases" / "C06" / "s1.jsonl")
    assert (call.id, call.usage.read_tokens, call.usage.write_1h_tokens) == ("msg_R", 298_000, 2_000)
    assert call.ended_at is not None
    assert call.ended_at.isoformat() == "2026-09-04T09:00:00+00:00"
