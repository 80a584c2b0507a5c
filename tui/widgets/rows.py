"""A table that draws only the rows in sight, from cells that are plain text: no row costs anything until it is seen.

Nothing in a cell is markup. A cell is a text, or pieces of text with the name of a style each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from auditor.visible import visible
from tui.drawing import Cell, Piece, StyleName

WIDE = 110
"""Columns of a terminal from which on the wide columns are shown too."""

LONGEST = 400


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `width` cells, `wide_width` in a wide terminal where 0 hides it in a narrow one. One may `grow`.

    Where there is no room, columns go whose `spare` is above 0, the highest first.
    """

    title: str
    width: int
    right: bool = False
    wide_width: int | None = None
    grow: bool = False
    spare: int = 0

    def cells(self, wide: bool) -> int:
        """Its width in a narrow or a wide terminal."""
        return self.wide_width if wide and self.wide_width is not None else self.width


class RowTable(ScrollView, can_focus=True):
    """Rows with a cursor; the arrow keys move it, a click on it opens its row, and so does a screen's `action_open`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "end(-1)", "First", show=False),
        Binding("end,G", "end(1)", "Last", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("rows--head", "rows--cursor", "rows--read", "rows--written", "rows--uncached", "rows--miss", "rows--good"),
        *("rows--dim", "rows--bold", "rows--removed", "rows--added"),
    }
    cursor: reactive[int] = reactive(0)

    class Opened(Message):
        """Somebody opened the row under the cursor."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    class HeadClicked(Message):
        """Somebody clicked on the head of a column."""

        def __init__(self, column: int) -> None:
            super().__init__()
            self.column = column

    class Moved(Message):
        """Other rows came into sight, or the cursor moved."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = columns
        self.count = 0
        self._cells: Callable[[int, bool], Sequence[Cell]] = lambda index, wide: ()
        self._ground, self._widths = Style(), [column.width for column in columns]

    def show(self, count: int, cells: Callable[[int, bool], Sequence[Cell]], cursor: int | None = None) -> None:
        """Show `count` rows; `cells(index, wide)` gives one cell a column when a row comes into sight."""
        self.count, self._cells = count, cells
        self.virtual_size = Size(0, count + 1)
        self.cursor = min(self.cursor if cursor is None else cursor, max(0, count - 1))
        self.refresh()
        self.call_after_refresh(self._follow)

    @property
    def wide(self) -> bool:
        """Whether there is room for the wide columns."""
        return self.app.size.width >= WIDE

    @property
    def in_sight(self) -> range:
        """Indexes of the rows in sight."""
        top = round(self.scroll_offset.y)
        return range(top, min(self.count, top + max(1, self.size.height - 1)))

    def refresh_row(self, index: int) -> None:
        """Draw one row again, if it is in sight."""
        if index in self.in_sight:
            self.refresh(Region(0, index + 1 - round(self.scroll_offset.y), self.size.width, 1))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in `crop`; what all of them share is looked up once."""
        self._ground, self._widths = self.rich_style, self.widths()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Line `y` of the widget: the head, then rows."""
        base = self._ground
        if y == 0:
            head = base + self.get_component_rich_style("rows--head", partial=True)
            return self._line([column.title for column in self.columns], head)
        index = y - 1 + round(self.scroll_offset.y)
        if index >= self.count:
            return Strip.blank(self.size.width, base)
        if index == self.cursor:
            base += self.get_component_rich_style("rows--cursor", partial=True)
        return self._line(self._cells(index, self.wide), base)

    def widths(self) -> list[int]:
        """Cells of each column; the one that grows takes what is left, and in the end the widest gives way."""
        found = [column.cells(self.wide) for column in self.columns]
        for index in sorted(range(len(found)), key=lambda index: -self.columns[index].spare):
            if self._left(found) >= 0 or not self.columns[index].spare:
                break
            found[index] = 0
        left = self._left(found)
        if left < 0:
            widest = found.index(max(found))
            found[widest] = max(1, found[widest] + left)
        return [w + max(0, left) if c.grow and w else w for w, c in zip(found, self.columns, strict=True)]

    def _left(self, widths: list[int]) -> int:
        return self.size.width - sum(widths) - sum(1 for width in widths if width)

    def _line(self, cells: Sequence[Cell], base: Style) -> Strip:
        segments: list[Segment] = []
        for cell, width, column in zip(cells, self._widths, self.columns, strict=True):
            if width:
                pieces: Sequence[Piece] = [(cell, "")] if isinstance(cell, str) else cell
                segments += self._fitted(pieces, width, column.right, base)
                segments.append(Segment(" ", base))
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _fitted(self, pieces: Sequence[Piece], width: int, right: bool, base: Style) -> list[Segment]:
        """Pieces in exactly `width` cells, cut with a mark where they are longer."""
        # Terminals disagree on how wide a character with an emoji selector is, and columns must stand.
        texts = [(visible(text, LONGEST).replace("\ufe0f", ""), style) for text, style in pieces]
        need = sum(cell_len(text) for text, _ in texts)
        segments, left = [Segment(" " * (width - need), base)] if right and need < width else [], width
        for text, style in texts:
            size = cell_len(text)
            if size > left or (size == left and need > width):
                text, size = set_cell_size(text, max(0, left - 1)) + "…" * (left > 0), left
            segments.append(Segment(text, base + self._style(style) if style else base))
            left -= size
            need -= size
            if left <= 0:
                break
        if not right and left > 0:
            segments.append(Segment(" " * left, base))
        return segments

    def _style(self, name: StyleName) -> Style:
        return self.get_component_rich_style(f"rows--{name}", partial=True)

    def watch_cursor(self) -> None:
        """Keep the cursor in sight."""
        self.refresh()
        self._follow()
        self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Say that other rows came into sight."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.post_message(self.Moved())

    def _follow(self) -> None:
        top, height = round(self.scroll_offset.y), self.size.height - 1
        if height <= 0:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self.cursor = max(0, min(self.count - 1, self.cursor + by))

    def action_page(self, by: int) -> None:
        """Move the cursor by a page."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_end(self, to: int) -> None:
        """Move the cursor to the first or the last row."""
        self.cursor = 0 if to < 0 else max(0, self.count - 1)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.count:
            self.post_message(self.Opened(self.cursor))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, one on the cursor opens its row, one on the head chooses a column."""
        if event.y == 0:
            self.post_message(self.HeadClicked(self._column_at(event.x)))
            return
        index = event.y - 1 + round(self.scroll_offset.y)
        if index == self.cursor:
            self.action_open()
        elif index < self.count:
            self.cursor = index

    def _column_at(self, x: int) -> int:
        end = 0
        for number, width in enumerate(self.widths()):
            end += width + 1 if width else 0
            if x < end:
                return number
        return len(self.columns) - 1
