"""A recorded body as a `Prompt`: ordered blocks with two digests each, and the running identity of the prefix.

Keys are never sorted in the `wire` digest: key order reaches the provider. Markers (`cache_control`) are not content
and change no digest. Blocks and prefixes are interned, so that a block sent a thousand times is held once.
"""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import orjson

from traces.errors import MalformedRow
from traces.schema import Block, Call, JsonObject, Mark, Prompt, Ttl
from traces.wire import anthropic

Estimate = Callable[[bytes], int]

_ROOT = bytes(16)
_MARKER = b'"cache_control"'
# Inside a JSON text these cannot stand in a string value: its quotes would be escaped.
_IMAGE = b'"type":"image"'
_CITATIONS = b'"citations":{"enabled":true'
_LEVEL_TAGS = (b"t", b"s", b"m")


def dump(value: Any) -> bytes:
    """JSON text of `value`, key order kept. Raises `MalformedRow` for nesting that no JSON library writes."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return _dump_slowly(value, sort_keys=False)


def dump_sorted(value: Any) -> bytes:
    """JSON text of `value` with sorted keys: equal for bodies that differ in serialisation only."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        return _dump_slowly(value, sort_keys=True)


def _dump_slowly(value: Any, *, sort_keys: bool) -> bytes:
    """For what orjson refuses: integers beyond 64 bits, lone surrogates, 250 levels."""
    try:
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys).encode()
    except (RecursionError, ValueError, TypeError) as error:
        raise MalformedRow("body is nested too deeply to be compared") from error


def digest(data: bytes) -> bytes:
    """16-byte content digest."""
    return blake2b(data, digest_size=16).digest()


class Interner:
    """Holds each distinct block and prefix once. `estimate` gives the tokens of a block's JSON text."""

    def __init__(self, estimate: Estimate) -> None:
        self.estimate = estimate
        self._blocks: dict[bytes, Block] = {}
        self._chain: dict[bytes, bytes] = {}
        self._params: dict[bytes, tuple[tuple[str, str], ...]] = {}

    def block(self, part: anthropic.Part, recorded: int | None) -> tuple[Block, Ttl | None]:
        """The block of one part, and the lifetime its marker asks for (`None`: unmarked)."""
        value, mark = part.value, None
        raw = dump(value)
        if _MARKER in raw:
            value, mark = anthropic.strip_marks(value)
            raw = dump(value)
        wire = digest(_LEVEL_TAGS[part.level] + part.role.encode(errors="replace") + b"\0" + raw)
        block = self._blocks.get(wire)
        if block is None:
            block = self._blocks[wire] = self._new_block(part, value, raw, wire, recorded)
        return block, mark

    def _new_block(
        self, part: anthropic.Part, value: JsonObject, raw: bytes, wire: bytes, recorded: int | None
    ) -> Block:
        kind = "tool" if part.path.startswith("/tools/") else value.get("type")
        if kind == "text" and value.get("text") == "":
            kind = "empty_text"
        return Block(
            wire=wire,
            meaning=digest(dump_sorted(_normalised(value))),
            level=part.level,
            kind=kind if isinstance(kind, str) else "",
            role=part.role,
            size=len(raw),
            weight=self.estimate(raw) if recorded is None else recorded,
            image=_IMAGE in raw,
            citations=_CITATIONS in raw,
        )

    def extend(self, prefix: bytes, wire: bytes) -> bytes:
        """Identity of the prefix `prefix` followed by the block `wire`."""
        key = prefix + wire
        known = self._chain.get(key)
        if known is None:
            known = self._chain[key] = digest(key)
        return known

    def params(self, found: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Parameters as sorted (name, JSON text) pairs, one tuple for all calls that share them."""
        key = dump_sorted(found)
        known = self._params.get(key)
        if known is None:
            known = tuple((name, dump_sorted(found[name]).decode(errors="replace")) for name in sorted(found))
            self._params[key] = known
        return known


def _normalised(value: JsonObject) -> JsonObject:
    """A tool result's text and its one-block list mean the same."""
    content = value.get("content")
    if value.get("type") == "tool_result" and isinstance(content, str):
        return {**value, "content": [{"type": "text", "text": content}]}
    return value


def canonical(call: Call, interner: Interner) -> Prompt | None:
    """The prompt of a recorded call, uncounted; `None` where no body of a known format was recorded.

    Raises `MalformedRow` where the body is broken.
    """
    body = call.request
    if body is None or not anthropic.is_request(body) or call.api in ("chat", "responses"):
        return None
    blocks: list[Block] = []
    paths: list[str] = []
    chain: list[bytes] = []
    marks: list[Mark] = []
    prefix, tokens = _ROOT, call.tokens or {}
    for part in anthropic.parts(body):
        block, mark = interner.block(part, tokens.get(part.path))
        if mark is not None:
            marks.append(Mark(len(blocks), mark))
        prefix = interner.extend(prefix, block.wire)
        blocks.append(block)
        paths.append(part.path)
        chain.append(prefix)
    return Prompt(
        provider=call.provider,
        model=call.model or "",
        platform=platform_of(call),
        scope=f"{call.provider} {call.host or ''} {call.key_fp or ''}",
        blocks=tuple(blocks),
        paths=tuple(paths),
        chain=tuple(chain),
        marks=tuple(marks),
        automatic=anthropic.mark_of(body.get("cache_control")),
        params=interner.params(_parameters(call, body, blocks)),
    )


def _parameters(call: Call, body: JsonObject, blocks: list[Block]) -> dict[str, Any]:
    found = anthropic.parameters(body)
    if call.betas:
        found["betas"] = sorted(set(call.betas))
    if any(block.image for block in blocks):
        found["images"] = True
    if any(block.citations for block in blocks):
        found["citations"] = True
    return found


_PLATFORMS = (
    ("bedrock", "bedrock"),
    ("aws", "claude_platform_aws"),
    ("google", "google_cloud"),
    ("vertex", "google_cloud"),
    ("azure", "azure_foundry"),
    ("foundry", "azure_foundry"),
)


def platform_of(call: Call) -> str:
    """Where the model was served, by host and provider name; the provider's own API unless they say otherwise."""
    words = f"{call.host or ''} {call.provider}".lower()
    return next((platform for word, platform in _PLATFORMS if word in words), "claude_api")
