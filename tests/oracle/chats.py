"""Random conversations in the two OpenAI dialects: abstract pieces, and the native trace rows that they make.

The oracle (`automatic.py`) sees the pieces, the product sees the rows: both say which beginnings repeat.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
START = datetime.fromisoformat("2026-11-02T09:00:00+00:00")


@dataclass(frozen=True)
class Piece:
    """One block: what it is, its text, its tokens, and the explicit breakpoint on it ("" for none)."""

    kind: str  # tool, system, text, call, result
    text: str
    tokens: int
    mark: str = ""


@dataclass(frozen=True)
class Message:
    """One message of the history; each tool result is a message of its own."""

    role: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Request:
    """One request: head, history, and what else enters the cache's key."""

    model: str
    tools: tuple[Piece, ...]
    system: tuple[Piece, ...]
    messages: tuple[Message, ...]
    key: str = "key-a"
    params: tuple[tuple[str, Any], ...] = ()
    at: datetime = START
    ended: datetime = START

    def blocks(self) -> list[tuple[int, str, Piece]]:
        """(number of the message, -1 in the head; role; piece) in the order of the prefix."""
        head = [(-1, "", piece) for piece in (*self.tools, *self.system)]
        return head + [(n, m.role, piece) for n, m in enumerate(self.messages) for piece in m.pieces]

    def param(self, name: str) -> Any:
        return dict(self.params).get(name)


@dataclass
class Maker:
    """Makes pieces that never repeat by chance."""

    rng: Random
    scale: int = 400
    count: int = field(default=0)

    def piece(self, kind: str, mark: str = "") -> Piece:
        self.count += 1
        return Piece(kind, f"{kind} {self.count}", self.rng.randint(1, 2 * self.scale), mark)

    def request(self, model: str) -> Request:
        rng = self.rng
        tools = tuple(self.piece("tool") for _ in range(rng.randint(0, 3)))
        system = tuple(self.piece("system") for _ in range(rng.randint(0, 1)))
        return Request(model, tools, system, (Message("user", (self.piece("text"),)),))

    def turn(self, request: Request, marks: bool = False) -> Request:
        """The request with the assistant's turn and what the client adds to it."""
        rng = self.rng
        words = (self.piece("text"),) if rng.random() < 0.6 else ()
        calls = tuple(self.piece("call") for _ in range(rng.choice((0, 1, 1, 2, 3))))
        said = Message("assistant", words + calls or (self.piece("text"),))
        added = [Message("tool", (self.piece("result"),)) for _ in calls]
        if not calls or rng.random() < 0.2:
            mark = rng.choice(("", "", "5m")) if marks else ""
            added.append(Message("user", tuple(self.piece("text", mark) for _ in range(rng.choice((1, 1, 2))))))
        return replace(request, messages=(*request.messages, said, *added))


def row(request: Request, number: int, usage: Json | None = None, api: str = "chat", provider: str = "openai") -> Json:
    """The native row of a request, with exact tokens for each block."""
    tokens: dict[str, int] = {}
    body = (_chat if api == "chat" else _responses)(request, tokens)
    made: Json = {
        "id": f"c{number}", "seq": number, "trace": "t", "provider": provider, "api": api, "host": "api.example.com",
        "key_fp": request.key, "started_at": request.at.isoformat(), "ended_at": request.ended.isoformat(),
        "status": 200, "request": body, "tokens": tokens,
    }  # fmt: skip
    if usage is not None:
        made["response"] = {"usage": usage}
    return made


def usage_of(read: int, write: int | None, total: int, api: str = "chat") -> Json:
    """The bill in a dialect's own words; a provider without a class of writes says nothing of them."""
    details: Json = {"cached_tokens": read}
    if write is not None:
        details["cache_write_tokens"] = write
    if api == "chat":
        return {"prompt_tokens": total, "completion_tokens": 7, "prompt_tokens_details": details}
    return {"input_tokens": total, "output_tokens": 7, "input_tokens_details": details}


def _options(request: Request) -> Json:
    return {name: value for name, value in request.params if name not in ("effort", "format")}


def _mark(piece: Piece) -> Json:
    return {"prompt_cache_breakpoint": {"mode": "explicit"}} if piece.mark else {}


def _chat(request: Request, tokens: dict[str, int]) -> Json:
    body: Json = {"model": request.model, **_options(request)}
    if request.param("effort"):
        body["reasoning_effort"] = request.param("effort")
    if request.param("format"):
        body["response_format"] = request.param("format")
    if request.tools:
        body["tools"] = [{"type": "function", "function": {"name": p.text, "parameters": {}}} for p in request.tools]
    tokens |= {f"/tools/{n}": piece.tokens for n, piece in enumerate(request.tools)}
    messages: list[Json] = []
    for piece in request.system:
        tokens[f"/messages/{len(messages)}/content"] = piece.tokens
        messages.append({"role": "system", "content": piece.text})
    for message in request.messages:
        at = f"/messages/{len(messages)}"
        if message.role == "tool":
            tokens[at] = message.pieces[0].tokens
            text = message.pieces[0].text
            messages.append({"role": "tool", "tool_call_id": text, "content": text})
            continue
        texts = [piece for piece in message.pieces if piece.kind == "text"]
        calls = [piece for piece in message.pieces if piece.kind == "call"]
        tokens |= {f"{at}/content/{n}": piece.tokens for n, piece in enumerate(texts)}
        tokens |= {f"{at}/tool_calls/{n}": piece.tokens for n, piece in enumerate(calls)}
        parts = [{"type": "text", "text": piece.text, **_mark(piece)} for piece in texts]
        made: Json = {"role": message.role, "content": parts or None}
        if calls:
            made["tool_calls"] = [{"id": p.text, "type": "function", "function": {"name": "f"}} for p in calls]
        messages.append(made)
    return {**body, "messages": messages}


def _responses(request: Request, tokens: dict[str, int]) -> Json:
    body: Json = {"model": request.model, **_options(request)}
    if request.param("effort"):
        body["reasoning"] = {"effort": request.param("effort")}
    if request.param("format"):
        body["text"] = {"format": request.param("format")}
    if request.tools:
        body["tools"] = [{"type": "function", "name": piece.text, "parameters": {}} for piece in request.tools]
    tokens |= {f"/tools/{n}": piece.tokens for n, piece in enumerate(request.tools)}
    if request.system:
        body["instructions"], tokens["/instructions"] = request.system[0].text, request.system[0].tokens
    items: list[Json] = []
    for message in request.messages:
        texts = [piece for piece in message.pieces if piece.kind == "text"]
        if texts:
            word = "output_text" if message.role == "assistant" else "input_text"
            tokens |= {f"/input/{len(items)}/content/{n}": piece.tokens for n, piece in enumerate(texts)}
            parts = [{"type": word, "text": piece.text, **_mark(piece)} for piece in texts]
            items.append({"type": "message", "role": message.role, "content": parts})
        for piece in message.pieces:
            if piece.kind != "text":
                tokens[f"/input/{len(items)}"] = piece.tokens
                kind = "function_call" if piece.kind == "call" else "function_call_output"
                # Ids of items are made anew in each request: they are not content.
                items.append(
                    {"type": kind, "id": f"x{len(items)}{request.at}", "call_id": piece.text, "output": piece.text}
                )
    return {**body, "input": items}


def later(request: Request, seconds: float, lasts: float = 3.0) -> Request:
    """The request sent so many seconds after its time."""
    at = request.at + timedelta(seconds=seconds)
    return replace(request, at=at, ended=at + timedelta(seconds=lasts))
