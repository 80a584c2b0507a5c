"""What goes over the wire, as values: tools, calls, results, turns, and the frozen head of a session.

A turn holds wire items exactly as they are sent, rendered once and never again. `dump` keeps the order of keys, so a
stored turn read back gives the same bytes; `chained` proves it. Markers are no part of a turn: they are laid on at
send time, and moving one changes no content.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeAlias

import orjson

from traces.canonical import dump
from traces.schema import JsonObject, Ttl

Role: TypeAlias = Literal["user", "answer", "results"]
Stop: TypeAlias = Literal["end", "tools", "length", "other"]
Marks: TypeAlias = Mapping[str, Ttl]
"""JSON pointer of a block in the body -> lifetime its marker asks for."""

ENDED_EARLY = "the stream ended before the answer was complete"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `deferred`: known by name only until a search loads it (Messages API)."""

    name: str
    description: str
    schema: JsonObject
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. `arguments` is `None` where its text is no JSON object; `raw` is that text."""

    id: str
    name: str
    arguments: JsonObject | None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave. `references`: names of deferred tools that it loads (Messages API)."""

    call: ToolCall
    text: str
    failed: bool = False
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """Wire items that were appended together, in order."""

    role: Role
    items: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Everything in front of the conversation, frozen when the session begins.

    `fields` are the body's static members in wire order. Deferred tools are outside the cached prefix, so `digest`
    leaves them out: they may be added later without a miss.
    """

    fields: JsonObject
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", head_digest(self.fields))


def head_digest(fields: JsonObject) -> str:
    """Identity of a head: SHA-256 of its bytes without deferred tools."""
    tools = fields.get("tools")
    if isinstance(tools, list):
        fields = {**fields, "tools": [tool for tool in tools if tool.get("defer_loading") is not True]}
    return sha256(dump(fields)).hexdigest()


def sound(value: Any) -> Any:
    """`value` as every JSON reader understands it, itself where it is so already.

    Half a surrogate pair (file names, a model's cut escape) becomes U+FFFD and an integer beyond 64 bits a float: else
    providers refuse the request, and a stored turn would not come out as it was sent.
    """
    try:
        orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return _sound(value)
    return value


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) and value.bit_length() > 63:
        return float(value) if value.bit_length() < 1000 else 0.0
    if isinstance(value, dict):
        return {_sound(name): _sound(each) for name, each in value.items()}
    return [_sound(each) for each in value] if isinstance(value, list | tuple) else value


def offered(fields: JsonObject) -> set[str]:
    """Names of the tools in a head, whatever its dialect."""
    tools = fields.get("tools") or []
    return {str(tool.get("name") or (tool.get("function") or {}).get("name")) for tool in tools}


def chained(turns: Iterable[Turn], start: str = "") -> str:
    """Running identity of a conversation: equal only where every byte of every item is."""
    for turn in turns:
        start = sha256(start.encode() + dump(list(turn.items))).hexdigest()
    return start


class Assembly(Protocol):
    """Puts a streamed response together. `response` is what has arrived so far, as the API would have sent it whole."""

    response: JsonObject

    def feed(self, event: JsonObject) -> str:
        """Take one event; the piece of answer text that it brought, or ""."""
        ...


class Dialect(Protocol):
    """One API's rendering. Pure: the same input always gives the same items."""

    @property
    def api(self) -> str:
        """messages, chat or responses."""
        ...

    def head(self, model: str, system: str, tools: list[ToolSpec], session: str) -> JsonObject:
        """Static members of the body, in wire order."""
        ...

    def user(self, text: str) -> Turn:
        """What a person (or the harness in their place) says."""
        ...

    def results(self, results: list[Result]) -> Turn:
        """Answers to the calls of the turn before, all of them."""
        ...

    def answer(self, response: JsonObject) -> Turn:
        """The model's answer as it must be sent back, verbatim."""
        ...

    def calls(self, turn: Turn) -> list[ToolCall]:
        """Tool calls in an answer."""
        ...

    def text(self, turn: Turn) -> str:
        """Visible text of a turn."""
        ...

    def stop(self, response: JsonObject) -> Stop:
        """Why the model stopped."""
        ...

    def flaw(self, response: JsonObject) -> str | None:
        """Why a response is no complete answer: a stream that ended early, or a failure that it reports itself."""
        ...

    def without_thinking(self, turn: Turn) -> Turn:
        """A turn that may follow another history than the one it was made in."""
        ...

    def body(self, head: Head, turns: list[Turn], max_tokens: int, *, stream: bool, marks: Marks) -> JsonObject:
        """The whole request."""
        ...

    def assembly(self) -> Assembly:
        """An empty response to feed."""
        ...
