"""One HTTP attempt as a recorder saw it, beside the `Call` that it means (where it is a call of a model's API).

Bodies are those of the record: content codings taken off, credentials masked, otherwise byte for byte.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from traces.schema import Call, JsonObject

Outcome: TypeAlias = Literal["complete", "client_closed", "upstream_closed", "unreachable", "interrupted"]
"""`interrupted`: the recorder itself died. `client_closed`: the upstream was cancelled, and may have billed more."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An attempt. `path` is masked; `facts` hold headers, arrival times, links and notes (docs/proxy.md lists them).

    `request` and `response` are `None` where there was no body or bodies are redacted.
    """

    id: str
    started_at: datetime
    method: str
    path: str
    upstream: str
    outcome: Outcome
    status: int | None = None
    conversation: str | None = None
    request: bytes | None = None
    response: bytes | None = None
    facts: JsonObject = field(default_factory=dict)
    call: Call | None = None
