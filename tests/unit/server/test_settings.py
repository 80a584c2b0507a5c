"""What the server is started with: rules and single values over them, scripts, and refusals in one line."""

import re
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

from localmodel.server.app import route_of
from localmodel.server.errors import BadSettings
from localmodel.server.ruleset import ruleset
from localmodel.server.scripted import read_script
from localmodel.server.serve import build, listen
from localmodel.server.settings import Settings, checked

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def test_single_values_hold_for_every_model_and_day() -> None:
    sets = ["ttl.5m=20", "lookback.positions=5", "min_tokens = 7", "read_multiplier=0.5", "lookback_collapse=[]"]
    found = ruleset("anthropic", sets)
    for model in ("claude-sonnet-4-6", "claude-opus-4-5", "gpt-6"):
        for moment in (NOW, datetime(2026, 1, 1, tzinfo=UTC)):
            rules = found.at(model, "claude_api", moment)
            assert (rules.ttl_s["5m"], rules.ttl_s["1h"], rules.lookback, rules.min_tokens) == (20, 3600, 5, 7)
            assert (str(rules.rates.read), rules.collapse) == ("0.5", frozenset())
            assert rules.values["min_tokens"].source == "--set"
    assert ruleset("anthropic", []).at("claude-opus-4-5", "claude_api", NOW).min_tokens == 4096


def test_new_model_names_do_not_pile_up() -> None:
    found = ruleset("anthropic", [])
    assert found.at("made-up-1", "claude_api", NOW) is found.at("made-up-2", "claude_api", NOW)
    assert found.at("claude-sonnet-4-5-20250929", "claude_api", NOW).min_tokens_known


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("ttl5m=3", "nearest is 'ttl.5m'"),
        ("min_token=3", "nearest is 'min_tokens'"),
        ("min_tokens", "write KEY=VALUE"),
        ("ttl.5m=-1", "a whole number, 0 or more"),
        ("default_ttl=2h", "5m or 1h"),
        ("lookback_collapse=tool_use", "a list of"),
    ],
)
def test_wrong_values_name_what_is_right(setting: str, words: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(words)):
        ruleset("anthropic", [setting])


def test_unknown_rulesets_and_models_are_refused() -> None:
    with pytest.raises(BadSettings, match="nearest is 'anthropic'"):
        ruleset("antropic", [])
    with pytest.raises(BadSettings, match="--model nowhere"):
        build(Settings(model="nowhere"))
    with pytest.raises(BadSettings, match="add --model scripted"):
        build(Settings(model="nowhere", script=Path("replies.toml")))


def test_other_addresses_need_a_key() -> None:
    with pytest.raises(BadSettings, match="add --api-key"):
        checked(Settings(host="0.0.0.0"))
    for host in ("", "localhost.example", "10.0.0.1", "::"):
        with pytest.raises(BadSettings, match="add --api-key"):
            checked(Settings(host=host))
    assert checked(Settings(host="0.0.0.0", api_keys=["k"])).host == "0.0.0.0"
    for host in ("localhost", "127.0.0.2", "::1"):
        assert checked(Settings(host=host)).host == host
    with pytest.raises(BadSettings, match="is empty"):
        checked(Settings(api_keys=[" "]))


def test_an_address_that_cannot_be_had_names_what_to_change() -> None:
    with closing(listen("127.0.0.1", 0)) as taken, pytest.raises(BadSettings, match="choose another port"):
        listen("127.0.0.1", taken.getsockname()[1])
    for host in ("no.such.host.invalid", "192.0.2.1", "a..b", "x" * 300):
        with pytest.raises(BadSettings, match=f"--host {re.escape(host)} .* choose another host"):
            listen(host, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reply = 5", "reply"),
        ("[[reply]]\nmatch = '('", "reply.0.match"),
        ("[[reply]]\ntexts = 'x'", "reply.0.texts"),
        ("=", "not TOML"),
    ],
)
def test_wrong_scripts_name_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.txt"  # read as TOML, whatever its name, unless that ends in .json
    path.write_text(text)
    with pytest.raises(BadSettings, match=re.escape(words)):
        read_script(path)


def test_scripts_are_toml_or_json(tmp_path: Path) -> None:
    toml, json = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text("[[reply]]\nmatch = 'add'\ntools = [{name = 'add', input = {a = 1}}]\n")
    json.write_text('{"reply": [{"match": "add", "tools": [{"name": "add", "input": {"a": 1}}]}]}')
    assert read_script(toml) == read_script(json)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/messages", "/v1/messages"),
        ("/p/claude/v1/messages/", "/v1/messages"),
        ("/v1/x/v1/models/a/b", "/v1/models/a/b"),
        ("/run/7/metrics", "/metrics"),
        ("/", "/"),
        ("/api/hello", "/api/hello"),
    ],
)
def test_prefixes_are_dropped(path: str, known: str) -> None:
    assert route_of(path) == known
