"""What a diagnosis may look at: the call, the entries before it, the calls before it, and bodies on demand."""

from collections.abc import Callable
from dataclasses import dataclass

from auditor.history import History
from auditor.records import Audited
from localmodel.rules.types import CacheState, Outcome, Rules
from traces.schema import JsonObject, Prompt

BodyOf = Callable[[Audited], JsonObject | None]


@dataclass(frozen=True, slots=True)
class Context:
    """One call under diagnosis. `read` is what the provider billed as read, `slack` the doubt of a boundary."""

    audited: Audited
    prompt: Prompt
    outcome: Outcome
    state: CacheState
    history: History
    body_of: BodyOf
    read: int
    slack: int

    @property
    def rules(self) -> Rules:
        """The rules in force at the call."""
        return self.outcome.rules

    @property
    def paid(self) -> int:
        """Tokens billed as written or uncached: the most that can have been lost."""
        return max(0, (self.audited.call.usage.input_tokens or self.prompt.total) - self.read)


def seconds(value: float) -> str:
    """A duration as a reader wants it: 335 s, 2.1 s, 26 min, 3.5 h."""
    if value < 600:
        return f"{value:.3g} s" if value % 1 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def gap_of(later: Audited, earlier: Audited) -> float:
    """Seconds from start to start."""
    return (later.at - earlier.at).total_seconds()


def name_of(audited: Audited) -> str:
    """How evidence refers to a call: its number in the trace."""
    return f"call {audited.call.seq}"


def same_thread(one: Audited, other: Audited) -> bool:
    """Whether two calls belong to one agent of one trace."""
    return (one.call.trace, one.call.agent) == (other.call.trace, other.call.agent)


def first_of_group(context: Context, call: Audited) -> Audited:
    """Of calls that started together, the one whose response the others did not wait for."""
    while (
        call.diagnosis is not None
        and call.diagnosis.primary.cause == "not_yet_readable"
        and call.diagnosis.reference is not None
    ):
        call = context.history.calls[call.diagnosis.reference]
    return call
