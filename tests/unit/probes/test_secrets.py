"""Keys: which is used for whom, and that none is ever shown."""

import json

import pytest

from probes.api.secret import Scrubber
from probes.api.target import fingerprint, key_of, second_key_of, target_of
from probes.api.transport import _allowed
from probes.errors import BadTarget

KEY = "sk-ant-api03-" + "Zz9" * 12
ENVIRONMENT = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": "sk-openai-1"}


def test_each_api_gets_its_own_key() -> None:
    assert key_of(target_of("anthropic"), ENVIRONMENT, None) == KEY
    assert key_of(target_of("openai"), ENVIRONMENT, None) == "sk-openai-1"
    with pytest.raises(BadTarget, match=r"api\.deepseek\.com: no key; set DEEPSEEK_API_KEY"):
        key_of(target_of("deepseek"), ENVIRONMENT, None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "https://elsewhere.example"])
@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_a_url_never_gets_a_vendors_key(url: str, api: str) -> None:
    target = target_of(url, api)  # type: ignore[arg-type]
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return "typed-by-hand"

    assert key_of(target, ENVIRONMENT, ask) in ("local-probe-key", "typed-by-hand")
    assert key_of(target, {**ENVIRONMENT, "CACHEWRIGHT_PROBE_KEY": "its-own"}, None) == "its-own"
    assert bool(asked) is not target.local


def test_a_key_goes_over_the_wire_encrypted_or_not_at_all() -> None:
    with pytest.raises(BadTarget, match="unencrypted"):
        key_of(target_of("http://elsewhere.example"), {"CACHEWRIGHT_PROBE_KEY": "its-own"}, None)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("https://me:secret@elsewhere.example", "CACHEWRIGHT_PROBE_KEY"),
        ("https://elsewhere.example/?key=secret", "query"),
        ("ftp://elsewhere.example", "neither anthropic, openai, deepseek"),
        ("antropic", "neither anthropic"),
        ("http://[::1", "no URL"),
        ("http://127.0.0.1:port", "no URL"),
    ],
)
def test_urls_that_are_refused(url: str, part: str) -> None:
    with pytest.raises(BadTarget) as caught:
        target_of(url)
    assert part in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
def test_only_this_machine_is_free(host: str) -> None:
    assert target_of(f"http://{host}:1").local


@pytest.mark.parametrize("host", ["localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "0.0.0.0", "128.0.0.1"])
def test_everything_else_costs(host: str) -> None:
    assert not target_of(f"https://{host}").local


@pytest.mark.parametrize("key", ["sp ace-key", "kéy-with-accent", "a", "line\nbreak"])
def test_unusable_keys_are_refused_unseen(key: str) -> None:
    with pytest.raises(BadTarget) as caught:
        key_of(target_of("anthropic"), {"ANTHROPIC_API_KEY": key}, None)
    assert key not in str(caught.value) or key == "a"


def test_the_second_key_has_no_default_at_a_hosted_api() -> None:
    assert second_key_of(target_of("anthropic"), ENVIRONMENT) is None
    assert second_key_of(target_of("http://127.0.0.1:1"), {}) != key_of(target_of("http://127.0.0.1:1"), {}, None)


def test_scrubbing() -> None:
    odd = 'quo"te\\back'
    scrub = Scrubber([KEY, odd])
    for text in (KEY, f"Bearer {KEY}", json.dumps({"a": [KEY, odd]}), f"x{odd}x"):
        assert KEY not in scrub(text) and odd not in scrub(text)
        assert json.dumps(odd)[1:-1] not in scrub(text)
    assert json.loads(scrub(json.dumps({"a": odd}))) == {"a": "[key]"}


def test_messages_lose_what_looks_like_a_key() -> None:
    said = Scrubber([]).message("Incorrect API key provided: sk-ab***********YZ. See\nhttps://example.com")
    assert said == "Incorrect API key provided: [key] See https://example.com"


def test_the_fingerprint_tells_keys_apart_and_nothing_else() -> None:
    assert fingerprint(KEY) != fingerprint(KEY + "x")
    assert len(fingerprint(KEY)) == 16 and fingerprint(KEY) not in KEY


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("authorization", f"Bearer {KEY}", True),
        ("x-api-key", KEY, True),
        ("authorization", "Bearer another", False),
        ("x-api-key", "another", False),
        ("openai-organization", "org", False),
        ("openai-project", "p", False),
        ("anthropic-beta", "from the environment", False),
        ("cookie", "a=b", False),
        ("anthropic-version", "2023-06-01", True),
        ("x-stainless-lang", "python", True),
        ("content-type", "application/json", True),
    ],
)
def test_what_passes_the_guard(name: str, value: str, allowed: bool) -> None:
    assert _allowed(name, value, KEY) is allowed
