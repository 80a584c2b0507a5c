"""A slow and plain model of Anthropic's prompt cache: the oracle for the fast one.

It is written from Anthropic's public pages "Prompt caching", "Tool use with prompt caching" and "Pricing" alone and
shares no code with the product: lists instead of digests, every entry compared with every boundary, so that it can be
checked by reading. Times are those of the rows (UTC), tokens are the exact numbers of each row's `tokens` map.

Readings chosen where the pages are silent:

* Every block of the rendered prompt is one lookback position; a run of blocks is judged in rendering order, over
  message borders too. All boundaries inside a collapsed run belong to its one position.
* A string is short for one text block.
* Where two calls write the same boundary before either can read it, both pay and both leave a copy of the entry with
  their own lifetime.
* `thinking` and `output_config.effort` are compared as sent (`{"type": "disabled"}` is not "absent", "high" is not
  "absent"): the pages do not name the defaults. `speed` absent is "standard".
* Not modelled: stripping of old thinking blocks by older models, context editing, beta headers, toolset batches.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, ...]

TOOLS, SYSTEM, MESSAGES = 0, 1, 2
TTL_S = {"5m": 300, "1h": 3600}
LOOKBACK = 20
READABLE_FALLBACK = timedelta(seconds=5)
AUTOMATIC_SINCE = datetime.fromisoformat("2026-02-19T00:00:00Z")
COLLAPSE_SINCE = datetime.fromisoformat("2026-09-01T00:00:00Z")
COLLAPSE_HOST = "api.anthropic.com"


@dataclass(frozen=True)
class Block:
    """One block of the prompt: its level, kind, identity (JSON text without markers), tokens and explicit marker."""

    level: int
    kind: str
    text: str
    tokens: int
    markable: bool
    ttl: str | None


@dataclass
class Entry:
    """What one breakpoint left: the texts of all blocks up to it and the key of its last block's level."""

    texts: list[str]
    key: Key
    ttl_s: int
    used_at: datetime
    readable_at: datetime


def replay(rows: list[Row], *, min_tokens: int | Callable[[Row], int]) -> list[dict[str, int]]:
    """Serve the rows in order of `started_at`, then file order; the result has the order of `rows`.

    `min_tokens` is the smallest prefix that can be cached, or a function of the row. Each result holds the tokens
    `read`, `write_5m`, `write_1h` and `uncached`; failed calls and token counts are all zero (nothing was served).
    Raises `KeyError` where a block has no exact token count.
    """
    entries: list[Entry] = []
    results: list[dict[str, int]] = [{} for _ in rows]
    for number in sorted(range(len(rows)), key=lambda n: (when(rows[n]["started_at"]), n)):
        row = rows[number]
        minimum = min_tokens(row) if callable(min_tokens) else min_tokens
        results[number] = serve(row, entries, minimum)
    return results


@dataclass(frozen=True)
class Prompt:
    """One call's request as the cache sees it, at the start of the call."""

    now: datetime
    blocks: list[Block]
    texts: list[str]
    keys: tuple[Key, Key, Key]
    collapse: bool


def prompt_of(row: Row) -> Prompt:
    now = when(row["started_at"])
    blocks = blocks_of(row)
    keys = level_key(row, TOOLS), level_key(row, SYSTEM), level_key(row, MESSAGES)
    collapse = row.get("host") == COLLAPSE_HOST and now >= COLLAPSE_SINCE
    return Prompt(now, blocks, [block.text for block in blocks], keys, collapse)


def serve(row: Row, entries: list[Entry], minimum: int) -> dict[str, int]:
    """Bill one call against `entries` and change them as the call does."""
    if (row.get("status") or 200) >= 400 or row.get("kind") == "count":
        return {"read": 0, "write_5m": 0, "write_1h": 0, "uncached": 0}
    prompt = prompt_of(row)
    ends = [sum(block.tokens for block in prompt.blocks[: n + 1]) for n in range(len(prompt.blocks))]
    marks = {n: ttl for n, ttl in breakpoints(row, prompt.blocks).items() if ends[n] >= minimum}
    hit = longest_hit(prompt, list(marks), entries)
    remember(prompt, marks, hit, entries, readable_at(row))
    return bill(marks, ends, hit)


def bill(marks: dict[int, str], ends: list[int], hit: int) -> dict[str, int]:
    """Anthropic's A/B/C rule: read A, write B - A for an hour and C - B for five minutes, the rest is plain input."""
    a = ends[hit] if hit >= 0 else 0
    b = max([a] + [ends[n] for n, ttl in marks.items() if ttl == "1h" and n > hit])
    c = max([b] + [ends[n] for n in marks])
    total = ends[-1] if ends else 0
    return {"read": a, "write_5m": c - b, "write_1h": b - a, "uncached": total - c}


def longest_hit(prompt: Prompt, marks: list[int], entries: list[Entry]) -> int:
    """The last block of the longest readable entry in the window of any breakpoint, or -1."""
    hit = -1
    for mark in marks:
        for n in window(prompt, mark):
            if copies(prompt, n, entries):
                hit = max(hit, n)
    return hit


def window(prompt: Prompt, mark: int) -> Iterator[int]:
    """The boundaries within 20 positions of the breakpoint, which itself is the first."""
    kinds = [block.kind for block in prompt.blocks]
    position = 1
    for n in range(mark, -1, -1):
        if n < mark:
            same_run = kinds[n] == kinds[n + 1] and kinds[n] in ("tool_use", "tool_result")
            if not (prompt.collapse and same_run):
                position += 1
        if position > LOOKBACK:
            return
        yield n


def copies(prompt: Prompt, n: int, entries: list[Entry]) -> list[Entry]:
    """The entries of boundary `n` that are alive and readable now."""
    key = prompt.keys[prompt.blocks[n].level]
    return [
        entry
        for entry in entries
        if len(entry.texts) == n + 1
        and entry.texts == prompt.texts[: n + 1]
        and entry.key == key
        and (prompt.now - entry.used_at).total_seconds() < entry.ttl_s
        and prompt.now >= entry.readable_at
    ]


def remember(prompt: Prompt, marks: dict[int, str], hit: int, entries: list[Entry], readable: datetime) -> None:
    """Refresh the entry that was read and those at breakpoints; write the breakpoints that have none."""
    for n in sorted({*marks, hit} - {-1}):
        found = copies(prompt, n, entries)
        for entry in found:
            entry.used_at = prompt.now
        if not found:
            key = prompt.keys[prompt.blocks[n].level]
            entries.append(Entry(prompt.texts[: n + 1], key, TTL_S[marks[n]], prompt.now, readable))


def readable_at(row: Row) -> datetime:
    """When the response began, as well as the row tells."""
    known = row.get("first_token_at") or row.get("ended_at")
    return when(known) if known else when(row["started_at"]) + READABLE_FALLBACK


def breakpoints(row: Row, blocks: list[Block]) -> dict[int, str]:
    """Block number to lifetime: explicit markers, the automatic one, and those the API adds for server tools."""
    marks = {n: block.ttl for n, block in enumerate(blocks) if block.ttl is not None and block.markable}
    automatic = row["request"].get("cache_control")
    if automatic and when(row["started_at"]) >= AUTOMATIC_SINCE:
        eligible = [n for n, block in enumerate(blocks) if block.markable]
        if eligible:
            marks.setdefault(eligible[-1], automatic.get("ttl", "5m"))
    if marks:
        for n, block in enumerate(blocks):
            if is_server_result(block.kind):
                marks.setdefault(n, "5m")
    return dict(sorted(marks.items()))


def is_server_result(kind: str) -> bool:
    """Whether a block is the result of a tool that the API itself ran, such as `web_search_tool_result`."""
    return kind.endswith("_tool_result") and kind != "mcp_tool_result"


def blocks_of(row: Row) -> list[Block]:
    """Tools, system, messages; web tools open the system level; deferred tools are not in the prompt."""
    request, tokens = row["request"], row["tokens"]
    tools, web = [], []
    for n, tool in enumerate(request.get("tools") or []):
        if tool.get("defer_loading"):
            continue
        if is_web_tool(tool):
            web.append(make_block(SYSTEM, "tool", "", tool, tokens[f"/tools/{n}"]))
        else:
            tools.append(make_block(TOOLS, "tool", "", tool, tokens[f"/tools/{n}"]))
    system = parts(SYSTEM, "", request.get("system"), "/system", tokens)
    messages: list[Block] = []
    for n, message in enumerate(request.get("messages") or []):
        messages += parts(MESSAGES, message["role"], message["content"], f"/messages/{n}/content", tokens)
    return tools + web + system + messages


def is_web_tool(tool: dict[str, Any]) -> bool:
    return str(tool.get("type", "")).startswith(("web_search_", "web_fetch_"))


def parts(level: int, role: str, content: Any, pointer: str, tokens: dict[str, int]) -> list[Block]:
    """The blocks of a system prompt or a message, which may be one string."""
    if content is None:
        return []
    if isinstance(content, str):
        return [make_block(level, "text", role, {"type": "text", "text": content}, tokens[pointer])]
    return [make_block(level, block["type"], role, block, tokens[f"{pointer}/{n}"]) for n, block in enumerate(content)]


def make_block(level: int, kind: str, role: str, block: dict[str, Any], tokens: int) -> Block:
    barred = kind in ("thinking", "redacted_thinking") or (kind == "text" and not block["text"])
    return Block(level, kind, role + " " + json.dumps(without_markers(block)), tokens, not barred, marker(block))


def marker(block: dict[str, Any]) -> str | None:
    """The lifetime asked for on this block; one on its last inner block counts for the whole."""
    found = block.get("cache_control")
    inner = inner_blocks(block)
    if not found and inner:
        found = inner[-1].get("cache_control")
    return found.get("ttl", "5m") if found else None


def inner_blocks(block: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks inside a tool result or a document, if it has such."""
    content = block.get("content")
    if block.get("type") == "document":
        content = block.get("source", {}).get("content")
    inner = content if block.get("type") in ("tool_result", "document") and isinstance(content, list) else []
    return [part for part in inner if isinstance(part, dict)]


def without_markers(block: dict[str, Any]) -> dict[str, Any]:
    """The block as content: markers are not part of it, key order is."""
    clean = {name: value for name, value in block.items() if name != "cache_control"}
    inner = [without_markers(part) for part in inner_blocks(block)]
    if inner and block["type"] == "tool_result":
        clean["content"] = inner
    elif inner:
        clean["source"] = {**block["source"], "content": inner}
    return clean


def level_key(row: Row, level: int) -> Key:
    """All that must be equal, besides the content, for an entry of this level to match."""
    request = row["request"]
    key = [request.get("model"), row.get("provider"), row.get("host"), row.get("key_fp")]
    if level >= SYSTEM:
        types = [str(tool.get("type", "")) for tool in request.get("tools") or [] if not tool.get("defer_loading")]
        key.append(any(kind.startswith("web_search_") for kind in types))
        key.append(any(kind.startswith("web_fetch_") for kind in types))
        key.append(any(has_citations(block) for block in message_blocks(request)))
        key.append(request.get("speed") or "standard")
    if level >= MESSAGES:
        choice = dict(request.get("tool_choice") or {"type": "auto"})
        key.append(bool(choice.pop("disable_parallel_tool_use", False)))
        key.append(choice)
        key.append(any(block.get("type") == "image" for block in message_blocks(request)))
        key.append(request.get("thinking"))
        key.append((request.get("output_config") or {}).get("effort"))
        key.append((request.get("output_config") or {}).get("format"))
    return tuple(json.dumps(part) for part in key)


def message_blocks(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All blocks of all messages, with those inside tool results and documents."""
    for message in request.get("messages") or []:
        if isinstance(message["content"], list):
            for block in message["content"]:
                yield block
                yield from inner_blocks(block)


def has_citations(block: dict[str, Any]) -> bool:
    return block.get("type") == "document" and bool((block.get("citations") or {}).get("enabled"))


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)
