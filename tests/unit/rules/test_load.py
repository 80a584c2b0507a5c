"""The Anthropic values in force by model, platform and day."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from localmodel.rules.known import EXPLICIT as RULES
from localmodel.rules.known import PARAMETERS
from localmodel.rules.load import Ruleset, conflict_of
from localmodel.rules.models import normalise

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# ---- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-sonnet-4.5:thinking", "claude-sonnet-4-5"),
        ("anthropic/claude-4.5-sonnet-20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        (
            "arn:aws:bedrock:us-east-1:1:inference-profile/global.anthropic.claude-opus-4-5-20251101-v1:0",
            "claude-opus-4-5",
        ),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("publishers/anthropic/models/claude-haiku-4-5@default", "claude-haiku-4-5"),
        ("claude-3-5-haiku-20241022", "claude-haiku-3-5"),
        ("claude-3-5-haiku-latest", "claude-haiku-3-5"),
        ("claude-haiku-3-5", "claude-haiku-3-5"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("CLAUDE-Sonnet-4-5[1m]", "claude-sonnet-4-5"),
        (" claude-mythos-preview ", "claude-mythos-preview"),
        ("openai/gpt-5.6", "gpt-5.6"),
    ],
)
def test_names_of_one_model_become_one(written: str, plain: str) -> None:
    assert normalise(written) == plain
    assert normalise(plain) == plain


def test_names_match_whole_and_never_by_prefix(anthropic: Ruleset) -> None:
    assert anthropic.at("claude-opus-4", "claude_api", NOW).min_tokens == 1024
    assert anthropic.at("claude-opus-4-5", "claude_api", NOW).min_tokens == 4096
    assert not anthropic.at("claude-opus-4-9", "claude_api", NOW).min_tokens_known


# ---- minimum length ----------------------------------------------------------------------------------------------

SAME_AT_ALL_TIMES = {
    512: "fable-5-1 mythos-5-1 opus-5-5 opus-5 sonnet-5-5 fable-5 mythos-5 haiku-5-5 fable-5-2 mythos-5-2",
    1024: "opus-4-8 sonnet-5 sonnet-4-5 opus-4-1 opus-4 sonnet-4",
    2048: "haiku-3-5",
    4096: "opus-4-6 opus-4-5 haiku-4-5",
}


@pytest.mark.parametrize("moment", ["2025-10-01", "2026-11-20"])
@pytest.mark.parametrize(
    ("model", "tokens"),
    [(f"claude-{name}", size) for size, names in SAME_AT_ALL_TIMES.items() for name in names.split()],
)
def test_minimum_by_model(anthropic: Ruleset, model: str, tokens: int, moment: str) -> None:
    rules = anthropic.at(model, "claude_api", day(moment))
    assert (rules.min_tokens, rules.min_tokens_known) == (tokens, True)


@pytest.mark.parametrize(
    ("model", "platform", "moment", "tokens"),
    [
        ("claude-sonnet-4-6", "claude_api", "2026-05-12T23:59:59", 2048),
        ("claude-sonnet-4-6", "claude_api", "2026-05-13T00:00:00", 1024),
        ("claude-opus-4-7", "claude_api", "2026-06-08", 4096),
        ("claude-opus-4-7", "claude_api", "2026-06-09", 2048),
        ("claude-mythos-preview", "google_cloud", "2026-06-08", 4096),
        ("claude-mythos-preview", "google_cloud", "2026-06-09", 2048),
        ("claude-opus-4-7", "bedrock", "2026-11-01", 4096),
        ("claude-mythos-preview", "bedrock", "2026-11-01", 4096),
        ("claude-fable-5", "bedrock", "2026-06-08", 512),
        ("claude-fable-5", "bedrock", "2026-06-09", 1024),
        ("claude-fable-5", "bedrock", "2026-07-23", 1024),
        ("claude-fable-5", "bedrock", "2026-07-24", 512),
        ("claude-fable-5", "claude_api", "2026-07-01", 512),
        ("claude-sonnet-4-5", "bedrock", "2026-11-01", 1024),
        ("claude-sonnet-3-7", "bedrock", "2026-11-01", 1024),
        ("claude-haiku-4-5", "bedrock", "2026-11-01", 4096),
    ],
)
def test_minimum_by_date_and_platform(anthropic: Ruleset, model: str, platform: str, moment: str, tokens: int) -> None:
    assert anthropic.at(model, platform, day(moment)).min_tokens == tokens


def test_unknown_model_gets_an_assumed_minimum(anthropic: Ruleset) -> None:
    rules = anthropic.at("claude-nova-9", "claude_api", NOW)
    assert (rules.min_tokens, rules.min_tokens_known) == (1024, False)
    assert rules.values["min_tokens"].status == "assumed"


# ---- other values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "moment", "kinds"),
    [
        ("claude_api", "2026-08-31T23:59:59", set()),
        ("claude_api", "2026-09-01", {"tool_use", "tool_result"}),
        ("bedrock", "2026-11-01", set()),
        ("google_cloud", "2026-11-01", set()),
        ("somewhere_else", "2026-11-01", set()),
    ],
)
def test_runs_collapse_on_the_claude_api_since_september(
    anthropic: Ruleset, platform: str, moment: str, kinds: set[str]
) -> None:
    assert anthropic.at("claude-opus-5", platform, day(moment)).collapse == kinds


def test_values_that_hold_for_all(anthropic: Ruleset) -> None:
    rules = anthropic.at("claude-opus-5", "claude_api", NOW)
    assert (rules.max_breakpoints, rules.lookback, rules.ttl_s) == (4, 20, {"5m": 300, "1h": 3600})
    assert (rules.default_ttl, rules.implicit_ttl, rules.readable_fallback_s) == ("5m", "5m", 5)
    assert {"thinking", "redacted_thinking"} <= rules.cannot_mark
    assert "web_search_tool_result" in rules.implicit_kinds
    assert rules.refresh_breakpoints
    assert rules.ruleset == anthropic.digest
    assert rules.values["ttl_clock"].value == "request_start"
    assert set(rules.values) == set(RULES)


def test_parameters_by_level(anthropic: Ruleset) -> None:
    levels = anthropic.at("claude-opus-5", "claude_api", NOW).invalidation
    assert set(levels) == set(PARAMETERS)
    assert {name for name, level in levels.items() if level == 0} == {"model"}
    assert {name for name, level in levels.items() if level == 1} == {"web_search", "web_fetch", "citations", "speed"}


def test_an_unknown_level_is_assumed_and_named(anthropic: Ruleset) -> None:
    values = anthropic.at("claude-opus-5", "claude_api", NOW).values
    for name in ("thinking", "effort", "output_format", "context_management", "betas"):
        row = values[f"invalidates_{name}"]
        assert (row.value, row.status) == ("messages", "assumed")
        assert "tools" in row.note
    before = anthropic.at("claude-opus-5", "claude_api", day("2026-07-22")).values["invalidates_thinking"]
    assert before.status == "documented"


@pytest.mark.parametrize(
    ("model", "strips"),
    [
        ("claude-opus-4-1", True),
        ("claude-opus-4-5", False),
        ("claude-sonnet-4-5", True),
        ("claude-sonnet-4-6", False),
        ("claude-haiku-4-5", True),
        ("claude-haiku-5-5", False),
        ("claude-fable-5", False),
    ],
)
def test_stripping_of_thinking(anthropic: Ruleset, model: str, strips: bool) -> None:
    assert anthropic.at(model, "claude_api", NOW).strips_thinking is strips


@pytest.mark.parametrize(
    ("model", "platform", "moment", "automatic"),
    [
        ("claude-opus-4-6", "claude_api", "2026-02-18", False),
        ("claude-opus-4-6", "claude_api", "2026-02-19", True),
        ("claude-opus-4-6", "bedrock", "2026-11-01", False),
        ("claude-opus-4-7", "bedrock", "2026-11-01", True),
    ],
)
def test_automatic_breakpoint(anthropic: Ruleset, model: str, platform: str, moment: str, automatic: bool) -> None:
    assert anthropic.at(model, platform, day(moment)).automatic is automatic


@pytest.mark.parametrize(
    ("model", "moment", "read"),
    [
        ("claude-opus-5", "2026-11-01", "0.1"),
        ("claude-fable-5-1", "2026-11-01", "0.025"),
        ("claude-fable-5-2", "2026-11-10", "0.025"),
        ("claude-opus-5-5", "2026-11-01", "0.05"),
        ("claude-sonnet-5-5", "2026-10-06", "0.1"),
        ("claude-sonnet-5-5", "2026-10-07", "0.05"),
    ],
)
def test_rates(anthropic: Ruleset, model: str, moment: str, read: str) -> None:
    rates = anthropic.at(model, "claude_api", day(moment)).rates
    assert (rates.write_5m, rates.write_1h, rates.read) == (Decimal("1.25"), Decimal(2), Decimal(read))


@pytest.mark.parametrize(
    ("platform", "moment", "scope"),
    [
        ("claude_api", "2026-02-04", "organization"),
        ("claude_api", "2026-02-05", "workspace"),
        ("azure_foundry", "2026-02-05", "workspace"),
        ("bedrock", "2026-11-01", "organization"),
    ],
)
def test_isolation(anthropic: Ruleset, platform: str, moment: str, scope: str) -> None:
    rules = anthropic.at("claude-opus-5", platform, day(moment))
    assert rules.values["isolation_scope"].value == scope


def test_disagreeing_sources_are_kept(anthropic: Ruleset) -> None:
    values = anthropic.at("claude-opus-4-7", "bedrock", NOW).values
    assert conflict_of(values["min_tokens"]) == "Anthropic says 2,048 on every platform"
    assert conflict_of(values["max_breakpoints"]) is None


# ---- moments -----------------------------------------------------------------------------------------------------


def test_no_moment_is_the_latest(anthropic: Ruleset) -> None:
    assert anthropic.at("claude-sonnet-4-6", "claude_api", None).min_tokens == 1024


def test_days_are_utc(anthropic: Ruleset) -> None:
    west = timezone(timedelta(hours=-5))
    late = datetime(2026, 5, 12, 20, tzinfo=west)
    assert anthropic.at("claude-sonnet-4-6", "claude_api", late).min_tokens == 1024


def test_one_day_is_chosen_once(anthropic: Ruleset) -> None:
    first = anthropic.at("claude-opus-5", "claude_api", day("2026-10-01T01:00:00"))
    assert anthropic.at("claude-opus-5", "claude_api", day("2026-10-01T23:00:00")) is first
    assert anthropic.at("claude-opus-5", "bedrock", day("2026-10-01")) is not first


def test_each_source_is_declared_and_used(anthropic: Ruleset) -> None:
    used = {row.source for rows in anthropic.values.values() for row in rows}
    assert used == set(anthropic.sources)


def test_no_value_is_checked_in_the_future_or_before_it_held(anthropic: Ruleset) -> None:
    for rows in anthropic.values.values():
        for row in rows:
            assert row.checked <= date(2026, 11, 29)
            assert row.since is None or row.since <= row.checked
