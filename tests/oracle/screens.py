"""The terminal app under test: stores for it, and keys pressed once everything asked for is shown."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from auditor.audit import audit
from auditor.outcomes import outcome_rows
from auditor.store import Store
from localmodel.rules.book import Rulebook
from traces import io
from tui.queries import body_reader

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
