"""A recorded body as a `Prompt`: ordered blocks with two digests each, and the running identity of the prefix.

Keys are never sorted in the `wire` digest: key order reaches the provider. Markers (`cache_control`) are not content
and change no digest. Blocks and prefixes are interned, so that a block sent a thousand times is held once.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_128_digest

from traces.errors import MalformedRow
from traces.schema import Block, Call, JsonObject, Level, Mark, Prompt, Ttl
from traces.tokens import cumulated
from traces.wire import anthropic

Estimate = Callable[[bytes], int]

# Images and documents are counted by what the model sees, not by their base64 text; the size of a usual image.
MEDIA_TOKENS = 1500

_ROOT = bytes(16)
_MARKER = b'"cache_control"'
# Inside a JSON text these cannot stand in a string value: its quotes would be escaped.
_IMAGE = b'"type":"image"'
_CITATIONS = b'"citations":{"enabled":true'
_BASE64 = b'"type":"base64"'
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


digest = xxh3_128_digest
"""16-byte content digest. Not cryptographic: a trace is compared with itself, and speed is what a long one needs."""


class Run(NamedTuple):
    """Consecutive blocks of one prompt (the head, or one message), held once however often they are sent.

    `marks` are the markers on them as (offset, lifetime); `key` identifies blocks and markers. `paths` are known for
    the head only: those of a message depend on its number.
    """

    key: bytes
    blocks: tuple[Block, ...]
    marks: tuple[tuple[int, Ttl], ...]
    paths: tuple[str, ...]
    image: bool
    citations: bool


class Interner:
    """Holds each distinct block, message and prefix once. `estimate` gives the tokens of a block's JSON text."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._blocks: dict[bytes, Block] = {}
        self._runs: dict[bytes, Run] = {}
        self._chain: dict[bytes, tuple[bytes, ...]] = {}
        self._params: dict[bytes, tuple[tuple[str, str], ...]] = {}

    def head(self, body: JsonObject, tokens: Mapping[str, int]) -> Run:
        """Tools and system of a body."""
        key = digest(b"head" + dump([body.get("tools"), body.get("system")]))
        known = self._runs.get(key)
        return known or self._run(key, anthropic.head_parts(body), tokens)

    def message(self, message: Any, index: int, tokens: Mapping[str, int]) -> Run:
        """The blocks of message `index`."""
        key = digest(dump(message))
        known = self._runs.get(key)
        return known or self._run(key, anthropic.message_parts(message, index), tokens)

    def _run(self, key: bytes, parts: Iterable[anthropic.Part], tokens: Mapping[str, int]) -> Run:
        paths, blocks, marks = [], [], []
        for offset, part in enumerate(parts):
            block, mark = self._block(part, tokens.get(part.path))
            blocks.append(block)
            if mark is not None:
                marks.append((offset, mark))
            if part.level < Level.MESSAGES:
                paths.append(part.path)
        image, citations = any(block.image for block in blocks), any(block.citations for block in blocks)
        run = self._runs[key] = Run(key, tuple(blocks), tuple(marks), tuple(paths), image, citations)
        return run

    def _block(self, part: anthropic.Part, recorded: int | None) -> tuple[Block, Ttl | None]:
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
        weight = recorded
        if weight is None:
            weight = MEDIA_TOKENS if _BASE64 in raw else self._estimate(raw)
        return Block(
            wire=wire,
            meaning=digest(dump_sorted(_normalised(value))),
            level=part.level,
            kind=sys.intern(kind) if isinstance(kind, str) else "",
            role=sys.intern(part.role),
            size=len(raw),
            weight=weight,
            image=_IMAGE in raw,
            citations=_CITATIONS in raw,
        )

    def extend(self, prefix: bytes, run: Run) -> tuple[bytes, ...]:
        """Identities of the prefix `prefix` followed by each block of a run."""
        key = prefix + run.key
        known = self._chain.get(key)
        if known is None:
            links, link = [], prefix
            for block in run.blocks:
                link = digest(link + block.wire)
                links.append(link)
            known = self._chain[key] = tuple(links)
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
    tokens = call.tokens or {}
    head = interner.head(body, tokens)
    blocks, paths, image, citations = list(head.blocks), list(head.paths), head.image, head.citations
    marks = [Mark(offset, ttl) for offset, ttl in head.marks]
    chain = list(interner.extend(_ROOT, head))
    for index, message in enumerate(anthropic.messages(body)):
        run = interner.message(message, index, tokens)
        if run.marks:
            marks += [Mark(len(blocks) + offset, ttl) for offset, ttl in run.marks]
        paths += _message_paths(index, -1 if isinstance(message.get("content"), str) else len(run.blocks))
        chain += interner.extend(chain[-1] if chain else _ROOT, run)
        blocks += run.blocks
        image, citations = image or run.image, citations or run.citations
    return Prompt(
        provider=call.provider,
        model=call.model or "",
        platform=platform_of(call.host, call.provider),
        scope=_scope(call.provider, call.host, call.key_fp),
        blocks=tuple(blocks),
        paths=tuple(paths),
        chain=tuple(chain),
        marks=tuple(marks),
        automatic=anthropic.mark_of(body.get("cache_control")),
        params=interner.params(_parameters(call, body, image, citations)),
        ends=cumulated(tokens[path] for path in paths) if tokens and all(path in tokens for path in paths) else (),
    )


@lru_cache(maxsize=65536)
def _message_paths(index: int, count: int) -> tuple[str, ...]:
    """JSON pointers of a message's blocks; a content that is one text (count -1) is a block itself."""
    if count < 0:
        return (f"/messages/{index}/content",)
    return tuple(f"/messages/{index}/content/{number}" for number in range(count))


@lru_cache(maxsize=4096)
def _scope(provider: str, host: str | None, key: str | None) -> str:
    return f"{provider} {host or ''} {key or ''}"


def _parameters(call: Call, body: JsonObject, image: bool, citations: bool) -> dict[str, Any]:
    found = anthropic.parameters(body)
    if call.betas:
        found["betas"] = sorted(set(call.betas))
    if image:
        found["images"] = True
    if citations:
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


@lru_cache(maxsize=4096)
def platform_of(host: str | None, provider: str) -> str:
    """Where the model was served, by host and provider name; the provider's own API unless they say otherwise."""
    words = f"{host or ''} {provider}".lower()
    return next((platform for word, platform in _PLATFORMS if word in words), "claude_api")
