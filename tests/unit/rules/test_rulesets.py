"""Every built-in ruleset loads, is shown, and says where its values come from; which one a call is judged by."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import localmodel.rules.load
from localmodel.rules.book import PROVIDERS, Rulebook, ruleset_name
from localmodel.rules.load import conflict_of, load
from localmodel.rules.show import as_json, as_text, show

NAMES = sorted(path.stem for path in Path(localmodel.rules.load.__file__).parent.glob("*.toml"))
NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize("name", NAMES)
def test_every_ruleset_loads_and_is_shown(name: str) -> None:
    ruleset = load(name)
    assert ruleset.at("a-model-nobody-knows", "claude_api", NOW).values
    rows = show(ruleset, model=None, moment=None)
    assert as_text(rows).count("\n") > 20 and as_json(rows).startswith("[")
    assert all(row.source in ruleset.sources for row in rows)
    assert all(row.status != "documented" or row.source != "project" for row in rows), "we document no provider"


def test_the_providers_of_the_reference_are_there() -> None:
    want = "openai deepseek gemini bedrock google_claude qwen kimi minimax zai xai openrouter vllm sglang llamacpp"
    assert set(want.split()) < set(NAMES)
    assert set(PROVIDERS.values()) <= set(NAMES)


@pytest.mark.parametrize(
    ("model", "boundaries", "interval", "writes", "read"),
    [
        ("gpt-6-sol", "message_ends", 0, "1.25", "0.1"),
        ("gpt-6.1-sol", "message_ends", 0, "1.25", "0.05"),
        ("gpt-5.6-terra-2026-08-01", "message_ends", 0, "1.25", "0.1"),
        ("gpt-5.5-pro", "every_block", 2048, "1.0", "0.1"),
        ("openai/gpt-5.4", "every_block", 128, "1.0", "0.1"),
        ("gpt-4.1-mini", "every_block", 128, "1.0", "0.25"),
        ("gpt-4o-2024-08-06", "every_block", 128, "1.0", "0.5"),
        ("o3-mini", "every_block", 128, "1.0", "0.5"),
        ("somebody-s-model", "every_block", 128, "1.0", "0.1"),
    ],
)
def test_both_generations_of_openai(model: str, boundaries: str, interval: int, writes: str, read: str) -> None:
    rules = load("openai").at(model, "claude_api", NOW)
    assert (rules.boundaries, rules.interval, rules.min_tokens) == (boundaries, interval, 1024)
    assert (str(rules.rates.write_5m), str(rules.rates.read)) == (writes, read)
    assert rules.writes_reported is (writes == "1.25")


def test_deepseek_has_units_now_and_had_64_tokens() -> None:
    deepseek = load("deepseek")
    old = deepseek.at("deepseek-chat", "claude_api", datetime(2025, 3, 1, tzinfo=UTC))
    assert (old.boundaries, old.interval, old.min_tokens) == ("every_block", 64, 64)
    new = deepseek.at("deepseek-v4-pro", "claude_api", NOW)
    assert (new.boundaries, new.interval, new.min_tokens) == ("units", 0, 0)
    assert (new.sure_s("5m"), new.ttl_s["5m"], new.guaranteed) == (7200, 259_200, False)


def test_documented_disagreements_are_flagged() -> None:
    disputed = {
        (name, row.id) for name in NAMES for row in show(load(name), model=None, moment=None) if conflict_of(row)
    }
    for pair in (
        ("anthropic", "min_tokens"), ("anthropic", "invalidates_effort"), ("openai", "lookup_explicit_latest"),
        ("openai", "ttl_seconds_long"), ("openai", "min_tokens"), ("gemini", "min_tokens"),
        ("google_claude", "isolation_scope"), ("deepseek", "read_granularity_tokens"),
    ):  # fmt: skip
        assert pair in disputed


@pytest.mark.parametrize(
    ("provider", "model", "name"),
    [
        ("anthropic", "claude-opus-5", "anthropic"),
        ("bedrock", "us.anthropic.claude-opus-4-6-v1", "bedrock"),
        ("vertex_ai", "claude-opus-5@20260101", "google_claude"),
        ("vertex_ai", "gemini-3.1-pro", "gemini"),
        ("OpenAI", "gpt-6-sol", "openai"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "anthropic"),
        ("openrouter", "deepseek/deepseek-v4-pro", "deepseek"),
        ("openrouter", "somebody/model", "openrouter"),
        ("nobody", "gpt-6-sol", None),
    ],
)
def test_whose_rules_a_call_is_judged_by(provider: str, model: str, name: str | None) -> None:
    assert ruleset_name(provider, model) == name


def test_a_forced_ruleset_is_everyones() -> None:
    book = Rulebook(load("deepseek"))
    assert book.of("nobody", "x") is book.of("anthropic", "y") is not None
    assert book.provider == "deepseek"
