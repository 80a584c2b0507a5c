"""Real clients through the proxy into the local server: as they behave directly, and recorded as the server saw them.

`make test-clients` installs them with npm, pinned, into a folder of their own (CACHEWRIGHT_CLIENTS).
"""

import json
from pathlib import Path

import pytest
import serving
from installed import Place, agree, from_npm
from proxying import recorded

# node itself comes from npm too: the newest clients want 22.19, and npm silently takes old ones for an older node.
PINNED = {
    "node": "node@22.23.3",
    "claude": "@anthropic-ai/claude-code@2.1.332",
    "codex": "@openai/codex@0.171.0",
    "opencode": "opencode-ai@1.18.33",
    "pi": "@earendil-works/pi-coding-agent@1.6.0",
}


@pytest.fixture(scope="module")
def programs() -> Path:
    return from_npm(PINNED)


def test_claude_code(tmp_path: Path, programs: Path, server: serving.Running) -> None:
    place = Place(tmp_path, programs, server.url)
    direct = place.run("claude", "-p", "say hello", ANTHROPIC_BASE_URL=server.url)
    assert "You said" in direct
    assert place.recorded("claude", "-p", "say hello") == direct
    place.recorded("claude", "-p", "--continue", "and again")
    verdicts = agree(place, server, "messages")
    assert verdicts[-1] in ("hit", "partial_miss")
    exchanges = [one for one in recorded(place.db) if one.call]
    assert all("claude-cli/" in json.dumps(one.facts["request"]["headers"]) for one in exchanges)
    assert len({one.call.trace for one in exchanges if one.call}) == 2


def test_codex(tmp_path: Path, programs: Path, server: serving.Running) -> None:
    place = Place(tmp_path, programs, server.url)
    common = ("exec", "--skip-git-repo-check")
    provider = (
        f'model_providers.l={{name="l",base_url="{server.url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}}'
    )
    direct = place.run("codex", "-c", provider, "-c", 'model_provider="l"', *common, "say hello")
    assert place.recorded("codex", *common, "say hello") == direct
    place.recorded("codex", *common, "resume", "--last", "and again")
    assert agree(place, server, "responses")[-1] == "hit"


def test_pi(tmp_path: Path, programs: Path, server: serving.Running) -> None:
    place = Place(tmp_path, programs, server.url)
    words = ("pi", "-p", "--provider", "anthropic", "--model", "claude-sonnet-5-5")
    first = place.recorded(*words, "say hello")
    assert "say hello" in first
    place.recorded(*words, "-c", "and again")
    assert agree(place, server, "messages")[-1] == "hit"
    assert (place.home / ".pi" / "agent" / "sessions").is_dir()


def test_opencode(tmp_path: Path, programs: Path, server: serving.Running) -> None:
    place = Place(tmp_path, programs, server.url)
    words = ("opencode", "run", "--model", "anthropic/claude-sonnet-4-5")
    assert "say hello" in place.recorded(*words, "say hello")
    place.recorded(*words, "--continue", "and again")
    assert agree(place, server, "messages")[-1] in ("hit", "partial_miss")
