"""A recorded body as a `Prompt`: ordered blocks with two digests each, and the running identity of the prefix.

Keys are never sorted in the `wire` digest: key order reaches the provider. Markers (`cache_control`) are not content
and change no digest. Blocks and prefixes are interned, so that a block sent a thousand times is held once.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_128_digest

from traces.errors import MalformedRow
from traces.schema import Block, Call, JsonObject, Level, Mark, Prompt, Ttl
from traces.tokens import cumulated
from traces.wire import anthropic
from traces.wire.dialects import MESSAGES, Dialect, dialect_of

Estimate = Callable[[bytes], int]

# Images and documents are counted by what the model sees, not by their base64 text; the size of a usual image.
MEDIA_TOKENS = 1500

_ROOT = bytes(16)
_MARKERS = (b'"cache_control"', b'"prompt_cache_breakpoint"')
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

    `marks` are the markers on them as (offset, lifetime). `paths` are whole for the head only: those of a message
    depend on its number and on `shape`: how many blocks, -1 for a content that is one text, or `OWN` where `paths`
    holds what follows the message's own pointer.
    """

    blocks: tuple[Block, ...]
    marks: tuple[tuple[int, Ttl], ...]
    paths: tuple[str, ...]
    shape: int
    image: bool
    citations: bool


OWN = -2

Step = tuple[Run, tuple[bytes, ...]]
"""A run behind a certain prefix, and the identities of that prefix extended by each of its blocks."""


class Interner:
    """Holds each distinct block, message and prefix once. `estimate` gives the tokens of a block's JSON text."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._blocks: dict[bytes, Block] = {}
        self._runs: dict[bytes, Run] = {}
        self._steps: dict[bytes, Step] = {}
        self._params: dict[bytes, tuple[tuple[str, str], ...]] = {}
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}

    def head(self, body: JsonObject, tokens: Mapping[str, int], dialect: Dialect = MESSAGES) -> Step:
        """Tools and system of a body."""
        raw = dump(dialect.head_key(body))
        key = digest(b"head " + dialect.name.encode() + raw)
        known = self._steps.get(key)
        if known is None:
            run = self._run(dialect, dialect.head_parts(body), raw, tokens, 0)
            known = self._steps[key] = run, _links(_ROOT, run)
        return known

    def message(
        self, prefix: bytes, message: Any, index: int, tokens: Mapping[str, int], dialect: Dialect = MESSAGES
    ) -> Step:
        """The blocks of message `index` behind the prefix with the identity `prefix`."""
        raw = dump(message)
        name = digest(raw) if dialect is MESSAGES else digest(dialect.name.encode() + raw)
        # Long conversations repeat their messages in every call, so this one look-up is nearly all that they cost.
        known = self._steps.get(prefix + name)
        if known is None:
            run = self._runs.get(name)
            if run is None:
                parts, stem, shape = dialect.item_parts(message, index), "", None
                if dialect is not MESSAGES:
                    shape, stem = OWN, dialect.stem(message, index)
                elif isinstance(message, dict) and isinstance(message.get("content"), str):
                    shape = -1
                run = self._runs[name] = self._run(dialect, parts, raw, tokens, shape, stem)
            known = self._steps[prefix + name] = run, _links(prefix, run)
        return known

    def _run(
        self, dialect: Dialect, parts: Iterable[anthropic.Part], text: bytes, tokens: Mapping[str, int],
        shape: int | None, stem: str = "",
    ) -> Run:  # fmt: skip
        """`text` is the JSON text that holds all parts: what it does not hold is not looked for in each of them."""
        rare = _Rare(text)
        paths, blocks, marks = [], [], []
        for offset, part in enumerate(parts):
            block, mark = self._block(dialect, part, tokens.get(part.path), rare)
            blocks.append(block)
            if mark is not None:
                marks.append((offset, mark))
            if part.level < Level.MESSAGES or shape == OWN:
                paths.append(part.path[len(stem) :])
        image = rare.image and any(block.image for block in blocks)
        citations = rare.citations and any(block.citations for block in blocks)
        shape = len(blocks) if shape is None else shape
        return Run(tuple(blocks), tuple(marks), tuple(paths), shape, image, citations)

    def _block(
        self, dialect: Dialect, part: anthropic.Part, recorded: int | None, rare: "_Rare"
    ) -> tuple[Block, Ttl | None]:
        """The block of one part, and the lifetime its marker asks for (`None`: unmarked)."""
        value, mark = part.value, None
        raw = dump(value)
        if rare.marker and any(marker in raw for marker in _MARKERS):
            value, mark = dialect.strip_marks(value)
            raw = dump(value)
        wire = digest(_tag(part.level, part.role) + raw)
        block = self._blocks.get(wire)
        if block is None:
            block = self._blocks[wire] = self._new_block(part, value, raw, wire, recorded, rare)
        return block, mark

    def _new_block(
        self, part: anthropic.Part, value: JsonObject, raw: bytes, wire: bytes, recorded: int | None, rare: "_Rare"
    ) -> Block:
        kind = "tool" if part.path.startswith("/tools/") else value.get("type")
        if kind == "text" and value.get("text") == "":
            kind = "empty_text"
        weight = recorded
        if weight is None:
            weight = MEDIA_TOKENS if rare.base64 and _BASE64 in raw else self._estimate(raw)
        return Block(
            wire=wire,
            meaning=digest(dump_sorted(_normalised(value))),
            level=part.level,
            kind=sys.intern(kind) if isinstance(kind, str) else "",
            role=sys.intern(part.role),
            size=len(raw),
            weight=weight,
            image=rare.image and _IMAGE in raw,
            citations=rare.citations and _CITATIONS in raw,
        )

    def paths(self, found: list[str]) -> tuple[str, ...]:
        """Pointers of a prompt's blocks, one tuple for all calls of the same shape."""
        made = tuple(found)
        return self._paths.setdefault(made, made)

    def params(self, found: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Parameters as sorted (name, JSON text) pairs, one tuple for all calls that share them."""
        key = dump_sorted(found)
        known = self._params.get(key)
        if known is None:
            known = tuple((name, dump_sorted(found[name]).decode(errors="replace")) for name in sorted(found))
            self._params[key] = known
        return known


class _Rare:
    """Which of the things that few blocks have may be in a text at all."""

    __slots__ = ("base64", "citations", "image", "marker")

    def __init__(self, text: bytes) -> None:
        self.marker = any(marker in text for marker in _MARKERS)
        self.image = _IMAGE in text
        self.citations = _CITATIONS in text
        self.base64 = _BASE64 in text


def _links(prefix: bytes, run: Run) -> tuple[bytes, ...]:
    """Identities of the prefix `prefix` followed by each block of a run."""
    links = []
    for block in run.blocks:
        prefix = digest(prefix + block.wire)
        links.append(prefix)
    return tuple(links)


@lru_cache(maxsize=4096)
def _tag(level: Level, role: str) -> bytes:
    """What tells equal texts of different levels and roles apart."""
    return _LEVEL_TAGS[level] + role.encode(errors="replace") + b"\0"


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
    dialect = None if body is None else dialect_of(body, call.provider, call.api)
    if body is None or dialect is None:
        return None
    tokens = call.tokens or {}
    head, links = interner.head(body, tokens, dialect)
    blocks, paths, image, citations = list(head.blocks), list(head.paths), head.image, head.citations
    marks = [_mark(offset, ttl) for offset, ttl in head.marks]
    chain = list(links)
    start, items = dialect.items(body)
    for index, message in enumerate(items, start):
        run, links = interner.message(chain[-1] if chain else _ROOT, message, index, tokens, dialect)
        if run.marks:
            marks += [_mark(len(blocks) + offset, ttl) for offset, ttl in run.marks]
        if run.shape == OWN:
            stem = dialect.stem(message, index)
            paths += [stem + path for path in run.paths]
        else:
            paths += _message_paths(index, run.shape)
        chain += links
        blocks += run.blocks
        image, citations = image or run.image, citations or run.citations
    return Prompt(
        provider=call.provider,
        model=call.model or "",
        platform=platform_of(call.host, call.provider),
        scope=_scope(call.provider, call.host, call.key_fp),
        blocks=tuple(blocks),
        paths=interner.paths(paths),
        chain=tuple(chain),
        marks=tuple(marks),
        automatic=dialect.automatic(body),
        params=interner.params(_parameters(call, dialect.parameters(body), image, citations)),
        ends=_counted(tokens, paths),
        dialect=dialect.name,
    )


def _counted(tokens: Mapping[str, int], paths: list[str]) -> Sequence[int]:
    """Cumulative token counts where all of them were recorded, else nothing."""
    if not tokens:
        return ()
    try:
        return cumulated(map(tokens.__getitem__, paths))
    except KeyError:
        return ()


@lru_cache(maxsize=65536)
def _message_paths(index: int, count: int) -> tuple[str, ...]:
    """JSON pointers of a message's blocks; a content that is one text (count -1) is a block itself."""
    if count < 0:
        return (f"/messages/{index}/content",)
    return tuple(f"/messages/{index}/content/{number}" for number in range(count))


@lru_cache(maxsize=4096)
def _mark(index: int, ttl: Ttl) -> Mark:
    """One object for all markers with a lifetime at an index: a long trace keeps those of each of its calls."""
    return Mark(index, ttl)


@lru_cache(maxsize=4096)
def _scope(provider: str, host: str | None, key: str | None) -> str:
    return f"{provider} {host or ''} {key or ''}"


def _parameters(call: Call, found: dict[str, Any], image: bool, citations: bool) -> dict[str, Any]:
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
