"""Errors of the harness and its recording proxy.

    HarnessError            anything that stops a run or a part of it
    ├── BadSetting          an option, a task file or a model name that cannot be used
    ├── ProviderFailed      an attempt got no usable answer; `retry` says whether waiting may help
    ├── HeadChanged         tools, system or parameters differ from those the session began with
    ├── JournalDamaged      a stored session cannot be continued as it was sent
    ├── BudgetSpent         the money allowed for the run is used up
    ├── CompactionRefused   a summary that would have damaged the conversation; the old history stays
    ├── ToolFailed          a tool's own failure; its text goes to the model, not to the user
    ├── BadRoute            a request names no upstream that this proxy forwards to, or an upstream's URL is wrong
    └── RecordingFailed     the spool or the database cannot be written; the traffic goes on

Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class HarnessError(Exception):
    """Root of all errors raised by `harness`."""


class BadSetting(HarnessError):
    """An option, a task file or a model name that cannot be used."""


class ProviderFailed(HarnessError):
    """An attempt that got no usable answer. `status` is the HTTP status, `None` where no response began."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def retry(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


class HeadChanged(HarnessError):
    """Tools, system or parameters differ from those that the session began with."""


class JournalDamaged(HarnessError):
    """A stored session cannot be continued byte for byte."""


class BudgetSpent(HarnessError):
    """The money allowed for the run is used up."""


class CompactionRefused(HarnessError):
    """A summary was rejected; the history stays as it was."""


class ToolFailed(HarnessError):
    """A tool could not do what was asked; the text is for the model."""


class BadRoute(HarnessError):
    """Nobody to forward to."""


class RecordingFailed(HarnessError):
    """What passes through cannot be kept."""
