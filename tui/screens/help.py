"""What the keys do and what the signs mean."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.drawing import Piece
from tui.widgets.colours import content

_KEYS = (
    ("↑ ↓ PgUp PgDn", "move; j, k, g, G, Home and End too"),
    ("Enter  Escape", "open, go back"),
    ("/", "search sessions by name, model and day; Escape shows all"),
    ("s  r", "sort by the next column, turn the order round"),
    ("b", "costs by 1 day, 2 model, 3 project, 4 kind, 5 cause"),
    ("n  p", "next, previous miss; on a call: next, previous call"),
    ("m  Tab", "on a call: next miss, list of blocks"),
    ("w", "what if: Space toggles; a all fixes, c cheapest, x none"),
    ("l  t", "follow the store or not, dark or light"),
    ("Ctrl+P", "command palette: this screen's commands, all themes"),
    ("q", "quit"),
)

_SIGNS: tuple[tuple[Piece, ...], ...] = (
    (
        *(("███ ", "read"), ("read from the cache   ", ""), ("▒▒▒ ", "written"), ("written   ", "")),
        *(("░░░ ", "uncached"), ("billed uncached", "")),
    ),
    (("▼ breakpoint   ┃ where the hit ended   ╵ end of a block", ""),),
    (),
    (("✓ hit", "good"), ("   everything cached was read", "")),
    (("◐ part  ✗ miss", "miss"), ("   some or all cached tokens were paid for again", "")),
    (
        *(("+ cold", "written"), ("  first write, necessary   ", "")),
        *(("○ none", "dim"), ("  cache not used   ", ""), ("? unkn", "dim"), ("  not known", "")),
    ),
    (("ceiling: share read with all fixes; avoidable: proved by replay", "dim"),),
    (("eq: input-token equivalents; one costs as much as a plain input token", "dim"),),
    (("A gap with ! is as long as the entry's lifetime or longer.", "dim"),),
)


class HelpScreen(ModalScreen[None]):
    """A page over the screen; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Keys, then signs."""
        with VerticalScroll():
            yield Static(content(_page()))


def _page() -> list[Piece]:
    pieces: list[Piece] = []
    for keys, meaning in _KEYS:
        pieces += [(f"  {keys:<14}", "good"), (meaning, ""), ("\n", "")]
    for line in _SIGNS:
        pieces += [("\n", ""), ("  " if line else "", ""), *line]
    return pieces
