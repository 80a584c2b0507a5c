"""What a probe asks before it spends money: consent, a key, a budget; and nothing is sent without them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("anthropic", reason="the SDK is not installed")

import inside

Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "a-key-that-must-not-be-seen-4711"


@pytest.fixture
def cachewright(tmp_path: Path, environment: dict[str, str]) -> Run:
    return partial(inside.cachewright, tmp_path, environment)


DEAD_PROXY = {"HTTPS_PROXY": "http://127.0.0.1:9", "ANTHROPIC_API_KEY": KEY}


@pytest.fixture
def paid(environment: dict[str, str]) -> None:
    """No test may reach a paid API, whatever goes wrong."""
    environment.update(DEAD_PROXY)


@pytest.mark.usefixtures("paid")
@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--model", "claude-opus-4-8"], 2, "this costs money and nobody can be asked"),
        (["--model", "no-such-model", "--yes"], 2, "no-such-model: no price is known"),
        (["--model", "claude-opus-4-8", "--yes", "--budget", "0.001"], 1, "the next request may cost up to $"),
        (["--model", "claude-opus-4-8", "--yes"], 4, "no answer"),
        (["--model", "claude-opus-4-8", "--budget", "nothing"], 2, "no amount of dollars above 0"),
        (["--model", "claude-opus-4-8", "--budget", "-1"], 2, "no amount of dollars above 0"),
        (["--model", "claude-opus-4-8", "--budget", "NaN"], 2, "no amount of dollars above 0"),
        (["--model", "claude-opus-4-8", "--api", "chat"], 2, "anthropic is probed through messages"),
    ],
)
def test_money_needs_consent(cachewright: Run, document: Path, arguments: list[str], code: int, part: str) -> None:
    done = cachewright("probe", "four", document, "--target", "anthropic", *arguments, stdin="")
    assert done.returncode == code, done.stderr
    assert part in done.stderr and KEY not in done.stderr


@pytest.mark.usefixtures("paid")
def test_the_cost_is_shown_before_anything(cachewright: Run, document: Path) -> None:
    done = cachewright("probe", "four", document, "--target", "anthropic", "--model", "claude-opus-4-8", stdin="")
    assert "about 4 requests" in done.stderr and "never more than $" in done.stderr


@pytest.mark.usefixtures("paid")
def test_no_key_means_nothing_is_sent(cachewright: Run, environment: dict[str, str], document: Path) -> None:
    del environment["ANTHROPIC_API_KEY"]
    arguments = ("--target", "anthropic", "--model", "claude-opus-4-8", "--yes", "--json")
    done = cachewright("probe", "four", document, *arguments, stdin="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "api.anthropic.com: no key; set ANTHROPIC_API_KEY" in done.stderr


@pytest.mark.usefixtures("paid")
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("answer", "code", "part"),
    [("n", 130, b"before anything was sent"), ("", 130, b"before anything"), ("y", 4, b"no answer")],
)
def test_the_question_and_the_hidden_prompt(
    command: list[str], environment: dict[str, str], document: Path, tmp_path: Path, answer: str, code: int, part: bytes
) -> None:
    import pty

    del environment["ANTHROPIC_API_KEY"]
    master, slave = pty.openpty()
    arguments = ["probe", "four", f"{document}", "--target", "anthropic", "--model", "claude-opus-4-8", "--json"]
    with subprocess.Popen(
        [*command, *arguments], stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment, cwd=tmp_path
    ) as process:
        os.close(slave)
        seen = _read(master, b"[y/N]")
        os.write(master, answer.encode() + b"\n")
        if answer == "y":
            seen += _read(master, b"not shown")
            time.sleep(0.2)
            os.write(master, KEY.encode() + b"\n")
        seen += _read(master, None)
        assert process.wait(20) == code
    os.close(master)
    assert part in seen and KEY.encode() not in seen


@pytest.mark.usefixtures("paid")
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("more", "prompt"), [([], b"[y/N]"), (["--yes"], b"not shown")])
def test_ctrl_c_at_a_question(
    command: list[str], environment: dict[str, str], document: Path, more: list[str], prompt: bytes
) -> None:
    import pty

    del environment["ANTHROPIC_API_KEY"]
    master, slave = pty.openpty()
    arguments = ["probe", "four", f"{document}", "--target", "anthropic", "--model", "claude-opus-4-8", *more]
    with subprocess.Popen(
        [*command, *arguments], stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        seen = _read(master, prompt)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        seen += _read(master, None)
        assert process.wait(20) == 130
    os.close(master)
    assert b"stopped before anything was sent" in seen and b"Traceback" not in seen


def _read(master: int, until: bytes | None) -> bytes:
    seen = b""
    while until is None or until not in seen:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other side has ended
            return seen
        if not part:
            return seen
        seen += part
    return seen
