"""Times in files: ISO 8601 text or numbers -> moments in UTC. What some zone's calendar cannot show is no time.

Programs that know no time write the first or last moment of their calendar ("0001-01-01T00:00:00Z",
"9999-12-31T23:59:59.999Z"): a zone, or a float of seconds, then takes it out of the calendar.
"""

from datetime import UTC, datetime


def parsed(text: str) -> tuple[datetime, bool]:
    """An ISO 8601 time in UTC, and whether it named its offset; one that did not is read as UTC.

    Raises `ValueError` or `OverflowError`.
    """
    time = datetime.fromisoformat(text)
    told = time.tzinfo is not None
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC) if told else time.replace(tzinfo=UTC)
    return shown_anywhere(time), told


def known(text: str | None) -> datetime | None:
    """The same of a transcript's row, where what is no time is an unknown one."""
    try:
        return None if text is None else parsed(text)[0]
    except (ValueError, OverflowError):
        return None


def shown_anywhere(moment: datetime) -> datetime:
    """The moment itself. Raises `ValueError` where it has no date in some zone."""
    if not 1 < moment.year < 9999:
        raise ValueError("in the calendar's first or last year")
    return moment
