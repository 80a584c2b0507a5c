"""Time as the harness sees it: injected, so that hours pass in a test at once."""

from datetime import UTC, datetime
from threading import Event
from time import sleep
from typing import Protocol


class Clock(Protocol):
    """What the harness asks of a clock."""

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait for `event`, at most `seconds`; whether it came."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        sleep(seconds)

    def wait(self, event: Event, seconds: float) -> bool:
        """See `Clock`."""
        return event.wait(seconds)
