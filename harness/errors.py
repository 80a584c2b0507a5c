"""Errors of the harness and its recording proxy.

    HarnessError            root
    ├── BadRoute            a request names no upstream that this proxy forwards to, or an upstream's URL is wrong
    └── RecordingFailed     the spool or the database cannot be written; the traffic goes on

Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class HarnessError(Exception):
    """Root of all errors raised by `harness`."""


class BadRoute(HarnessError):
    """Nobody to forward to."""


class RecordingFailed(HarnessError):
    """What passes through cannot be kept."""
