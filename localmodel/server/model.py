"""What the server asks of a model, and the events a model answers with.

A backend is a tokenizer, a window and a generator. The server decides what may be reused (`localmodel.rules.step`)
and tells the backend; the backend says in `Claimed` what it really reuses, and usage is derived from that.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol, TypeAlias

from traces.schema import JsonObject
from traces.wire.anthropic import Part

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The request runs. The first `reused_tokens` of the prompt are not computed now (physical)."""

    reused_tokens: int


@dataclass(frozen=True, slots=True)
class Started:
    """Prefill is done and the response begins."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the answer's text; adjacent pieces belong to one text block."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins; its arguments follow as `ToolPiece`s."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolPiece:
    """A piece of the JSON text of the arguments of the tool call begun last, in canonical (compact) form."""

    json: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. `output_tokens` counts all that was generated."""

    reason: StopReason
    output_tokens: int
    stop_sequence: str | None = None


Event: TypeAlias = Claimed | Started | TextPiece | ToolStart | ToolPiece | Finished


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, in one form for all dialects.

    body        the request as an Anthropic Messages body (other dialects are mapped into it), markers included
    max_tokens  upper bound of the answer's tokens; 0 is a pre-warm, which generates nothing
    tools       definitions offered, by name, deferred ones included
    choice      "auto", "none", "any", or ("tool", name)
    format      JSON schema that the answer's text must satisfy, or `None`
    seed        digest of the prompt: what a deterministic backend may derive identifiers from
    space       namespace: KV computed for another one is never reused
    """

    body: JsonObject
    max_tokens: int
    tools: Mapping[str, JsonObject] = field(default_factory=dict)
    choice: str | tuple[str, str] = "auto"
    format: JsonObject | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: bytes = b""
    space: str = ""


class Backend(Protocol):
    """A model behind the server: the scripted one here, the engine with weights elsewhere."""

    @property
    def name(self) -> str:
        """The model's name, as `/v1/models` lists it."""
        ...

    @property
    def about(self) -> str:
        """The model in a few words, for the line that says that the server is ready."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """All that what the cache holds depends on, by name: entries kept in a folder are used by an equal one only."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens that prompt and answer may have together."""
        ...

    def block(self, part: Part) -> list[int]:
        """Tokens of one block without its markers, the same wherever it stands."""
        ...

    def opening(self, *, bare: bool) -> list[int]:
        """Tokens in front of the first block, counted to it; `bare`: there are neither tools nor system text."""
        ...

    def asking(self) -> list[int]:
        """Tokens behind the last block that ask for an answer: input that no breakpoint can cover."""
        ...

    async def check(self, request: Generation) -> None:
        """Raise `BadRequest` for what this model cannot generate, such as a schema it does not understand."""
        ...

    def pages(self) -> Mapping[str, int]:
        """Pages of KV memory by state; empty where there is none."""
        ...

    def close(self) -> None:
        """Give back everything. No request is open any more."""
        ...

    def generate(self, request: Generation, prompt: Sequence[int], reuse_tokens: int) -> AsyncGenerator[Event, None]:
        """Answer `prompt`, of which the first `reuse_tokens` may be taken from the cache and no more.

        Raises `Overloaded` where too many wait.

        Yields `Claimed` and `Started` once each, then pieces, then `Finished`. Closing the iterator cancels the
        generation.
        """
        ...


def call_id(seed: bytes, number: int) -> str:
    """The id of an answer's tool call: the same for the same prompt, so that a repeated session sends equal bytes."""
    return "toolu_" + blake2b(seed + bytes([number % 256]), digest_size=12).hexdigest()
