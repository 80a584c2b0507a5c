"""What the terminal app draws, as pieces of text with the name of a style: no widget, no colour, no markup.

Bars differ by glyph as well as by colour, so that they can be read without colours.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from auditor.visible import visible

if TYPE_CHECKING:
    from auditor.records import Audited
    from localmodel.rules.types import Outcome
    from traces.schema import Prompt

StyleName: TypeAlias = Literal["", "dim", "bold", "read", "written", "uncached", "miss", "good", "removed", "added"]
Piece: TypeAlias = tuple[str, StyleName]
Cell: TypeAlias = str | Sequence[Piece]

GLYPHS: dict[StyleName, str] = {"read": "█", "written": "▒", "uncached": "░"}
"""Full block: read from cache; half tone: written; light: billed uncached."""

VERDICTS: dict[str, Piece] = {
    "hit": ("✓ hit", "good"),
    "partial_miss": ("◐ part", "miss"),
    "miss": ("✗ miss", "miss"),
    "cold_write": ("+ cold", "written"),
    "not_engaged": ("○ none", "dim"),
    "unknown": ("? unkn", "dim"),
}
_SPARKS = "▁▂▃▄▅▆▇█"


class Strip(NamedTuple):
    """A prompt as one line of `width` cells, with a line of marks above and the boundaries below."""

    marks: str
    bar: list[Piece]
    below: str


def bar(parts: Iterable[tuple[StyleName, int]], peak: int, width: int) -> list[Piece]:
    """Stacked parts, `peak` tokens being `width` cells; whatever is not 0 gets a cell where there is room."""
    pieces: list[Piece] = []
    done = cells = 0
    for style, tokens in parts:
        if tokens <= 0 or not peak:
            continue
        done += tokens
        end = min(width, max(cells + 1, round(done / peak * width)))
        if end > cells:
            pieces.append((GLYPHS.get(style, "█") * (end - cells), style))
            cells = end
    return [*pieces, (" " * (width - cells), "")]


def usage_bar(audited: "Audited", peak: int, width: int) -> list[Piece]:
    """The bar of a call as it was billed; a question mark where that is unknown."""
    usage = audited.call.usage
    if usage.input_tokens is None or usage.read_tokens is None:
        return [("?".ljust(width), "dim")]
    parts: list[tuple[StyleName, int]] = [("read", usage.read_tokens), ("written", usage.write_tokens or 0)]
    return bar([*parts, ("uncached", usage.uncached_tokens or 0)], peak, width)


def spark(values: Sequence[float | None], width: int) -> str:
    """Shares of 0 to 1 as a line of `width` cells, averaged where there are more values; a dot is unknown."""
    if len(values) > width:
        step = len(values) / width
        values = [_mean(values[int(at * step) : max(int(at * step) + 1, int((at + 1) * step))]) for at in range(width)]
    return "".join("·" if value is None else _SPARKS[min(7, max(0, int(value * 8)))] for value in values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def duration(seconds: float) -> str:
    """A pause in at most five cells: 35s, 5m35s, 2h05m, 3d."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m" if whole < 36_000 else f"{whole // 86_400 or 1}d"


def lane(number: int, lanes: int) -> str:
    """Where a call stands among the agents of a session: one column each, up to five; the last holds the rest."""
    shown = min(lanes, 5)
    at = min(number, shown - 1)
    return "".join("●" if column == at else "│" for column in range(shown))


def strip(prompt: "Prompt", outcome: "Outcome", read_tokens: int | None, width: int) -> Strip:
    """The blocks of a prompt in proportion to their tokens; ▼ breakpoints, ┃ where the hit ended."""
    total = max(1, prompt.total)
    read = outcome.read_tokens if read_tokens is None else read_tokens
    written = max(read, prompt.ends[outcome.last_index] if outcome.last_index >= 0 and prompt.ends else 0)
    marks, below = [" "] * width, [" "] * width
    for point in outcome.breakpoints:
        marks[_cell(prompt.ends[point.index], total, width)] = "▼"
    for end in prompt.ends:
        below[_cell(end, total, width)] = "╵"
    if read:
        below[_cell(read, total, width)] = "┃"
    parts: list[tuple[StyleName, int]] = [("read", read), ("written", written - read), ("uncached", total - written)]
    return Strip("".join(marks), bar(parts, total, width), "".join(below))


def _cell(tokens: int, total: int, width: int) -> int:
    return min(width - 1, max(0, round(tokens / total * width) - 1))


def shown(text: str, width: int | None = None) -> str:
    """Text from a trace as one visible, harmless line; what is not there is said."""
    return visible(text, width) if text else "(empty)"
