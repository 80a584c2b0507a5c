"""`cachewright serve --kv DIR` as a user starts it: stopped or killed, the next one goes on from where it was."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

from localmodel.engine.errors import MissingModel
from localmodel.engine.fetch import default_model

Json = dict[str, Any]
STOPS = (signal.SIGTERM, signal.SIGKILL)


@dataclass
class Shell:
    """Starts servers in one home over one folder."""

    command: list[str]
    environment: dict[str, str]
    kv: Path
    errors: Path
    model: str = "scripted"

    @contextmanager
    def serve(self, *options: str, end: int = signal.SIGTERM, wait_s: float = 30) -> Iterator[serving.Client]:
        words = [*self.command, "serve", "--port", "0", "--model", self.model, "--set", "min_tokens=8"]
        with (
            self.errors.open("w") as errors,
            subprocess.Popen(
                [*words, "--kv", str(self.kv), *options],
                stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment,
            ) as process,
        ):  # fmt: skip
            assert process.stdout is not None
            line = process.stdout.readline()
            try:
                assert "http://" in line, self.errors.read_text()
                yield serving.Client(next(word for word in line.split() if word.startswith("http://")), "k")
            finally:
                process.send_signal(end)
                code = process.wait(wait_s)
        assert code == (0 if end == signal.SIGTERM else -end)

    def said(self) -> str:
        return self.errors.read_text()


@pytest.fixture
def shell(command: list[str], environment: dict[str, str], tmp_path: Path) -> Shell:
    return Shell(command, environment, tmp_path / "kv", tmp_path / "stderr")


def ask(client: serving.Client, text: str, **rest: Any) -> Json:
    """The call as its server books it."""
    reply = client.post("/v1/messages", serving.message(text, **{"max_tokens": 8, **rest}))
    assert reply.status == 200, reply.raw
    call: Json = client.calls()[-1]
    assert call["reused_tokens"] == call["read_tokens"] == int(reply.headers["x-cachewright-read"])
    return {**call, "text": reply.json["content"][0]["text"]}


def words(seed: int, count: int = 150) -> str:
    return " ".join(f"w{seed * 7919 % 1000 + number}" for number in range(count))


@pytest.mark.parametrize("end", STOPS)
def test_the_second_call_hits_after_a_restart(shell: Shell, end: int) -> None:
    with shell.serve(end=end) as client:
        wrote = ask(client, words(1))
    with shell.serve(end=end) as client:
        assert ask(client, words(2))["verdict"] == "cold_write"
        found = ask(client, words(1))
        assert (found["verdict"], found["read_tokens"]) == ("hit", wrote["write_tokens"])
    with shell.serve() as client:
        assert [ask(client, words(n))["verdict"] for n in (1, 2, 3)] == ["hit", "hit", "cold_write"]
    assert shell.said() == ""


def test_lifetimes_go_on_while_the_server_is_down(shell: Shell) -> None:
    with shell.serve("--set", "ttl.5m=3") as client:
        ask(client, words(1))
    time.sleep(3.1)
    with shell.serve("--set", "ttl.5m=3") as client:
        late = ask(client, words(1))
        assert (late["verdict"], late["cause"], late["read_tokens"]) == ("miss", "ttl_expired", 0)


def test_other_rules_and_another_server_are_told_and_harm_nothing(shell: Shell) -> None:
    with shell.serve() as client:
        ask(client, words(1))
    with shell.serve("--rules", "openai") as client:
        assert ask(client, words(1), cache_control={"type": "ephemeral"})["read_tokens"] == 0
    told = "rules 'anthropic --set min_tokens=8', not 'openai --set min_tokens=8': not used, the cache starts empty"
    assert told in shell.said()
    with shell.serve() as client:
        assert ask(client, words(1))["verdict"] == "hit"
        second = subprocess.run(
            [*shell.command, "serve", "--port", "0", "--model", "scripted", "--kv", str(shell.kv)],
            capture_output=True, text=True, env=shell.environment, timeout=30,
        )  # fmt: skip
        assert (second.returncode, second.stdout) == (2, "")
        words_said = "another server uses it; stop that one or give another folder"
        assert second.stderr == f"cachewright: --kv {shell.kv}: {words_said}\n"
    file = shell.kv.parent / "file"
    file.write_text("")
    refused = subprocess.run(
        [*shell.command, "serve", "--model", "scripted", "--kv", f"{file}/x"],
        capture_output=True, text=True, env=shell.environment, timeout=30,
    )  # fmt: skip
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "give a folder" in refused.stderr


def test_a_killed_server_under_load_promises_nothing_that_it_did_not_write(shell: Shell) -> None:
    with shell.serve(end=signal.SIGKILL) as client:
        done = [ask(client, words(n)) for n in range(40)]
    with shell.serve() as client:
        assert {ask(client, words(n))["verdict"] for n in range(len(done))} == {"hit"}
    assert shell.said() == ""


# With weights: what is read is what was not computed, before and after.


@pytest.fixture
def real(shell: Shell) -> Shell:
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    try:
        default_model()
    except MissingModel as error:
        pytest.skip(str(error))
    shell.model = "default"
    return shell


def pages(client: serving.Client) -> dict[str, int]:
    page = client.get("/metrics").raw.decode()
    return {line.split('"')[1]: int(line.split()[-1]) for line in page.splitlines() if "kv_pages{" in line}


def idle(client: serving.Client) -> dict[str, int]:
    """The pages once none is in use: the step that ends an answer is counted after the client has it."""
    end = time.monotonic() + 20
    while (found := pages(client))["in_use"] and time.monotonic() < end:
        time.sleep(0.1)
    assert found["in_use"] == 0
    return found


def saved(client: serving.Client, count: int) -> bool:
    """Whether so many pages are on disk, within a while."""
    end = time.monotonic() + 20
    while (found := pages(client)["disk"]) < count and time.monotonic() < end:
        time.sleep(0.1)
    return found >= count


def test_a_real_model_reads_from_disk_after_a_restart(real: Shell) -> None:
    with real.serve(end=signal.SIGKILL) as client:
        wrote = ask(client, words(1))
        assert saved(client, -(-wrote["input_tokens"] // 16)), "a killed server has only what it had the time for"
    with real.serve() as client:
        found = ask(client, words(1))
        assert (found["verdict"], found["read_tokens"]) == ("hit", wrote["write_tokens"])
        assert found["text"] == wrote["text"]
        other = ask(client, words(2))
        assert idle(client)["cached"] > 0
    for number, path in enumerate((real.kv / "pages").iterdir()):
        spoil(path, gone=number % 2 == 0)
    with real.serve() as client:
        lost, rest = ask(client, words(1)), ask(client, words(2))
        assert (lost["verdict"], lost["cause"], lost["reused_tokens"]) == ("miss", "evicted", 0)
        # The template's own beginning is the first prompt's too, which has just been computed anew.
        assert rest["cause"] == "evicted" and rest["reused_tokens"] < 32
        assert (lost["text"], rest["text"]) == (wrote["text"], other["text"])
    assert "Traceback" not in real.said()


def spoil(path: Path, *, gone: bool) -> None:
    """Take a page away, or flip one bit of it."""
    if gone:
        return path.unlink()
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 4
    path.write_bytes(raw)
    return None
