"""Time for the ledger: steps forward only, read as UTC."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def monotonic_clock() -> Clock:
    """A clock that starts at the system's time and then follows the monotonic one, so that lifetimes never jump."""
    base, start = datetime.now(UTC), time.monotonic()
    return lambda: base + timedelta(seconds=time.monotonic() - start)
