"""The app used by keys alone, by mouse, live, and over stores that fail."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hostile
import pytest
from screens import RECORDED, SMALL, press, settled, stored
from textual.pilot import Pilot
from textual.widgets import Input, Static

from auditor.pricing import open_prices
from auditor.store import Store
from auditor.visible import visible
from localmodel.rules.book import Rulebook
from traces import io
from tui.app import CachewrightApp
from tui.queries import Source
from tui.screens.sessions import SessionsScreen
from tui.widgets.rows import RowTable

Make = Callable[..., CachewrightApp]


def drive(app: CachewrightApp, steps: Callable[[Pilot[None]], Awaitable[Any]], size: tuple[int, int] = SMALL) -> Any:
    async def run() -> Any:
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            return await steps(pilot)

    return asyncio.run(run())


def text(pilot: Pilot[None], id: str) -> str:
    return str(pilot.app.screen.query_one(f"#{id}", Static).content)


def lines(pilot: Pilot[None]) -> list[str]:
    """What the table of the screen shows."""
    table = pilot.app.screen.query_one(RowTable)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def test_from_the_sessions_to_the_cause_of_row_11_and_the_total_of_all_fixes(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert "fourteen" in lines(pilot)[1] and "$1.21" in lines(pilot)[1] and "86.83%" in lines(pilot)[1]
        await press(pilot, "enter", "n", "n", "n", "n", "n", "enter")
        assert text(pilot, "top").startswith("Call 11")
        assert "beyond_lookback" in text(pilot, "why")
        assert "position 26 from the nearest breakpoint" in text(pilot, "why")
        assert "mark_previous_endpoint saves 40,020, $0.1201" in text(pilot, "why")
        await press(pilot, "escape", "w")
        assert "381,701 equivalents" in text(pilot, "totals")
        await press(pilot, "a")
        assert "158,018.5 equivalents" in text(pilot, "totals")
        assert "saves 223,682.5, $0.6710" in text(pilot, "totals")
        await press(pilot, "c")
        assert "157,868.5 equivalents" in text(pilot, "totals")

    drive(app("fourteen"), steps)


def test_policies_add_up_as_they_are_toggled(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "w", "space")
        assert "344,786 equivalents" in text(pilot, "totals")
        await press(pilot, "end", "enter")
        assert "saves 74,872.5" in text(pilot, "totals")
        await press(pilot, "space", "home", "space")
        assert "No policy chosen" in text(pilot, "totals")

    drive(app("fourteen"), steps)


def test_breakdowns(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "b")
        assert "14 calls, 381,701 equivalents, $1.21 with output" in text(pilot, "top")
        firsts = []
        for key in "12345":
            await press(pilot, key)
            assert "14 calls, 381,701 equivalents" in text(pilot, "top")
            firsts.append(lines(pilot)[1].split()[0])
        assert firsts == ["2026-03-02", "claude-sonnet-4-5", "fourteen", "main", "not_yet_readable"]

    drive(app("fourteen"), steps)


def test_filter_and_sort(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "slash")
        await pilot.press(*"[red]")
        await press(pilot, "enter")
        assert lines(pilot)[1].startswith("[red]") and lines(pilot)[2] == ""
        await press(pilot, "escape")
        assert len([line for line in lines(pilot) if line]) > 15
        await pilot.press(*("s",) * 6)
        await press(pilot, "r")
        listed = pilot.app.screen
        assert isinstance(listed, SessionsScreen)
        names = [session.trace.casefold() for session in listed.listed]
        assert names == sorted(names)

    drive(app("hostile"), steps)


@pytest.mark.parametrize("typed", hostile.STRINGS[:10:3])
def test_hostile_filters_do_nothing(app: Make, typed: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "slash")
        pilot.app.screen.query_one(Input).value = typed
        await settled(pilot)
        assert pilot.app.is_running
        assert any(visible(typed, 8).removesuffix("…") in line for line in lines(pilot)[1:])

    drive(app("hostile"), steps)


def test_hostile_text_is_shown_literally_on_every_screen(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        screen = pilot.app.screen
        assert isinstance(screen, SessionsScreen)
        for index, session in enumerate(screen.listed):
            screen.table.cursor = index
            await pilot.pause()
            start = visible(session.trace, 8).removesuffix("…").replace("\ufe0f", "")
            assert (start or "(empty)") in "\n".join(lines(pilot))
            if index % 2:
                continue
            await press(pilot, "enter", "down", "enter")
            why = text(pilot, "why")
            expected = visible(f"{session.trace} after" if "\x00" not in session.trace else "nul", 20)
            assert expected.removesuffix("…") in why or "tools_changed" in why or "system_changed" in why
            assert not any(char < " " and char != "\n" for char in why)
            await press(pilot, "escape", *(("w", "a", "escape") if index % 6 == 0 else ()), "escape")
        assert pilot.app.screen is screen

    drive(app("hostile"), steps)


def test_no_escape_sequence_of_a_trace_reaches_the_terminal(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "end")
        for line in lines(pilot):
            assert not any(char < " " or "\x7f" <= char <= "\x9f" or char == "\u202e" for char in line)

    drive(app("hostile"), steps, (160, 48))


def test_a_click_moves_the_cursor_a_second_one_opens_and_the_head_sorts(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        first = lines(pilot)[1]
        await pilot.click(RowTable, offset=(3, 3))
        await settled(pilot)
        assert pilot.app.screen.query_one(RowTable).cursor == 2
        await pilot.click(RowTable, offset=(3, 3))
        await settled(pilot)
        assert pilot.app.screen.query_one(RowTable).id == "calls"
        await press(pilot, "escape")
        await pilot.click(RowTable, offset=(20, 0))
        await settled(pilot)
        assert lines(pilot)[1] != first

    drive(app("hostile"), steps)


@pytest.mark.parametrize("keys", [(), ("enter",), ("enter", "n", "enter"), ("enter", "w"), ("b",)])
def test_all_keys_of_the_footer_have_room_in_80_columns(app: Make, keys: tuple[str, ...]) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, *keys)
        shown = [key for key in pilot.app.screen.query("FooterKey") if key.display]
        assert len(shown) >= 6
        assert max(key.region.right for key in shown) <= SMALL[0]

    drive(app("fourteen"), steps)


def test_the_help_has_room_in_80_by_24(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "question_mark")
        assert pilot.app.screen.query_one("VerticalScroll").max_scroll_y == 0

    drive(app("fourteen"), steps)


def test_in_40_columns_the_cause_and_the_money_stay(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert "fourteen" in lines(pilot)[1] and "$1.21" in lines(pilot)[1] and "$0.6710" in lines(pilot)[1]
        await press(pilot, "enter", "n")
        assert "✗ miss" in lines(pilot)[5] and "tools_changed" in lines(pilot)[5]
        await press(pilot, "w")
        assert "stable_tools" in lines(pilot)[1] and "36,915" in lines(pilot)[1]
        await press(pilot, "escape", "b")
        assert "2026-03-02" in lines(pilot)[1] and "$1.21" in lines(pilot)[1]

    drive(app("fourteen"), steps, (40, 15))


def test_what_a_column_cuts_stands_in_full_below(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "n")
        assert text(pilot, "detail") == "main: tools_changed: inserted at /tools/1, 32,800 paid again"
        await press(pilot, "home")
        assert text(pilot, "detail") == "main: cold write"
        await press(pilot, "w", "down")
        assert text(pilot, "detail").startswith("keep_tool_choice_auto: without the forced call")

    drive(app("fourteen"), steps)


def test_words_of_a_search_are_a_name_a_model_and_a_day(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for words, found in (("SONNET fourteen", 1), ("2026-03-02 09:00", 1), ("fourteen opus", 0)):
            await press(pilot, "slash")
            pilot.app.screen.query_one(Input).value = words
            await settled(pilot)
            assert len([line for line in lines(pilot)[1:] if line]) == found, words
            await press(pilot, "escape")

    drive(app("fourteen"), steps)


def test_the_palette_has_the_commands_of_the_screen(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "w", "ctrl+p", *"all fixes", "enter")
        assert "158,018.5 equivalents" in text(pilot, "totals")

    drive(app("fourteen"), steps)


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


def test_a_resize_changes_what_is_shown(app: Make) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert "paid again" not in lines(pilot)[0]
        await pilot.resize_terminal(160, 40)
        await settled(pilot)
        assert "paid again" in lines(pilot)[0] and "197,650" in lines(pilot)[1]
        await pilot.resize_terminal(20, 5)
        await settled(pilot)
        await press(pilot, "enter", "enter", "escape", "w")

    drive(app("fourteen"), steps)
