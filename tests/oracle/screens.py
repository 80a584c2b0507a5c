"""The terminal app under test: stores for it, and keys pressed once everything asked for is shown."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from auditor.audit import audit
from auditor.outcomes import outcome_rows
from auditor.store import Store
from localmodel.rules.book import Rulebook
from traces import io
from tui.app import CachewrightApp
from tui.queries import body_reader
from tui.widgets.rows import RowTable

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "traces" / "recorded"
SMALL, LARGE = (80, 24), (160, 48)


def stored(folder: Path, trace: Path) -> Path:
    """A store with the calls of a trace and what the rules say of them."""
    path, book = folder / "calls.db", Rulebook()
    with Store.open(path) as store:
        store.add(io.read(trace))
        result = audit(store.calls(), book, body_reader(store))
        store.save_outcomes(book.basis, outcome_rows(result))
    return path


async def settled(pilot: Pilot[None]) -> None:
    """Wait until everything asked for is shown."""
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys one after the other, each answered before the next."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


def walk(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Presses keys once the first screen is there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await press(pilot, *keys)

    return run


def drive(app: CachewrightApp, steps: Callable[[Pilot[None]], Awaitable[Any]], size: tuple[int, int] = SMALL) -> Any:
    """Run the app and take these steps once the first screen is there."""

    async def run() -> Any:
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            return await steps(pilot)

    return asyncio.run(run())


def text(pilot: Pilot[None], id: str) -> str:
    """What a line of the screen says."""
    return str(pilot.app.screen.query_one(f"#{id}", Static).content)


def lines(pilot: Pilot[None]) -> list[str]:
    """What the table of the screen shows."""
    table = pilot.app.screen.query_one(RowTable)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]
