"""Errors of the ground floor.

    TraceError              anything wrong with recorded input
    ├── UnreadableInput     a whole file gave nothing (missing, binary, unknown format)
    └── MalformedRow        one row cannot be used; the reader reports it and goes on

Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class TraceError(Exception):
    """Root of all errors raised by `traces`."""


class UnreadableInput(TraceError):
    """Nothing in this file could be read as calls."""


class MalformedRow(TraceError):
    """One row of a trace cannot be used."""
