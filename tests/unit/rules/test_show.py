"""Rule values as text and JSON."""

import json
from datetime import UTC, datetime

import pytest

from localmodel.rules.known import EXPLICIT as RULES
from localmodel.rules.load import Ruleset, load
from localmodel.rules.show import as_json, as_text, show

AUGUST = datetime(2026, 8, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def anthropic() -> Ruleset:
    return load("anthropic")


def test_without_model_and_moment_all_values_in_file_order(anthropic: Ruleset) -> None:
    rows = show(anthropic, model=None, moment=None)
    assert len(rows) == sum(len(rows) for rows in anthropic.values.values())
    assert list(dict.fromkeys(row.id for row in rows)) == list(RULES)


def test_with_a_model_and_a_moment_those_in_force(anthropic: Ruleset) -> None:
    rows = show(anthropic, model="us.anthropic.claude-opus-4-7-v1:0", moment=AUGUST)
    minimums = [(row.value, row.platforms) for row in rows if row.id == "min_tokens"]
    assert minimums == [(2048, ()), (4096, ("bedrock",))]
    assert [row.value for row in rows if row.id == "lookback_collapse"] == [()]
    assert {row.id for row in rows} == set(RULES)


def test_with_a_model_alone_the_latest(anthropic: Ruleset) -> None:
    rows = show(anthropic, model="claude-sonnet-4-6", moment=None)
    assert [row.value for row in rows if row.id == "min_tokens"] == [1024]


def test_with_a_moment_alone_all_models(anthropic: Ruleset) -> None:
    rows = show(anthropic, model=None, moment=AUGUST)
    minimums = [row for row in rows if row.id == "min_tokens"]
    assert any("claude-opus-5" in row.models for row in minimums)
    assert not any(row.until and row.until <= AUGUST.date() for row in rows)
    assert not any(row.since and row.since > AUGUST.date() for row in rows)


def test_unknown_model_shows_the_default(anthropic: Ruleset) -> None:
    rows = show(anthropic, model="claude-nova-9", moment=AUGUST)
    assert [(row.value, row.status) for row in rows if row.id == "min_tokens"] == [(1024, "assumed")]


def test_text_is_aligned_and_marks_disputes(anthropic: Ruleset) -> None:
    lines = as_text(show(anthropic, model="claude-opus-4-7", moment=AUGUST)).splitlines()
    columns = [lines[0].index(word) for word in ("value", "applies to", "status", "checked", "source")]
    table = lines[: lines.index("")]
    assert all(line[column - 2 : column].strip() == "" for line in table for column in columns)
    bedrock = next(line for line in table if line.startswith("min_tokens *") and "bedrock" in line)
    assert bedrock[columns[0] :].startswith("4096")
    assert bedrock[columns[3] :].startswith("2026-10-04")
    assert "* disputed:" in lines
    assert any("Anthropic says 2,048 on every platform" in line for line in lines)


def test_text_of_values_without_dispute_has_no_footnote(anthropic: Ruleset) -> None:
    text = as_text(list(anthropic.values["max_breakpoints"]))
    assert text.splitlines()[1].split() == [
        "max_breakpoints", "4", "all", "documented", "2026-09-01", "anthropic-prompt-caching",
    ]  # fmt: skip
    assert "*" not in text


def test_text_of_nothing() -> None:
    assert as_text([]) == "no values\n"


def test_empty_list_is_said(anthropic: Ruleset) -> None:
    assert "  none  " in as_text([anthropic.values["lookback_collapse"][0]])


def test_json_keeps_all_fields(anthropic: Ruleset) -> None:
    rows = json.loads(as_json(show(anthropic, model="claude-opus-4-7", moment=AUGUST)))
    found = next(row for row in rows if row["id"] == "min_tokens" and row["platforms"] == [])
    assert found == {
        "id": "min_tokens",
        "value": 2048,
        "models": ["claude-opus-4-7"],
        "platforms": [],
        "since": "2026-06-09",
        "until": None,
        "status": "documented",
        "checked": "2026-10-08",
        "source": "anthropic-minimum-table",
        "note": "4,096 on the page of 2026-06-05, 2,048 on that of 2026-06-09; the day the API changed is not stated",
        "conflict": "OpenRouter lists 4,096",
    }
    assert next(row["value"] for row in rows if row["id"] == "write_multiplier_5m") == "1.25"
