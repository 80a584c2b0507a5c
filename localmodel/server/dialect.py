"""What the three dialects have in common: a request in one form, and a writer that turns events into replies."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from localmodel.server.errors import BadRequest, ServerError
from localmodel.server.ledger import Ledger, Ticket
from localmodel.server.model import Event, Finished, TextPiece, ToolPiece, ToolStart
from localmodel.server.render import Caller
from traces.canonical import dump
from traces.schema import JsonObject, Prompt


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request of any dialect.

    sent        the body as it came
    body        the same as a Messages body
    max_tokens  bound the client asked for, `None` where it left that to the model
    usage_asked whether a stream is to end with usage (Chat asks; the others always have it)
    """

    sent: JsonObject
    body: JsonObject
    stream: bool
    max_tokens: int | None
    stop: tuple[str, ...] = ()
    cache_key: str | None = None
    usage_asked: bool = True


@dataclass(slots=True)
class Answer:
    """The answer as far as it has been generated: blocks in order, and how it ended."""

    blocks: list[JsonObject] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: Event) -> bool:
        """Add an event; whether it began a new block."""
        if isinstance(event, Finished):
            self.finished = event
        elif isinstance(event, ToolStart):
            self.blocks.append({"type": "tool_use", "id": event.id, "name": event.name, "json": ""})
            return True
        elif isinstance(event, ToolPiece):
            self.blocks[-1]["json"] += event.json
        elif isinstance(event, TextPiece):
            if self.blocks and self.blocks[-1]["type"] == "text":
                self.blocks[-1]["text"] += event.text
                return False
            self.blocks.append({"type": "text", "text": event.text})
            return True
        return False

    @property
    def output_tokens(self) -> int:
        """Tokens generated; 0 until the answer is complete."""
        return self.finished.output_tokens if self.finished else 0


class Writer(Protocol):
    """Writes one reply: as a stream of events, or, after all of them, as one object."""

    answer: Answer

    def waiting(self) -> bytes:
        """A real event for a stream on which nothing has happened for a while."""
        ...

    def feed(self, event: Event) -> bytes:
        """The stream's bytes for one event of the model."""
        ...

    def failed(self, error: ServerError) -> bytes:
        """The stream's last bytes where the reply breaks off."""
        ...

    def final(self) -> JsonObject:
        """The reply as one object, as far as it came."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API: its name in traces, how it reads a body, how it names and writes replies and errors."""

    api: str
    prefix: str
    read: Callable[[JsonObject], Incoming]
    diagnose: Callable[[JsonObject, Prompt, Caller, Ledger], JsonObject | None]
    writer: Callable[[Incoming, Ticket, JsonObject | None], Writer]
    error: Callable[[ServerError, str], JsonObject]
    status: Callable[[ServerError], int]

    def new_id(self) -> str:
        """An id for a reply, unlike any other."""
        return self.prefix + uuid4().hex[:24]


def anthropic_error(error: ServerError, request_id: str) -> JsonObject:
    """An error in Anthropic's shape."""
    inner = {"type": error.anthropic_type, "message": str(error)}
    return {"type": "error", "error": inner, "request_id": request_id}


def openai_error(error: ServerError, request_id: str) -> JsonObject:
    """An error in OpenAI's shape."""
    return {"error": {"message": str(error), "type": error.openai_type, "param": error.param, "code": error.code}}


def anthropic_status(error: ServerError) -> int:
    """The HTTP status Anthropic gives this error."""
    return error.status


def openai_status(error: ServerError) -> int:
    """The HTTP status OpenAI gives this error."""
    return error.openai_status or error.status


_LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}
"""Line ends to Python's `splitlines`, by which some clients (all on httpx's `iter_lines`, such as LiteLLM) split."""


def sse(name: str | None, data: JsonObject) -> bytes:
    """One server-sent event, its data on what every client takes for one line."""
    head, text = b"" if name is None else b"event: " + name.encode() + b"\n", dump(data)
    for end, escaped in _LINE_ENDS.items():
        text = text.replace(end, escaped)
    return head + b"data: " + text + b"\n\n"


def stops(value: Any, field_name: str) -> tuple[str, ...]:
    """Stop sequences: a text or a list of texts."""
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadRequest(f"{field_name}: want texts", field_name)
    return tuple(found)


def now() -> int:
    """Seconds since 1970, as OpenAI stamps replies."""
    return int(time.time())
