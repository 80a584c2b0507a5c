"""The app over stores that grow, fail, vanish, or hold odd calls."""

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from screens import RECORDED, drive, lines, press, settled, stored, text
from textual.pilot import Pilot

from auditor.pricing import open_prices
from auditor.store import Store
from localmodel.rules.book import Rulebook
from traces import io
from traces.schema import Call, Usage
from tui.app import CachewrightApp
from tui.queries import Source
from tui.widgets.rows import RowTable

Make = Callable[..., CachewrightApp]


def test_a_store_that_is_deleted_is_said_and_not_made_anew(stores: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(stores["fourteen"], tmp_path / "calls.db"))

    async def steps(pilot: Pilot[None]) -> None:
        path.unlink()
        await press(pilot, "enter")
        assert "calls.db: the file is gone" in text(pilot, "problem")
        assert not path.exists()
        stored(tmp_path, RECORDED / "usage_table" / "claude_code.csv")
        await press(pilot, "escape")
        for _ in range(40):
            await pilot.pause(0.1)
            if not lines(pilot)[1].startswith("fourteen"):
                break
        assert "entireio-cli" in lines(pilot)[1] and len([line for line in lines(pilot) if line]) == 2
        assert text(pilot, "problem") == ""

    drive(CachewrightApp(Source(path, Rulebook(), open_prices())), steps)


def test_a_store_that_comes_back_is_no_trouble_any_more(stores: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(stores["fourteen"], tmp_path / "calls.db"))

    async def steps(pilot: Pilot[None]) -> None:
        for move, words in ((("calls.db", "away.db"), "the file is gone"), (("away.db", "calls.db"), "")):
            (tmp_path / move[0]).rename(tmp_path / move[1])
            for _ in range(40):
                await pilot.pause(0.1)
                if bool(text(pilot, "problem")) == bool(words):
                    break
            assert words in text(pilot, "problem")
        assert text(pilot, "problem") == ""

    drive(CachewrightApp(Source(path, Rulebook(), open_prices())), steps)


def test_calls_without_times_models_or_usage(tmp_path: Path) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    plain = Usage(5000, 4000, 500, None, None, 10)
    odd = {
        "timeless": [
            Call(id=f"{n}", trace="timeless", provider="anthropic", started_at=None, seq=n, usage=plain) for n in (1, 2)
        ],
        "usageless": [Call(id="1", trace="usageless", provider="anthropic", started_at=start, status=200)],
        "failed": [Call(id="1", trace="failed", provider="anthropic", started_at=start, status=529)],
        "zero": [Call(id="1", trace="zero", provider="unheard of", started_at=start, usage=Usage(0, 0, 0, 0, 0, 0))],
        "huge": [
            Call(id="1", trace="huge", provider="openai", started_at=start, model="gpt-5", usage=Usage(2**62, 2**61, 0))
        ],
    }
    path = tmp_path / "odd.db"
    with Store.open(path) as store:
        store.add(call for calls in odd.values() for call in calls)

    async def steps(pilot: Pilot[None]) -> None:
        assert text(pilot, "problem") == ""
        for row in range(len(odd)):
            pilot.app.screen.query_one(RowTable).cursor = row
            await press(pilot, "enter", "enter", "n", "escape", "w", "a", "escape", "escape")
        await press(pilot, "b", *"12345")
        assert text(pilot, "problem") == "" and "not judged" in text(pilot, "detail")

    drive(CachewrightApp(Source(path, Rulebook(), open_prices()), live=False), steps)


@pytest.mark.parametrize("change", ["started_at = 'soon'", "facts = x'78ff'", "input_tokens = 'many'", "kind = x'ff'"])
def test_rows_that_somebody_else_changed(stores: dict[str, Path], tmp_path: Path, change: str) -> None:
    path = Path(shutil.copy(stores["fourteen"], tmp_path / "calls.db"))
    with contextlib.closing(sqlite3.connect(path)) as conn:
        conn.execute(f"UPDATE calls SET {change} WHERE seq = 3")
        conn.commit()

    async def steps(pilot: Pilot[None]) -> None:
        said = text(pilot, "problem")
        await press(pilot, "enter", "b")
        said += text(pilot, "problem")
        assert "calls.db: is damaged" in said

    drive(CachewrightApp(Source(path, Rulebook(), open_prices()), live=False), steps)


def test_it_follows_the_store(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (RECORDED / "fourteen/calls.jsonl").read_text().splitlines()]
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    path = stored(tmp_path, few)

    async def steps(pilot: Pilot[None]) -> None:
        assert " 4 " in lines(pilot)[1] and "● live" in text(pilot, "top")
        await press(pilot, "enter")
        with Store.open(path) as store:
            store.add(io.read(RECORDED / "fourteen/calls.jsonl"))
        for _ in range(40):
            await pilot.pause(0.1)
            if len([line for line in lines(pilot) if line]) == 15:
                break
        assert "14 calls" in text(pilot, "top")
        await settled(pilot)
        await press(pilot, "escape")
        assert " 14 " in lines(pilot)[1]

    drive(CachewrightApp(Source(path, Rulebook(), open_prices())), steps)


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    Store.open(path).close()

    async def steps(pilot: Pilot[None]) -> None:
        assert "cachewright tui run.jsonl" in text(pilot, "empty") and "new.db" in text(pilot, "empty")
        await press(pilot, "enter", "b", "escape")

    drive(CachewrightApp(Source(path, Rulebook(), open_prices())), steps)


def test_a_store_that_fails_while_it_is_looked_at(stores: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copy(stores["fourteen"], tmp_path / "calls.db")

    async def steps(pilot: Pilot[None]) -> None:
        Path(path).write_bytes(b"not a database, " * 1000)
        await press(pilot, "enter")
        assert "is not an SQLite database" in text(pilot, "problem")
        shutil.copy(stores["fourteen"], path)
        await press(pilot, "escape", "enter")
        assert "14 calls" in text(pilot, "top") and text(pilot, "problem") == ""

    drive(CachewrightApp(Source(Path(path), Rulebook(), open_prices()), live=False), steps)


def test_a_locked_store_is_said_and_asked_again(stores: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copy(stores["fourteen"], tmp_path / "calls.db")

    async def steps(pilot: Pilot[None]) -> None:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        lock.execute("DELETE FROM outcomes")
        await press(pilot, "enter")
        assert "is locked by another program" in text(pilot, "problem")
        lock.execute("ROLLBACK")
        lock.close()
        await press(pilot, "escape", "enter")
        assert "14 calls" in text(pilot, "top")

    drive(CachewrightApp(Source(Path(path), Rulebook(), open_prices()), live=False), steps)
