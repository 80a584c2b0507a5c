"""The facts: one recorded call, its usage, and its prompt as an ordered list of blocks.

Values only: nothing here reads files, knows a provider's rules or keeps money. Unknown is `None`, never 0.
Times are aware datetimes in UTC, tokens are whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import Struct

SCHEMA = "cachewright.trace/1"

JsonObject: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["main", "subagent", "summary", "keepalive", "prewarm", "retry", "count", "side"]
Ttl: TypeAlias = Literal["5m", "1h"]


class Usage(Struct, frozen=True, gc=False):
    """Tokens that the provider reported for one call, in this project's names; `None` is unknown.

    `input_tokens` is always the whole input: read + write + uncached. `write_tokens` is the total of all
    lifetimes; `write_5m_tokens` and `write_1h_tokens` are its split where the provider gave one.
    """

    input_tokens: int | None = None
    read_tokens: int | None = None
    write_tokens: int | None = None
    write_5m_tokens: int | None = None
    write_1h_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def uncached_tokens(self) -> int | None:
        """Input that was neither read nor written, or `None` where that cannot be told."""
        if self.input_tokens is None or self.read_tokens is None:
            return None
        return self.input_tokens - self.read_tokens - (self.write_tokens or 0)


Finds: TypeAlias = Literal["change", "none", "pending", "not_found", "unavailable"]
"""What a provider's comparison of two requests came to: only "change" says that something differs."""


class Label(Struct, frozen=True, gc=False):
    """What the provider itself said about a call when asked to compare it with an earlier one.

    value    its own word, such as `tools_changed`
    finds    what that word means; the comparison is of requests, not of the cache, so no word alone is a miss
    what     for a change: "model", "tools", "system", "messages", "input", "key", "compaction", or a parameter's name
    missed_tokens   its estimate of the tokens behind the difference
    """

    value: str
    finds: Finds
    what: str | None = None
    missed_tokens: int | None = None


class Place(Struct, frozen=True, gc=False):
    """Where a row was read: file, 1-based line, and the byte span of the row in that file."""

    file: str
    line: int
    offset: int = 0
    length: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Call(Struct, frozen=True, eq=False):
    """One HTTP attempt to an API, as recorded. `request` keeps the key order of the body that was sent.

    `started_at` is `None` only in usage tables that hold no times. `clock` is "relative" when the times count
    from an unknown day (a CSV with mm:ss), so that no dated rule or price may be chosen by them. `key` is the call's
    identity in a store, `None` where it is in none. `label` is read from the response where a reader sets none. `facts`
    is what a client's transcript tells beside the usage where it holds no body, plain JSON values under these names,
    each of them optional:

        native    true where the row was no transcript's and the facts were read from its response
        client    the program that wrote the transcript, with its version
        project   the folder that it worked in
        previous  id of the call that this one continues, `None` where it starts a conversation
        since     what happened between the two, a list of words (`traces.facts`)
        speed     the service's speed class where it is not the usual one: another class, another cache
        service   batch, flex or priority, where the call was charged as such
        geo       where inference was bound to a region that is charged otherwise
        ttls      lifetimes that the request's markers asked for, where no body was recorded
        beside    a pass within a response (compaction, advisor_message) charged beside it; its prompt is unknown
        answer    "complete" or "error": how a recorded stream without usage ended
        named     "request" where the model is the requested one, since the response names none
        times     "rows" where `started_at` and `ended_at` are the times of the rows before and at the end of the
                  response: requests start some seconds after the former
        output    "lower_bound" where the last count of output tokens may not be the final one
    """

    id: str
    trace: str
    provider: str
    started_at: datetime | None
    seq: int = 0
    agent: str = "main"
    parent: str | None = None
    kind: Kind = "main"
    attempt: int = 1
    api: str | None = None
    host: str | None = None
    key_fp: str | None = None
    model: str | None = None
    betas: tuple[str, ...] = ()
    first_token_at: datetime | None = None
    ended_at: datetime | None = None
    status: int | None = None
    request: JsonObject | None = None
    response: JsonObject | None = None
    tokens: Mapping[str, int] | None = None
    usage: Usage = Usage()
    facts: JsonObject | None = None
    clock: Literal["utc", "relative"] = "utc"
    place: Place | None = None
    key: bytes | None = None
    label: Label | None = None

    @property
    def failed(self) -> bool:
        """Whether the provider refused the call, so that it neither read nor wrote the cache."""
        return self.status is not None and self.status >= 400

    def __eq__(self, other: object) -> bool:
        """Whether all is the same but `key`, which a store gives, and `label`, which is read from the response."""
        return isinstance(other, Call) and _recorded(self) == _recorded(other)


_recorded = attrgetter(*(name for name in Call.__struct_fields__ if name not in ("key", "label")))


class Level(IntEnum):
    """The three levels of a prompt in rendering order; a change at one spares those before it."""

    TOOLS = 0
    SYSTEM = 1
    MESSAGES = 2


@dataclass(frozen=True, slots=True)
class Block:
    """One provider content block: a tool, a system text, a message part.

    `wire` digests the block as sent (key order kept, cache markers removed), `meaning` digests it normalised
    (keys sorted): equal meaning with different wire is a change of serialisation only. Both are 16 bytes.
    `kind` is the provider's type word ("tool" for tools), `size` the UTF-8 length of the JSON text, `weight` an
    estimate of its tokens before calibration (see `traces.tokens`).
    """

    wire: bytes
    meaning: bytes
    level: Level
    kind: str
    role: str
    size: int
    weight: int
    image: bool = False
    citations: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A cache marker that the client put on block `index`; `ttl` as asked for ("5m" where it was left out)."""

    index: int
    ttl: Ttl


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a provider's cache sees of one request: blocks in rendering order with their running identity.

    blocks    n blocks, tools then system then messages
    paths     n JSON pointers into the request body
    chain     n digests (16 bytes); `chain[i]` identifies blocks 0..i, independent of markers and parameters
    ends      n cumulative token counts: `ends[i]` tokens stand in blocks 0..i; empty where not yet counted
    errors    n errors of `ends` in tokens, 0 where exact; empty where all are exact
    tail      tokens billed beyond the last block (framing of the answer to come)
    marks     markers in rendering order
    automatic lifetime of a top-level marker (the provider places it), or `None`
    params    parameters that may enter the cache's key, by name, as canonical JSON text
    scope     who may share entries: provider, host and key fingerprint
    dialect   format of the body: "messages", "chat", "responses" or "gemini" (see `traces.wire.dialects`)
    """

    provider: str
    model: str
    platform: str
    scope: str
    blocks: tuple[Block, ...]
    paths: tuple[str, ...]
    chain: tuple[bytes, ...]
    marks: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    params: tuple[tuple[str, str], ...] = ()
    ends: Sequence[int] = ()
    errors: Sequence[int] = ()
    tail: int = 0
    dialect: str = "messages"

    @property
    def total(self) -> int:
        """Tokens of the whole input, as far as counted."""
        return (self.ends[-1] if self.ends else 0) + self.tail

    def error_at(self, index: int) -> int:
        """Tokens by which `ends[index]` may be wrong."""
        return self.errors[index] if self.errors else 0

    def tokens_of(self, index: int) -> int:
        """Tokens of block `index`."""
        return self.ends[index] - (self.ends[index - 1] if index else 0)

    def tokens_before(self, index: int) -> int:
        """Tokens of all blocks in front of block `index` (the whole prompt for `index` == n)."""
        return self.ends[index - 1] if index else 0
