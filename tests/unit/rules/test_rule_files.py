"""Rule files of one's own: what they inherit, and what the loader refuses."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import localmodel.rules.load
from localmodel.rules.errors import BadRuleFile
from localmodel.rules.load import Ruleset, load

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def child(folder: Path, body: str, inherits: str = "anthropic", name: str = "mine.toml") -> str:
    path = folder / name
    sources = '[sources]\nmine = "own measurement"\n'
    path.write_text(f'schema = 1\ninherits = "{inherits}"\n{sources}{body}', encoding="utf-8")
    return str(path)


def table(rule: str, value: str, more: str = "") -> str:
    return f'[[{rule}]]\nvalue = {value}\nstatus = "measured"\nchecked = 2026-11-20\nsource = "mine"\n{more}\n'


def refusal(path: str) -> str:
    with pytest.raises(BadRuleFile) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- inheritance -------------------------------------------------------------------------------------------------


def test_child_overrides_and_keeps_the_rest(tmp_path: Path, anthropic: Ruleset) -> None:
    mine = load(child(tmp_path, table("lookback_positions", "30") + table("refresh_breakpoints", "false")))
    rules = mine.at("claude-opus-5", "claude_api", NOW)
    assert (rules.lookback, rules.refresh_breakpoints, rules.min_tokens) == (30, False, 512)
    assert mine.provider == "anthropic"
    assert rules.values["lookback_positions"].status == "measured"
    assert "own measurement" in mine.sources.values() and "project" in mine.sources
    assert len(mine.values["lookback_positions"]) == 3


def test_child_yields_to_a_more_specific_parent(tmp_path: Path) -> None:
    mine = load(child(tmp_path, table("min_tokens", "7") + table("lookback_positions", "30")))
    assert mine.at("claude-opus-5", "claude_api", NOW).min_tokens == 512
    assert mine.at("claude-nova-9", "claude_api", NOW).min_tokens == 7
    assert mine.at("claude-opus-5", "bedrock", NOW).lookback == 20


def test_child_wins_at_equal_specificity_whatever_the_dates(tmp_path: Path) -> None:
    mine = load(child(tmp_path, table("min_tokens", "7", 'models = ["claude-sonnet-4-6"]')))
    assert mine.at("claude-sonnet-4-6", "claude_api", NOW).min_tokens == 7


def test_child_may_be_dated(tmp_path: Path) -> None:
    mine = load(child(tmp_path, table("max_breakpoints", "8", "since = 2026-12-01")))
    assert mine.at("claude-opus-5", "claude_api", day("2026-11-30")).max_breakpoints == 4
    assert mine.at("claude-opus-5", "claude_api", day("2026-12-01")).max_breakpoints == 8


def test_grandchild_and_digest(tmp_path: Path, anthropic: Ruleset) -> None:
    parent = child(tmp_path, table("max_breakpoints", "5"), name="parent.toml")
    path = child(tmp_path, table("lookback_positions", "9"), inherits="parent.toml")
    mine = load(path)
    rules = mine.at("claude-opus-5", "claude_api", NOW)
    assert (rules.max_breakpoints, rules.lookback) == (5, 9)
    assert load(path).digest == mine.digest
    assert len({mine.digest, load(parent).digest, anthropic.digest}) == 3
    child(tmp_path, table("max_breakpoints", "6"), name="parent.toml")
    assert load(path).digest != mine.digest


def test_inheriting_from_itself(tmp_path: Path) -> None:
    child(tmp_path, "", inherits="mine.toml", name="other.toml")
    assert "inherits from itself" in refusal(child(tmp_path, "", inherits="other.toml"))


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (table("min_token", "5"), ["unknown key 'min_token'", "nearest is 'min_tokens'"]),
        (table("invalidates_efort", '"tools"'), ["unknown key 'invalidates_efort'", "'invalidates_effort'"]),
        (table("min_tokens", "5", 'model = ["claude-opus-5"]'), ["table 1", "unknown field 'model'", "'models'"]),
        (table("min_tokens", "5", 'platforms = ["bedrok"]'), ["platforms", "bedrok", "nearest is 'bedrock'"]),
        (table("min_tokens", "5", 'platforms = "bedrock"'), ["a list of platforms"]),
        (table("min_tokens", "5", "models = []"), ["at least one of the models"]),
        (table("min_tokens", "5", 'models = ["claude-sonnet-4.5"]'), ["plain name, 'claude-sonnet-4-5'"]),
        (table("min_tokens", "true"), ["value is True", "a whole number"]),
        (table("min_tokens", "-1"), ["value is -1", "a whole number"]),
        (table("min_tokens", '"512"'), ["value is '512'", "a whole number"]),
        (table("refresh_on_read", "1"), ["value is 1", "true or false"]),
        (table("read_multiplier", '"0.1"'), ["a number from 0 to 100"]),
        (table("invalidates_model", '"tool"'), ["tools or system or messages", "nearest is 'tools'"]),
        (table("lookback_collapse", '["tool_reslut"]'), ["nearest is 'tool_result'"]),
        (table("implicit_breakpoints", '["text"]'), ["end in _tool_result"]),
        (table("prefix_order", '["system", "tools", "messages"]'), ["[tools, system, messages]"]),
        (table("min_tokens", "5", 'since = "2026-09-01"'), ["since is '2026-09-01'", "without quotes"]),
        (table("min_tokens", "5", "since = 2026-09-01T00:00:00Z"), ["since", "a date such as"]),
        (table("min_tokens", "5", "since = 2026-13-01"), ["not TOML"]),
        (table("min_tokens", "5", "since = 2026-09-01\nuntil = 2026-09-01"), ["is not after since"]),
        (table("min_tokens", "5").replace('"measured"', '"mesured"'), ["status", "nearest is 'measured'"]),
        (table("min_tokens", "5").replace('"mine"', '"mien"'), ["source 'mien'", "nearest is 'mine'"]),
        (table("min_tokens", "5").replace('status = "measured"\n', ""), ["has no status"]),
        (table("min_tokens", "5").replace('source = "mine"\n', ""), ["has no source"]),
        (table("min_tokens", "5").replace("checked = 2026-11-20\n", ""), ["has no checked"]),
        (table("min_tokens", "5").replace("value = 5\n", ""), ["has no value"]),
        ("[min_tokens]\nvalue = 5\n", ["[[min_tokens]]"]),
        ("min_tokens = \n", ["not TOML"]),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, body: str, parts: list[str]) -> None:
    path = child(tmp_path, body)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "more",
    [
        "",
        'models = ["claude-opus-5"]',
        'platforms = ["bedrock"]',
        'models = ["claude-opus-5", "claude-opus-4"]\nplatforms = ["bedrock"]\nsince = 2026-09-01',
    ],
)
def test_two_equally_specific_values_at_once(tmp_path: Path, more: str) -> None:
    body = table("min_tokens", "5", more) + table("min_tokens", "6", more)
    assert "tables 1 and 2 hold at the same time" in refusal(child(tmp_path, body))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("until = 2026-09-01", "since = 2026-09-01"),
        ("", "since = 2026-09-01"),
        ('models = ["claude-opus-5"]', 'models = ["claude-opus-4"]'),
        ('models = ["claude-opus-5"]', 'platforms = ["bedrock"]'),
        ('platforms = ["bedrock"]', 'platforms = ["google_cloud"]'),
    ],
)
def test_values_that_do_not_collide(tmp_path: Path, first: str, second: str) -> None:
    load(child(tmp_path, table("min_tokens", "5", first) + table("min_tokens", "6", second)))


def test_platform_beats_model_beats_date(tmp_path: Path) -> None:
    rows = [
        table("max_breakpoints", "5", "since = 2026-10-01"),
        table("max_breakpoints", "6", 'models = ["claude-opus-5"]'),
        table("max_breakpoints", "7", 'platforms = ["bedrock"]'),
    ]
    mine = load(child(tmp_path, "".join(rows)))
    found = [mine.at(m, p, NOW).max_breakpoints for m in ("claude-opus-4", "claude-opus-5") for p in ("x", "bedrock")]
    assert found == [5, 7, 6, 7]


def test_a_file_without_parent_must_cover_all_rules(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('schema = 1\nprovider = "p"\nmatcher = "explicit_breakpoints"\n', encoding="utf-8")
    assert "prefix_order: has no value for all models and platforms" in refusal(str(path))


@pytest.mark.parametrize(
    ("head", "part"),
    [
        ('schema = 2\ninherits = "anthropic"', "schema is 2"),
        ('inherits = "anthropic"', "schema is None"),
        ('schema = 1\nprovider = "p"', "matcher is nothing"),
        ('schema = 1\nprovider = "p"\nmatcher = "explicit"', "nearest is 'explicit_breakpoints'"),
        ('schema = 1\nmatcher = "explicit_breakpoints"', "provider is nothing"),
        ('schema = 1\ninherits = "antropic"', "nearest is 'anthropic'"),
        ("schema = 1\ninherits = 3", "inherits is 3"),
        ('schema = 1\ninherits = "anthropic"\nsources = 3', "[sources]"),
        ('schema = 1\ninherits = "nowhere.toml"', "cannot be read"),
    ],
)
def test_refused_heads(tmp_path: Path, head: str, part: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(head + "\n", encoding="utf-8")
    assert part in refusal(str(path))


def test_a_gap_in_time_is_refused(tmp_path: Path, anthropic: Ruleset) -> None:
    text = Path(localmodel.rules.load.__file__).with_name("anthropic.toml").read_text(encoding="utf-8")
    path = tmp_path / "gap.toml"
    path.write_text(text.replace("until = 2026-07-23", "until = 2026-07-20"), encoding="utf-8")
    assert "invalidates_thinking: has no value for all models and platforms from 2026-07-20" in refusal(str(path))


@pytest.mark.parametrize("name", ["antropic", "missing.toml"])
def test_missing_file(name: str) -> None:
    assert "anthropic" in refusal(name) or "TOML file" in refusal(name)


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not TOML" in refusal(str(path))
