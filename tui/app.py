"""The terminal app: sessions, their timeline, a call, what-if, and breakdowns, over the store's file.

Nothing of a trace is ever taken for markup, an action or an escape sequence: texts go through `auditor.visible` and
into widgets as plain pieces.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from auditor.errors import AuditError
from tui import queries
from tui.queries import Judged, Source
from tui.screens.base import Base
from tui.screens.sessions import SessionsScreen
from tui.widgets.colours import DARK, LIGHT, variables

FOLLOW_S = 1.0
"""Seconds between two looks at whether the store has grown."""

NAMED_ANYWAY = ("app.help", "app.live", "app.quit")
"""Actions that the command palette has on every screen."""

KEPT = 8
"""Judged sessions that stay in memory."""


class CachewrightApp(App[None]):
    """Browses what the cache cost and why it missed."""

    TITLE = "cachewright"
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "next_theme", "Theme", show=False),
        Binding("ctrl+c", "quit", "Quit", show=False),
    ]

    def __init__(self, source: Source, *, live: bool = True) -> None:
        super().__init__()
        self.source = source
        self.live = live
        self._version: int | None = None
        self._lost_sight = False
        self._judged: dict[str, Judged] = {}
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of bars and marks, right for a dark or a light ground."""
        return variables(self.current_theme.dark)

    def on_mount(self) -> None:
        """Show the sessions and follow the store."""
        self.push_screen(SessionsScreen())
        self.set_interval(FOLLOW_S, self._follow)

    def seen(self, version: int) -> None:
        """The first screen shows this version of the store."""
        self._version = version

    async def _follow(self) -> None:
        """Read again what is shown, where calls were added."""
        screen = self.screen
        if not self.live or not isinstance(screen, Base):
            return
        try:
            version = await asyncio.to_thread(queries.version, self.source)
        except AuditError as error:
            screen.problem(str(error))
            self._lost_sight = True
            return
        if self._lost_sight:
            self._lost_sight = False
            screen.problem("")
        if version != self._version and self._version is not None:
            self._version = version
            self._judged.clear()
            for each in self.screen_stack:
                if isinstance(each, Base):
                    each.refreshed()

    def judged(self, trace: str) -> Judged:
        """A session audited, now or before. May run in any thread; raises StoreError."""
        from auditor.policies import POLICIES

        known = self._judged.get(trace)
        if known is None:
            known = queries.judge(self.source, trace)
            queries.what_if(known, POLICIES)
            self._judged[trace] = known
            while len(self._judged) > KEPT:
                self._judged.pop(next(iter(self._judged)), None)
        return known

    def saving(self, trace: str) -> queries.Saving | None:
        """What all fixes would have saved of a session, if known. May run in any thread; raises StoreError."""
        from auditor.policies import POLICIES

        known = self._judged.get(trace)
        return queries.saving(known or queries.judge(self.source, trace), POLICIES)

    def open_session(self, trace: str) -> None:
        """Show the timeline of a session."""
        from tui.screens.timeline import TimelineScreen

        self.push_screen(TimelineScreen(trace))

    def action_breakdown(self) -> None:
        """Show where the money of the whole store went."""
        from tui.screens.breakdown import BreakdownScreen

        self.push_screen(BreakdownScreen())

    def action_help(self) -> None:
        """Show keys and signs."""
        from tui.screens.help import HelpScreen

        self.push_screen(HelpScreen())

    def action_live(self) -> None:
        """Follow the store, or stop following it."""
        self.live = not self.live
        if isinstance(self.screen, Base):
            self.screen.refreshed()

    def action_next_theme(self) -> None:
        """Change between the dark and the light theme; the command palette has more."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers: the screen's own keys, then what Textual has, without its list of keys."""
        for binding in screen.BINDINGS:
            if isinstance(binding, Binding) and binding.show and binding.action not in NAMED_ANYWAY:
                run = partial(self.run_action, binding.action, screen)
                yield SystemCommand(binding.description, f"Key {binding.key_display or binding.key.split(',')[0]}", run)
        ours = ("Keys", "Maximize", "Minimize")
        yield from (command for command in super().get_system_commands(screen) if command.title not in ours)
        yield SystemCommand("Follow the store", "Live mode on or off", self.action_live)
        yield SystemCommand("Signs and keys", "What bars, marks and keys mean", self.action_help)
