"""Values of an audit: each call with what the rules predict for it, its verdict, and its diagnosis."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

from localmodel.rules.types import Outcome, RuleValue
from traces.schema import Call, Level, Prompt

if TYPE_CHECKING:  # what only makes these values is not loaded to show kept ones
    from localmodel.rules.book import Rulebook
    from traces.divergence import Divergence
    from traces.lines import Rejected

_UNDATED = datetime(1970, 1, 1, tzinfo=UTC)

Verdict: TypeAlias = Literal["hit", "partial_miss", "miss", "cold_write", "not_engaged", "unknown"]
Status: TypeAlias = Literal["established", "likely", "possible", "ruled_out"]
Cause: TypeAlias = Literal[
    "ttl_expired",
    "tools_changed",
    "system_changed",
    "history_rewritten",
    "parameter_changed",
    "model_changed",
    "scope_changed",
    "no_breakpoint",
    "breakpoint_on_volatile",
    "beyond_lookback",
    "below_minimum",
    "not_yet_readable",
    "compaction",
    "tier_changed",
    "evicted",
    "provider_side",
    "unknown",
]

CONTENT_CAUSES: dict[Level, Cause] = {
    Level.TOOLS: "tools_changed",
    Level.SYSTEM: "system_changed",
    Level.MESSAGES: "history_rewritten",
}
"""The cause that a change of content is, by the level that it touches first."""


@dataclass(slots=True)
class Finding:
    """One cause with the evidence it rests on. `lost_tokens` of all findings of a call add up to its whole loss."""

    cause: Cause
    status: Status
    evidence: list[str]
    lost_tokens: int = 0
    rule: RuleValue | None = None
    parameter: str | None = None
    path: str | None = None
    facts: dict[str, int | str] = field(default_factory=dict)


@dataclass(slots=True)
class Diagnosis:
    """Why a call read less than it could have.

    primary    the cause that most lost tokens go to; `also` holds further ones, with their own share of the loss
    ruled_out  causes that the evidence excludes
    first      where the prompt first changed, where bodies show it
    reference  index (in time order) of the earlier call whose tokens were lost
    avoidable  what the named policy would have saved by replay; `None` where no policy was replayed
    """

    primary: Finding
    also: list[Finding] = field(default_factory=list)
    ruled_out: list[Finding] = field(default_factory=list)
    first: "Divergence | None" = None
    reference: int | None = None
    policy: str | None = None
    avoidable_equivalents: Decimal | None = None
    avoidable_usd: Decimal | None = None

    @property
    def lost_tokens(self) -> int:
        """Tokens that had been cached or sent before and were paid for again here."""
        return self.primary.lost_tokens + sum(finding.lost_tokens for finding in self.also)

    @property
    def findings(self) -> list[Finding]:
        """All causes that hold, the main one first."""
        return [self.primary, *self.also]


@dataclass(slots=True)
class Audited:
    """One call in time order.

    `call` holds no bodies any more; `previous` is the index of the call it continues; `writes` says whether its
    provider's bills have a class of writes (where not, a write of 0 says nothing).
    """

    index: int
    call: Call
    prompt: Prompt | None
    at: datetime
    readable_at: datetime
    outcome: Outcome | None = None
    agrees: bool | None = None
    previous: int | None = None
    writes: bool = True
    verdict: Verdict = "unknown"
    diagnosis: Diagnosis | None = None
    note: str | None = None


@dataclass(slots=True)
class Audit:
    """The result: calls in time order, warnings about rows that were used without their body, and rows left out."""

    ruleset: "Rulebook"
    calls: list[Audited]
    warnings: list[str] = field(default_factory=list)
    rejected: "list[Rejected]" = field(default_factory=list)


def start_of(call: Call) -> datetime:
    """Start of a call; calls without times count as simultaneous on an unknown day."""
    return call.started_at or _UNDATED
