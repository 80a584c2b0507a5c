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
    ("/", "filter the sessions; Escape shows all"),
    ("s  r", "sort by the next column, turn the order round"),
    ("b", "breakdown; 1 to 5: day, model, project, kind, cause"),
    ("n  p", "next and previous miss; on a call: next and previous call"),
    ("m  Tab", "on a call: next miss, list of blocks"),
    ("w", "what if: Space toggles; a all fixes, c cheapest, x none"),
    ("l  t", "follow the store or not, dark or light"),
    ("Ctrl+P", "command palette: all themes, screenshot and more"),
    ("q", "quit"),
)


class HelpScreen(ModalScreen[None]):
    """A page over the screen; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Keys, then signs."""
        with VerticalScroll():
            yield Static(content(_page()))


def _page() -> list[Piece]:
    pieces: list[Piece] = [("Keys", "bold"), ("\n", "")]
    for keys, meaning in _KEYS:
        pieces += [(f"  {keys:<14}", "good"), (meaning, ""), ("\n", "")]
    pieces += [("\n", ""), ("Bars", "bold"), ("\n", "")]
    pieces += [("  ███ ", "read"), ("read from the cache   ", ""), ("▒▒▒ ", "written"), ("written   ", "")]
    pieces += [("░░░ ", "uncached"), ("billed uncached", ""), ("\n", "")]
    pieces += [("  ▼ breakpoint   ┃ where the hit ended   ╵ end of a block", ""), ("\n", ""), ("\n", "")]
    pieces += [("Verdicts", "bold"), ("\n", "")]
    pieces += [("  ✓ hit", "good"), ("   everything cached was read", ""), ("\n", "")]
    pieces += [("  ◐ part  ✗ miss", "miss"), ("   some or all cached tokens were paid for again", ""), ("\n", "")]
    pieces += [
        ("  + cold", "written"),
        ("  first write, necessary   ", ""),
        ("○ none", "dim"),
        ("  cache not used", ""),
    ]
    pieces += [("   ", ""), ("? unkn", "dim"), ("  usage not recorded", ""), ("\n", ""), ("\n", "")]
    pieces += [("  ceiling: share read with all fixes; avoidable: proved by replay", "dim"), ("\n", "")]
    return [*pieces, ("  A gap with ! is as long as the entry's lifetime or longer.", "dim")]
