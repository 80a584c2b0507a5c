"""What the server asks of a model, and the events a model answers with.

A backend is a tokenizer, a window and a generator. The server decides what may be reused (`localmodel.rules.step`)
and tells the backend; the backend says in `Started` what it really reused, and usage is derived from that.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from traces.schema import JsonObject

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


@dataclass(frozen=True, slots=True)
class Started:
    """Prefill is done and the response begins. `reused_tokens` of the prompt were not computed now (physical)."""

    reused_tokens: int


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


Event: TypeAlias = Started | TextPiece | ToolStart | ToolPiece | Finished


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, in one form for all dialects.

    body        the request as an Anthropic Messages body (other dialects are mapped into it), markers included
    max_tokens  upper bound of the answer's tokens; 0 is a pre-warm, which generates nothing
    tools       definitions offered, by name, deferred ones included
    choice      "auto", "none", "any", or ("tool", name)
    format      JSON schema that the answer's text must satisfy, or `None`
    seed        digest of the prompt: what a deterministic backend may derive identifiers from
    """

    body: JsonObject
    max_tokens: int
    tools: Mapping[str, JsonObject] = field(default_factory=dict)
    choice: str | tuple[str, str] = "auto"
    format: JsonObject | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: bytes = b""


class Backend(Protocol):
    """A model behind the server: the scripted one here, the engine with weights elsewhere."""

    @property
    def name(self) -> str:
        """The model's name, as `/v1/models` lists it."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens that prompt and answer may have together."""
        ...

    def tokenise(self, text: str) -> list[int]:
        """Tokens of a rendered block. Equal texts give equal tokens."""
        ...

    def generate(self, request: Generation, prompt: Sequence[int], reuse_tokens: int) -> AsyncGenerator[Event, None]:
        """Answer `prompt`, of which the first `reuse_tokens` may be taken from the cache and no more.

        Yields `Started` once, then pieces, then `Finished`. Closing the iterator cancels the generation.
        """
        ...
