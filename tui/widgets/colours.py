"""Themes whose colours for read, written, uncached and missed can be told apart by colour-blind eyes (Okabe and Ito).

Each also has a glyph or a word of its own, so that nothing rests on colour alone.
"""

from textual.content import Content
from textual.theme import Theme

from auditor.visible import visible
from tui.drawing import Piece, StyleName

DARK = Theme(
    name="cachewright-dark",
    primary="#56b4e9",
    secondary="#cc79a7",
    warning="#e69f00",
    error="#b3400a",
    success="#2fbf92",
    accent="#f0e442",
    foreground="#e6e9ed",
    background="#14171b",
    surface="#1e2329",
    panel="#262c34",
    dark=True,
)
LIGHT = Theme(
    name="cachewright-light",
    primary="#0072b2",
    secondary="#a04a7f",
    warning="#9a6700",
    error="#b3400a",
    success="#00634a",
    accent="#5b4a00",
    foreground="#1b1f24",
    background="#ffffff",
    surface="#f3f5f7",
    panel="#e7ebef",
    dark=False,
)
_ON_DARK = {"read": "#56b4e9", "written": "#e69f00", "uncached": "#9aa4ae", "missed": "#ff9a6b", "gain": "#5fd3ae"}
_ON_DARK |= {"soft": "#9aa4ae", "cursor": "#2a3f50"}
_ON_LIGHT = {"read": "#0072b2", "written": "#9a6700", "uncached": "#5f6872", "missed": "#b3400a", "gain": "#00634a"}
_ON_LIGHT |= {"soft": "#57606a", "cursor": "#cfe2f0"}

_STYLES: dict[StyleName, str] = {
    "": "",
    "dim": "$soft",
    "bold": "bold",
    "read": "$read",
    "written": "$written",
    "uncached": "$uncached",
    "miss": "bold $missed",
    "good": "$gain",
    "removed": "strike $missed",
    "added": "underline $gain",
}


def variables(dark: bool) -> dict[str, str]:
    """The colours of bars and marks, for the style sheet of any theme."""
    return _ON_DARK if dark else _ON_LIGHT


def content(pieces: list[Piece]) -> Content:
    """Pieces as a widget's content. A line feed that is a piece of its own ends a line; all else is shown, not done."""
    return Content.assemble(*((text if text == "\n" else visible(text), _STYLES[style]) for text, style in pieces))
