"""Every screen as a picture, narrow and wide. What changed is to be looked at, then `make golden`."""

import asyncio
import re
from collections.abc import Callable

import pytest
from screens import LARGE, ROOT, SMALL, walk

from tui.app import CachewrightApp

Make = Callable[..., CachewrightApp]
Snap = Callable[..., bool]
WALKS: dict[str, tuple[str, ...]] = {
    "sessions": (),
    "timeline": ("enter",),
    "call": ("enter", "n", "enter"),
    "whatif": ("enter", "w", "a"),
    "breakdown": ("b", "2"),
    "help": ("question_mark",),
}


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x48"])
@pytest.mark.parametrize("screen", WALKS)
@pytest.mark.parametrize("store", ["fourteen", "recorded", "hostile"])
def test_screen(snap_compare: Snap, app: Make, store: str, screen: str, size: tuple[int, int]) -> None:
    if screen == "help" and store != "fourteen":
        pytest.skip("the help has no text of a trace")
    assert snap_compare(app(store), terminal_size=size, run_before=walk(*WALKS[screen]))


def test_the_light_theme(snap_compare: Snap, app: Make) -> None:
    assert snap_compare(app("fourteen"), terminal_size=SMALL, run_before=walk("t", "enter"))


@pytest.mark.parametrize("screen", ["sessions", "timeline", "call", "whatif"])
def test_the_pictures_in_the_docs(app: Make, screen: str, request: pytest.FixtureRequest) -> None:
    made = asyncio.run(picture(app("fourteen"), WALKS[screen]))
    path = ROOT / "docs" / "images" / f"tui-{screen}.svg"
    if request.config.getoption("--golden-update"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made)
    assert words(path.read_text()) == words(made)


async def picture(app: CachewrightApp, keys: tuple[str, ...]) -> str:
    async with app.run_test(size=(100, 24)) as pilot:
        await walk(*keys)(pilot)
        return app.export_screenshot(simplify=True)


def words(svg: str) -> list[str]:
    """What a picture shows; ids in it are its own."""
    return re.findall(r"<text[^>]*>(.*?)</text>", svg)
