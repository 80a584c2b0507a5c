"""Errors of the probes.

ProbeError              a probe cannot go on
├── BadTarget           the target, its key or an option cannot be used (wrong usage, nothing was sent)
├── BadFindings         a file of findings cannot be used
├── BudgetReached       the next request might cost more than what is left; it was not sent
├── Incomplete          a request did not come to its end; nothing is retried
│   └── Unreachable     the target refuses or cannot serve any request (401, 404, 429, 529, no server)
├── NoCaching           the target answers, but its cache shows in no usage field
└── Stopped             the user stopped the probe; what was measured is kept

Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class ProbeError(Exception):
    """Root of all errors raised by `probes`."""


class BadTarget(ProbeError):
    """The target, its key or an option cannot be used."""


class BadFindings(ProbeError):
    """A file of findings cannot be used."""


class BudgetReached(ProbeError):
    """The next request might cost more than what is left of the budget."""


class Incomplete(ProbeError):
    """A request did not come to its end."""


class Unreachable(Incomplete):
    """No request can be served: the key, the model, the limits or the server are at fault."""


class NoCaching(ProbeError):
    """The model, or what serves it, reports no use of a cache."""


class Stopped(ProbeError):
    """The user stopped the probe."""
