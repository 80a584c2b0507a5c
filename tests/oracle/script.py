"""Hand-written traces: blocks that carry their own token counts, rows at given seconds, and usage by the oracle.

A block is a provider content block with one more member, `#`, its exact tokens; rendering moves it into `tokens`.
"""

import copy
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import naive

Json: TypeAlias = dict[str, Any]
START = datetime.fromisoformat("2026-10-05T08:00:00Z")
MODEL = "claude-opus-4-8"
MINIMUM = 1024
"""Smallest cacheable prefix of `MODEL`."""


def text(words: str, tokens: int) -> Json:
    return {"type": "text", "text": words, "#": tokens}


def thinking(words: str, tokens: int) -> Json:
    return {"type": "thinking", "thinking": words, "signature": f"sig-{words}", "#": tokens}


def tool(name: str, tokens: int, description: str = "Does it.", **extra: Any) -> Json:
    return {"name": name, "description": description, "input_schema": {"type": "object"}, **extra, "#": tokens}


def use(ident: str, tokens: int = 50) -> Json:
    return {"type": "tool_use", "id": ident, "name": "run", "input": {"cmd": f"make {ident}"}, "#": tokens}


def result(ident: str, words: str, tokens: int) -> Json:
    return {"type": "tool_result", "tool_use_id": ident, "content": [{"type": "text", "text": words}], "#": tokens}


def image(name: str, tokens: int = 1500) -> Json:
    source = {"type": "base64", "media_type": "image/png", "data": name}
    return {"type": "image", "source": source, "#": tokens}


def marked(block: Json, ttl: str = "5m") -> Json:
    return {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def tail_marked(messages: list[Json], ttl: str = "5m") -> list[Json]:
    """The messages with a marker on their last block."""
    *rest, last = messages
    *blocks, final = last["content"]
    return [*rest, {**last, "content": [*blocks, marked(final, ttl)]}]


def rounds(first: int, count: int, tokens: int = 1000) -> list[Json]:
    """`count` tool rounds, numbered from `first`: text and tool use, then its result."""
    found = []
    for number in range(first, first + count):
        ident = f"toolu_{number}"
        found.append(assistant(text(f"Step {number}.", 20), use(ident)))
        found.append(user(result(ident, f"Output of step {number}.", tokens)))
    return found


def call(at_s: float, body: Json, *, usage: Json | None = None, **row: Any) -> Json:
    """One row `at_s` seconds after the start; `usage` replaces what the rules say was billed.

    Its members: read, write_5m, write_1h, output, and dropped (tokens of blocks that the API left out).
    """
    request, tokens = _rendered({"model": MODEL, "max_tokens": 1024, **body})
    begin = START + timedelta(seconds=at_s)
    times = {"first_s": 1.0, "length_s": 5.0} | {name: row.pop(name) for name in ("first_s", "length_s") if name in row}
    made: Json = {"schema": "cachewright.trace/1", "trace": "t", "agent": "main", "kind": "main"}
    made |= {"provider": "anthropic", "api": "messages", "host": "api.anthropic.com", "key_fp": "key-1"}
    made |= {"started_at": _stamp(begin), "status": 200, "request": request, "tokens": tokens, "billed": usage}
    for name, key in (("first_token_at", "first_s"), ("ended_at", "length_s")):
        made[name] = None if times[key] is None else _stamp(begin + timedelta(seconds=times[key]))
    return made | row


def finished(rows: list[Json], minimum: int = MINIMUM) -> list[Json]:
    """The rows numbered in file order, with the usage of the oracle where none was given."""
    for number, row in enumerate(rows, start=1):
        row.setdefault("seq", number)
        row.setdefault("id", f"call-{number}")
    for row, seen in zip(rows, naive.replay(rows, min_tokens=minimum), strict=True):
        billed = row.pop("billed")
        if row["status"] < 400:
            whole = sum(row["tokens"].values()) - (billed or {}).get("dropped", 0)
            row["response"] = {"id": f"msg-{row['seq']}", "type": "message", "usage": _usage(billed or seen, whole)}
    return rows


def _usage(seen: Json, whole: int) -> Json:
    short, hour, read = seen.get("write_5m", 0), seen.get("write_1h", 0), seen["read"]
    return {
        "input_tokens": whole - short - hour - read,
        "cache_creation_input_tokens": short + hour,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour},
        "output_tokens": seen.get("output", 100),
    }


def _rendered(body: Json) -> tuple[Json, dict[str, int]]:
    """The body without token counts, and those by JSON pointer (deferred tools are in no prompt)."""
    body = copy.deepcopy(body)
    tokens = {}
    for pointer, block in _blocks(body):
        count = block.pop("#")
        if not block.get("defer_loading"):
            tokens[pointer] = count
    return body, tokens


def _blocks(body: Json) -> Iterator[tuple[str, Json]]:
    for level in ("tools", "system"):
        for number, block in enumerate(body.get(level) or []):
            yield f"/{level}/{number}", block
    for turn, message in enumerate(body.get("messages") or []):
        for number, block in enumerate(message["content"]):
            yield f"/messages/{turn}/content/{number}", block


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
