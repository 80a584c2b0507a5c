"""Times in files: ISO 8601 text or numbers -> moments in UTC.

Programs that know no time write the first or last moment of their calendar ("0001-01-01T00:00:00Z",
"9999-12-31T23:59:59.999Z"), which a zone then takes out of the calendar: such a time is unknown.
"""

from datetime import UTC, datetime


def parsed(text: str) -> tuple[datetime | None, bool]:
    """An ISO 8601 time in UTC (`None`: unknown), and whether it named its offset; one that did not is read as UTC.

    Raises `ValueError` or `OverflowError` for what is no time.
    """
    time = datetime.fromisoformat(text)
    told = time.tzinfo is not None
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC) if told else time.replace(tzinfo=UTC)
    return measured(time), told


def known(text: str | None) -> datetime | None:
    """The same of a transcript's row, where what is no time is an unknown one."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return measured(time) if time.tzinfo is UTC else parsed(text)[0]
    except (ValueError, OverflowError):
        return None


def measured(moment: datetime) -> datetime | None:
    """The moment itself, `None` where it is in its calendar's first or last year: no clock showed that."""
    return moment if 1 < moment.year < 9999 else None
