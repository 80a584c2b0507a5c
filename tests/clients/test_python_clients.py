"""Clients from PyPI through the proxy into the local server, each in a virtual environment of its own."""

from pathlib import Path

import pytest
import serving
from installed import Place, agree, from_pip

LONG = "say hello " * 1500
"""More tokens than the shortest prefix that a provider caches."""


@pytest.fixture(scope="module")
def llm() -> Path:
    return from_pip("llm", "llm==0.36", "llm-anthropic==0.30")


@pytest.fixture(scope="module")
def aider() -> Path:
    return from_pip("aider", "aider-chat==0.86.2")


def test_llm_messages(tmp_path: Path, llm: Path, server: serving.Running) -> None:
    place = Place(tmp_path, llm, server.url)
    words = ("llm", "-m", "claude-sonnet-4.5", "-o", "cache", "1")
    direct = place.run(*words, LONG, ANTHROPIC_BASE_URL=server.url)
    assert place.recorded(*words, LONG) == direct
    assert place.recorded(*words, "-c", "and again") == "You said: and again\n"
    assert agree(place, server, "messages")[-1] == "hit"


def test_llm_chat(tmp_path: Path, llm: Path, server: serving.Running) -> None:
    place = Place(tmp_path, llm, server.url)
    direct = place.run("llm", "-m", "gpt-4o", LONG, OPENAI_BASE_URL=f"{server.url}/v1")
    assert place.recorded("llm", "-m", "gpt-4o", LONG) == direct
    place.recorded("llm", "-m", "gpt-4o", "-c", "and again")
    assert agree(place, server, "chat")[-1] == "hit"


def test_aider(tmp_path: Path, aider: Path, server: serving.Running) -> None:
    place = Place(tmp_path, aider, server.url)
    quiet = ("--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update", "--no-analytics")
    words = ("aider", "--model", "openai/gpt-4o", *quiet, "--no-stream", "--map-tokens", "0", "--message")
    assert "You said" in place.recorded(*words, LONG)
    place.recorded(*words, LONG)
    assert agree(place, server, "chat")[-1] in ("hit", "partial_miss")
