"""Errors of the auditor.

    AuditError              anything that stops an audit or a part of it
    ├── BadPriceFile        a price file cannot be read or holds a price that cannot be used
    └── StoreError          the store's file, or a row for it, cannot be used

A miss, an unknown cause and an unknown price are results, not errors: a model without a price is `None`.
Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class AuditError(Exception):
    """Root of all errors raised by `auditor`."""


class BadPriceFile(AuditError):
    """A price file that cannot be used; the message is one line."""


class StoreError(AuditError):
    """The store's file, or a row for it, cannot be used; the message is one line: place, fact, remedy."""
