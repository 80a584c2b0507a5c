"""The terminal app over stores that are made once: the 14 rows, a recorded session, and hostile text."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile
import pytest
from screens import RECORDED, stored

from auditor.pricing import open_prices
from localmodel.rules.book import Rulebook
from tui.app import CachewrightApp
from tui.queries import Source


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores by name."""
    words = hostile.save(tmp_path_factory.mktemp("words") / "hostile.jsonl")
    traces = {
        "fourteen": RECORDED / "fourteen" / "calls.jsonl",
        "recorded": RECORDED / "usage_table" / "claude_code.csv",
        "hostile": words,
    }
    return {name: stored(tmp_path_factory.mktemp(name), trace) for name, trace in traces.items()}


@pytest.fixture(autouse=True)
def colours() -> Iterator[None]:
    """Screens are compared with their colours, whatever the caller's terminal is."""
    names = ("NO_COLOR", "COLORTERM", "TERM", "FORCE_COLOR")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ["TERM"] = "xterm-256color"
    yield
    os.environ.pop("TERM")
    os.environ.update(kept)


@pytest.fixture
def app(stores: dict[str, Path]) -> Callable[..., CachewrightApp]:
    """`app("fourteen")`: the app over that store."""

    def make(name: str, *, live: bool = False) -> CachewrightApp:
        return CachewrightApp(Source(stores[name], Rulebook(), open_prices()), live=live)

    return make
