"""KV that comes from disk after a restart: the same logits to the bit, the account exact, damage computed anew."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

import tinymodel  # noqa: E402

from localmodel.engine.cache.disk import DiskTier  # noqa: E402
from localmodel.engine.cache.tiers import HEADER_BYTES  # noqa: E402
from localmodel.engine.engine import Engine, Sizes  # noqa: E402
from localmodel.engine.errors import MissingModel  # noqa: E402
from localmodel.engine.sampling import SamplingParams  # noqa: E402

Opened = Callable[..., Engine]
TALK = [n * 7919 % 40_000 for n in range(1, 301)]
GIB = 2**30


@dataclass
class Answer:
    """A listener that takes the logits' bits too: they come through the guide."""

    reused: int = -1
    tokens: list[int] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)
    over: Event = field(default_factory=Event)
    error: Exception | None = None

    def claimed(self, reused: int) -> None:
        self.reused = reused

    def started(self) -> None: ...

    def token(self, token: int) -> bool:
        self.tokens.append(token)
        return False

    def ended(self, reason: str) -> None:
        self.over.set()

    def failed(self, error: Exception) -> None:
        self.error = error
        self.over.set()

    def confine(self, row: Any) -> None:
        self.logits.append(row.numpy().tobytes())

    def take(self, token: int) -> None: ...


def ask(engine: Engine, prompt: Sequence[int], reuse: int | None = None, space: str = "a") -> Answer:
    """The greedy answer of eight tokens; all of the prompt may be reused unless said otherwise."""
    heard: Any = Answer()
    limit = len(prompt) if reuse is None else reuse
    engine.submit(
        engine.job(space, prompt, reuse=limit, max_tokens=8, params=SamplingParams(), listener=heard, guide=heard)
    )
    assert heard.over.wait(60) and heard.error is None
    found: Answer = heard
    return found


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """An engine over the pages in a folder; its pool holds 40 pages."""
    try:
        parts = tinymodel.parts(1024)
    except MissingModel as error:
        pytest.skip(str(error))
    return lambda disk_bytes=GIB, **sizes: Engine(
        parts, Sizes(40, paranoid=True, **sizes), DiskTier(tmp_path / "pages", disk_bytes)
    )


def closed(engine: Engine) -> None:
    engine.close()
    engine.scheduler.cache.check()
    counts = engine.counts
    assert (counts.free + counts.cached, counts.in_use) == (counts.total, 0)


def pages(folder: Path) -> list[Path]:
    return sorted((folder / "pages").iterdir())


def test_the_same_bits_after_a_restart(opened: Opened) -> None:
    first = opened()
    cold = ask(first, TALK)
    closed(first)
    second = opened()
    warm, elsewhere = ask(second, TALK), ask(second, TALK, space="b")
    assert (cold.reused, warm.reused, elsewhere.reused) == (0, len(TALK) - 1, 0)
    assert warm.tokens == cold.tokens and warm.logits == cold.logits
    assert second.computed == 1 + len(TALK)
    closed(second)


@pytest.mark.parametrize("reuse", [0, 1, 15, 16, 100, 298])
def test_what_the_rules_allow_is_reused_to_the_token(opened: Opened, reuse: int) -> None:
    first = opened()
    cold = ask(first, TALK)
    closed(first)
    second = opened()
    warm = ask(second, TALK, reuse)
    assert (warm.reused, second.computed) == (reuse, len(TALK) - reuse)
    assert warm.logits == cold.logits
    closed(second)


def test_the_answer_is_part_of_the_next_prompt(opened: Opened) -> None:
    first = opened()
    cold = ask(first, TALK[:50])
    closed(first)
    second = opened()
    longer = [*TALK[:50], *cold.tokens, *TALK[60:70]]
    assert ask(second, longer).reused in (50 + len(cold.tokens), 50 + len(cold.tokens) - 1), (
        "the last one is not computed"
    )
    closed(second)


@pytest.mark.parametrize("where", [0, 12, 60, 180, HEADER_BYTES, HEADER_BYTES + 5000, -1])
def test_a_flipped_bit_is_refused_and_the_page_computed_anew(opened: Opened, tmp_path: Path, where: int) -> None:
    first = opened()
    cold = ask(first, TALK)
    closed(first)
    for path in pages(tmp_path):
        raw = bytearray(path.read_bytes())
        raw[where] ^= 1
        path.write_bytes(raw)
    second = opened()
    again = ask(second, TALK)
    assert (again.reused, again.logits) == (0, cold.logits)
    closed(second)
    third = opened()
    assert ask(third, TALK).reused == len(TALK) - 1, "what was damaged has been written anew"
    closed(third)


def test_one_damaged_page_costs_what_comes_after_it(opened: Opened, tmp_path: Path) -> None:
    first = opened()
    cold = ask(first, TALK)
    first.close()
    fifth = next(path for path in pages(tmp_path) if TALK[64].to_bytes(4, "little") == path.read_bytes()[108:112])
    raw = bytearray(fifth.read_bytes())
    raw[-1] ^= 128
    fifth.write_bytes(raw)
    second = opened()
    again = ask(second, TALK)
    assert (again.reused, second.computed) == (64, len(TALK) - 64)
    assert again.logits == cold.logits
    assert second.scheduler.cache.refused == {"get:checksum": 1}
    closed(second)


def test_an_engine_that_is_killed_leaves_what_it_had_time_for(opened: Opened, tmp_path: Path) -> None:
    """No `close`: the folder is looked at while the engine idles, as after `kill -9`."""
    first = opened()
    cold = ask(first, TALK)
    while first.unsaved:
        Event().wait(0.05)
    second = opened()
    warm = ask(second, TALK)
    assert (warm.reused, warm.logits) == (len(TALK) - 1, cold.logits)
    second.close()
    first.close()


@pytest.mark.parametrize("host_pages", [0, 10])
def test_more_prompts_than_memory_holds(opened: Opened, host_pages: int) -> None:
    page = tinymodel.parts(1024).model.new_kv(1).page_bytes
    first = opened(host_bytes=host_pages * page)
    prompts = [[n, *TALK[:200]] for n in range(8)]
    cold = [ask(first, one) for one in prompts]
    warm = [ask(first, one) for one in prompts]
    closed(first)
    second = opened(host_bytes=host_pages * page)
    restored = [ask(second, one) for one in prompts]
    for one, two, three in zip(cold, warm, restored, strict=True):
        assert (two.reused, three.reused) == (200, 200)
        assert one.logits == two.logits == three.logits
    closed(second)


def test_the_disk_is_bounded(opened: Opened, tmp_path: Path) -> None:
    page = HEADER_BYTES + tinymodel.parts(1024).model.new_kv(1).page_bytes
    first = opened(disk_bytes=20 * page)
    for n in range(5):
        ask(first, [n, *TALK[:200]])
    closed(first)
    assert sum(path.stat().st_size for path in pages(tmp_path)) <= 20 * page
    second = opened(disk_bytes=20 * page)
    latest, oldest = ask(second, [4, *TALK[:200]]), ask(second, [0, *TALK[:200]])
    assert (latest.reused, oldest.reused) == (200, 0)
    closed(second)
