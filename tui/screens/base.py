"""What all screens share: a line at the top, a line for what went wrong, and a footer with the keys."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from auditor.errors import AuditError
from tui.drawing import Piece
from tui.queries import Source
from tui.widgets.colours import content

if TYPE_CHECKING:
    from tui.app import CachewrightApp

Result = TypeVar("Result")


COMMON: tuple[BindingType, ...] = (
    Binding("escape,backspace", "back", "Back"),
    Binding("question_mark", "app.help", "Help", key_display="?"),
    Binding("q", "app.quit", "Quit"),
)
"""Keys of every screen; each lists them behind its own, which is the order in which the footer shows them."""


class Base(Screen[None]):
    """A screen over the store; Escape goes back."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as the base class has it

    @property
    def house(self) -> "CachewrightApp":
        """The app, with what it knows."""
        from tui.app import CachewrightApp

        assert isinstance(self.app, CachewrightApp)
        return self.app

    @property
    def source(self) -> Source:
        """What is looked at."""
        return self.house.source

    def say(self, pieces: list[Piece]) -> None:
        """Show the line at the top."""
        self.query_one("#top", Static).update(content(pieces))

    def detail(self, pieces: list[Piece]) -> None:
        """Show the row under the cursor in words: its columns may have no room for them."""
        self.query_one("#detail", Static).update(content(pieces))

    def problem(self, message: str) -> None:
        """Show what went wrong, or, for an empty message, that nothing is."""
        line = self.query_one("#problem", Static)
        line.update(content([(message, "")]))
        line.set_class(bool(message), "shown")

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], group: str = "default") -> None:
        """Run a task; an older one of its group ends. It is made when it runs, so that none is left over."""
        self.run_worker(work, exclusive=True, group=group)  # type: ignore[arg-type] # its overloads miss `None` results

    async def asked(self, ask: Callable[[], Awaitable[Result]]) -> Result | None:
        """The answer to a question to the store; `None`, and a line that says why, where it fails."""
        try:
            answer = await ask()
        except AuditError as error:
            self.problem(str(error))
            return None
        self.problem("")
        return answer

    def refreshed(self) -> None:
        """The store holds more calls than before; a screen that follows it reads it again."""

    def action_back(self) -> None:
        """Go back to the screen before."""
        self.app.pop_screen()
