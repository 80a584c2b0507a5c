"""Real clients through the proxy into the local server: as they behave directly, and recorded as the server saw them.

`make test-clients` installs them with npm, pinned, into a folder of their own (CACHEWRIGHT_CLIENTS).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from proxying import recorded

from auditor.audit import audit
from auditor.store import Store
from localmodel.rules.load import load

ROOT = Path(__file__).parents[2]
PROGRAM = "from tui.cli import main; main(prog_name='cachewright')"
KEY = "sk-ant-test-0123456789"
# node itself comes from npm too: the newest clients want 22.19, and npm silently takes old ones for an older node.
PINNED = {
    "node": "node@22.23.3",
    "claude": "@anthropic-ai/claude-code@2.1.332",
    "codex": "@openai/codex@0.171.0",
    "pi": "@earendil-works/pi-coding-agent@1.6.0",
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the clients' programs, installed where they are not yet."""
    place = os.environ.get("CACHEWRIGHT_CLIENTS")
    if not place:
        pytest.skip("real clients are installed by `make test-clients` only")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = Path(place).resolve()
    programs = folder / "node_modules" / ".bin"
    if not all((programs / name).exists() for name in PINNED):
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *PINNED.values()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install the clients: {done.stderr.strip().splitlines()[-1:]}")
    return programs


@pytest.fixture
def server() -> Iterator[serving.Running]:
    with serving.running() as found:
        yield found


class Place:
    """A home and a working folder of the test's own, in which clients run."""

    def __init__(self, folder: Path, programs: Path, url: str) -> None:
        self.home, self.url = folder / "home", url
        self.work = folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.db = folder / "a.db"
        kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
        self.environment = kept | {
            "HOME": str(self.home), "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "CODEX_API_KEY": KEY, "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }  # fmt: skip

    def run(self, *words: str, **more: str) -> str:
        done = subprocess.run(
            words, cwd=self.work, env=self.environment | more, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def recorded(self, *words: str) -> str:
        own = [sys.executable, "-c", PROGRAM, "record", "--upstream", self.url, "--db", str(self.db), "--"]
        return self.run(*own, *words)


def agree(place: Place, server: serving.Running, api: str) -> list[str]:
    """Verdicts of all calls, after checking usage and verdict of each against the server's own account."""
    with Store.open(place.db) as store:
        result = audit(store.calls(), load("anthropic"), lambda one: store.request(one.call.key or b""))
    mine = [one for one in result.calls if one.call.api == api and one.call.kind != "count"]
    theirs = [row for row in server.client(KEY).calls() if row["api"] == api][-len(mine) :]
    assert len(mine) == len(theirs) > 0
    for one, row in zip(mine, theirs, strict=True):
        usage = one.call.usage
        assert (usage.input_tokens, usage.read_tokens) == (row["input_tokens"], row["read_tokens"])
        assert one.verdict == row["verdict"], (one.diagnosis, row)
    raw = place.db.read_bytes() + b"".join(repr(one).encode() for one in recorded(place.db))
    assert KEY.encode() not in raw
    return [one.verdict for one in mine]


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
