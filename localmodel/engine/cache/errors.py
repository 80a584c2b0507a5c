"""Errors of the page cache.

    CacheError          the root of all of them; raised itself when the cache is used wrongly (a bug of the caller)
    ├── OutOfPages      not enough pages that are free or may be evicted; nothing was changed, wait or preempt
    └── BrokenAccount   `check()` found a page lost, doubled or miscounted (a bug of the cache)

A page that cannot be restored is not an error but a `Refusal` (see tiers.py): the engine computes it instead.
"""


class CacheError(Exception):
    """Root of all errors of the page cache."""


class OutOfPages(CacheError):
    """More pages are wanted than are free or evictable."""


class BrokenAccount(CacheError):
    """An invariant of the page account does not hold."""
