"""The app used by keys alone and by mouse, narrow and wide, with hostile text."""

from collections.abc import Callable

import hostile
import pytest
from screens import SMALL, drive, lines, press, settled, text
from textual.pilot import Pilot
from textual.widgets import Input

from auditor.visible import visible
from tui.app import CachewrightApp
from tui.screens.sessions import SessionsScreen
from tui.widgets.rows import RowTable

Make = Callable[..., CachewrightApp]


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
