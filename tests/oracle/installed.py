"""Real agents for tests: where they are installed, a home to run them in, and what must agree after it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import serving
from proxying import recorded

from auditor.audit import audit
from auditor.store import Store
from localmodel.rules.load import load

ROOT = Path(__file__).parents[2]
PROGRAM = "from tui.cli import main; main(prog_name='cachewright')"
KEY = "sk-ant-test-0123456789"
INSTALL_S = 600


def folder_of_clients() -> Path:
    """Where clients are installed; skips unless `make test-clients` runs."""
    place = os.environ.get("CACHEWRIGHT_CLIENTS")
    if not place:
        pytest.skip("real clients are installed by `make test-clients` only")
    return Path(place).resolve()


def from_npm(pinned: dict[str, str]) -> Path:
    """The folder of these programs, installed where they are not yet."""
    folder = folder_of_clients()
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    programs = folder / "node_modules" / ".bin"
    if not all((programs / name).exists() for name in pinned):
        folder.mkdir(parents=True, exist_ok=True)
        _install("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *pinned.values())
    return programs


def from_pip(name: str, *pinned: str) -> Path:
    """The folder of the program `name`, in a virtual environment of its own."""
    programs = folder_of_clients() / f"venv-{name}" / "bin"
    if not (programs / name).exists():
        _install(sys.executable, "-m", "venv", str(programs.parent))
        _install(str(programs / "python"), "-m", "pip", "install", "--quiet", *pinned)
    return programs


def _install(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"{words[0]} cannot install {words[-1]}: {done.stderr.strip().splitlines()[-1:]}")


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
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
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
