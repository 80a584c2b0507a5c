"""An agent's conversation as a value, makers of its blocks, and its rendering as a native trace row."""

import copy
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any, TypeAlias

import naive

Json: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Times: TypeAlias = tuple[datetime, datetime | None, datetime | None]
"""Start, first token and end of a call."""

MIN_TOKENS = {"claude-opus-4-8": 1024, "claude-opus-5": 512, "claude-opus-4-6": 4096}
"""Smallest cacheable prefix by model, from the "Prompt caching" page. All of these keep old thinking blocks."""


@dataclass(frozen=True)
class Piece:
    """One block and its exact tokens; `plain` pieces are sent as a string instead of a list."""

    block: Json
    tokens: int
    plain: bool = False


@dataclass(frozen=True)
class Talk:
    """One agent's conversation: what its next request would send."""

    agent: str
    parent: str | None
    kind: str
    model: str
    key: str
    host: str
    tools: tuple[Piece, ...]
    system: tuple[Piece, ...]
    turns: tuple[tuple[str, tuple[Piece, ...]], ...]
    params: tuple[tuple[str, Any], ...] = ()

    def with_turns(self, *turns: tuple[str, tuple[Piece, ...]]) -> "Talk":
        return replace(self, turns=self.turns + turns)

    def with_param(self, name: str, value: Any) -> "Talk":
        """The talk with a parameter set, or removed where `value` is None."""
        rest = tuple((known, old) for known, old in self.params if known != name)
        return replace(self, params=rest if value is None else (*rest, (name, value)))

    def with_last(self, *pieces: Piece) -> "Talk":
        """The talk with `pieces` added to its last turn, or in a new one where that turn is a string."""
        role, old = self.turns[-1]
        if any(piece.plain for piece in old):
            return self.with_turns((role, pieces))
        return replace(self, turns=(*self.turns[:-1], (role, old + pieces)))

    def with_piece(self, turn: int, place: int, *pieces: Piece) -> "Talk":
        """The talk with one piece of one turn replaced by `pieces`."""
        role, old = self.turns[turn]
        changed = (role, old[:place] + pieces + old[place + 1 :])
        return replace(self, turns=(*self.turns[:turn], changed, *self.turns[turn + 1 :]))


class Maker:
    """Makes blocks that never repeat by chance, with sizes around `scale` tokens."""

    def __init__(self, rng: Random, scale: int) -> None:
        self.rng, self.scale, self.count = rng, scale, 0

    def size(self) -> int:
        return self.rng.randint(max(1, self.scale // 4), self.scale * 2)

    def name(self, word: str) -> str:
        self.count += 1
        return f"{word} {self.count}"

    def text(self, tokens: int | None = None, plain: bool = False) -> Piece:
        return Piece({"type": "text", "text": self.name("text")}, self.size() if tokens is None else tokens, plain)

    def role(self, tokens: int) -> Piece:
        """A system text that is no edit of another one: agents with nearly the same one could share most of it."""
        words = ["".join(self.rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(12)]
        return Piece({"type": "text", "text": " ".join(words)}, tokens)

    def thinking(self) -> Piece:
        block = {"type": "thinking", "thinking": self.name("thought"), "signature": self.name("sig")}
        hidden = {"type": "redacted_thinking", "data": self.name("hidden")}
        return Piece(block if self.rng.random() < 0.8 else hidden, self.size())

    def image(self) -> Piece:
        source = {"type": "base64", "media_type": "image/png", "data": self.name("png").replace(" ", "")}
        return Piece({"type": "image", "source": source}, self.size())

    def document(self, cited: bool) -> Piece:
        inner = [{"type": "text", "text": self.name("page")}, {"type": "text", "text": self.name("page")}]
        block: Json = {"type": "document", "source": {"type": "content", "content": inner}}
        return Piece({**block, "citations": {"enabled": True}} if cited else block, self.size())

    def tool(self, **extra: Any) -> Piece:
        name = self.name("tool").replace(" ", "_")
        block = {"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}, **extra}
        return Piece(block, self.size())

    def web_tool(self, kind: str) -> Piece:
        version = {"web_search": "web_search_20250305", "web_fetch": "web_fetch_20250910"}[kind]
        return Piece({"type": version, "name": kind}, self.size())

    def tool_round(self, parallel: int, *, thinking: bool = False, words: bool = True, image: bool = False) -> Any:
        """An assistant turn with `parallel` tool uses and the user turn with their results."""
        asks = [self.thinking()] * thinking + [self.text()] * words
        results = []
        for _ in range(parallel):
            ident = self.name("toolu").replace(" ", "_")
            use = {"type": "tool_use", "id": ident, "name": "run", "input": {"a": ident, "b": 1}}
            asks.append(Piece(use, self.size()))
            content: Any = [{"type": "text", "text": self.name("result")}] + [self.image().block] * image
            if not image and self.rng.random() < 0.2:
                content = self.name("result")
            results.append(Piece({"type": "tool_result", "tool_use_id": ident, "content": content}, self.size()))
        return ("assistant", tuple(asks)), ("user", tuple(results))

    def search_turn(self) -> tuple[str, tuple[Piece, ...]]:
        """An assistant turn in which the API searched the web."""
        ident = self.name("srvtoolu").replace(" ", "_")
        use = {"type": "server_tool_use", "id": ident, "name": "web_search", "input": {"query": ident}}
        hits = [{"type": "web_search_result", "url": ident}]
        found = {"type": "web_search_tool_result", "tool_use_id": ident, "content": hits}
        return "assistant", (Piece(use, self.size()), Piece(found, self.size()), self.text())


def minimum(row: Row) -> int:
    """The smallest prefix that the row's model caches, in tokens."""
    return MIN_TOKENS[row["request"]["model"]]


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def in_array(talk: Talk) -> list[tuple[str, Piece]]:
    """Pointer and piece of every block, in the order of the body."""
    found = [(f"/tools/{n}", piece) for n, piece in enumerate(talk.tools)]
    plain = len(talk.system) == 1 and talk.system[0].plain
    found += [("/system" if plain else f"/system/{n}", piece) for n, piece in enumerate(talk.system)]
    for t, (_, pieces) in enumerate(talk.turns):
        base = f"/messages/{t}/content"
        found += [(base if piece.plain else f"{base}/{n}", piece) for n, piece in enumerate(pieces)]
    return found


def is_deferred(piece: Piece) -> bool:
    return bool(piece.block.get("defer_loading"))


def can_mark(piece: Piece) -> bool:
    block = piece.block
    barred = block.get("type") in ("thinking", "redacted_thinking", "web_search_tool_result") or block.get("text") == ""
    return not barred and not is_deferred(piece)


def markable(talk: Talk) -> list[str]:
    """Pointers that may carry an explicit marker; a web tool only as the last tool, where both orders agree."""
    last_tool = f"/tools/{len(talk.tools) - 1}"
    return [
        pointer
        for pointer, piece in in_array(talk)
        if can_mark(piece) and not piece.plain and (not naive.is_web_tool(piece.block) or pointer == last_tool)
    ]


def marked(piece: Piece, ttl: str | None, bare: bool, inner: bool) -> Any:
    """The block as sent, with its marker if it has one; `inner` puts that on the last inner block."""
    if piece.plain:
        return piece.block["text"]
    block = copy.deepcopy(piece.block)
    if ttl is not None:
        parts = naive.inner_blocks(block)
        target = parts[-1] if inner and parts else block
        target["cache_control"] = {"type": "ephemeral"} if bare and ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    return block


def body(talk: Talk, marks: dict[str, str], automatic: str | None, rng: Random) -> Json:
    """The request body of the talk with the markers on the given pointers."""
    inner = rng.random() < 0.1
    sent = {p: marked(piece, marks.get(p), rng.random() < 0.5, inner) for p, piece in in_array(talk)}
    request: Json = {"model": talk.model, "max_tokens": rng.choice((1024, 4096))}
    if automatic is not None:
        request["cache_control"] = {"type": "ephemeral", "ttl": automatic}
    if talk.tools:
        request["tools"] = [sent[f"/tools/{n}"] for n in range(len(talk.tools))]
    if talk.system:
        parts = [sent[f"/system/{n}"] for n in range(len(talk.system)) if "/system" not in sent]
        request["system"] = parts or sent["/system"]
    request["messages"] = []
    for t, (role, pieces) in enumerate(talk.turns):
        base = f"/messages/{t}/content"
        content = sent[base] if base in sent else [sent[f"{base}/{n}"] for n in range(len(pieces))]
        request["messages"].append({"role": role, "content": content})
    return {**request, **dict(talk.params)}


def row_of(talk: Talk, number: int, trace: str, request: Json, times: Times) -> Row:
    """The native row of one served call, still without usage."""
    start, first, end = times
    row: Row = {"schema": "cachewright.trace/1", "seq": number, "id": f"call-{number}", "trace": trace}
    row |= {"agent": talk.agent, "parent": talk.parent, "kind": talk.kind, "attempt": 1, "provider": "anthropic"}
    row |= {"api": "messages", "host": talk.host, "key_fp": talk.key, "started_at": stamp(start)}
    row |= {"first_token_at": stamp(first) if first else None, "ended_at": stamp(end) if end else None, "status": 200}
    tokens = {pointer: piece.tokens for pointer, piece in in_array(talk) if not is_deferred(piece)}
    response = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": talk.model}
    return row | {"request": request, "response": response, "tokens": tokens}


def fill_usage(rows: list[Row]) -> list[Row]:
    """Give every served row the usage that the oracle predicts, in Anthropic's field names."""
    for row, seen in zip(rows, naive.replay(rows, min_tokens=minimum), strict=True):
        if row["status"] >= 400:
            row["response"] = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            continue
        split = {"ephemeral_5m_input_tokens": seen["write_5m"], "ephemeral_1h_input_tokens": seen["write_1h"]}
        row["response"]["usage"] = {
            "input_tokens": seen["uncached"],
            "cache_creation_input_tokens": seen["write_5m"] + seen["write_1h"],
            "cache_read_input_tokens": seen["read"],
            "cache_creation": split,
            "output_tokens": 100,
        }
    return rows
