"""Rows of Claude Code transcripts, as far as they matter here. Decoding skips all other fields without making them.

Only what an audit needs is declared, so that a megabyte of tool output costs no object. A field of a declared type that
holds another costs the row.
"""

import json
from typing import Annotated

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from traces.facts import COMMAND, INTERRUPT, SKILL, TOOL_SEARCH
from traces.importers.transcripts import REFUSALS
from traces.schema import JsonObject
from traces.wire.usage import MAX_COUNT

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]

# A row of these types holds neither a call nor a link of the conversation; they are told by their first bytes.
SIDE_ROWS = tuple(
    b'{"type":"%s"' % name
    for name in (
        *(b"file-history-snapshot", b"queue-operation", b"last-prompt", b"ai-title", b"custom-title", b"mode"),
        *(b"permission-mode", b"summary", b"pr-link", b"agent-name", b"tag"),
    )
)


class Split(Struct, gc=False):
    """Written tokens by lifetime."""

    ephemeral_5m_input_tokens: Count | None = None
    ephemeral_1h_input_tokens: Count | None = None


class Iteration(Struct, gc=False):
    """One pass of the model inside a response; those of another type than "message" are billed beside the total."""

    type: str | None = None
    model: str | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_creation: Split | None = None


class Bill(Iteration, gc=False):
    """`usage` of a response, in Anthropic's names."""

    speed: str | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    iterations: list[Iteration] | None = None


class MissReason(Struct, gc=False):
    """The API's own account of a miss."""

    type: str | None = None
    cache_missed_input_tokens: Count | None = None


class Diagnostics(Struct, gc=False):
    """`diagnostics` of a response."""

    cache_miss_reason: MissReason | None = None


class Message(Struct, gc=False):
    """A message; its content is left as it stands in the line."""

    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: Bill | UnsetType | None = UNSET
    diagnostics: Diagnostics | UnsetType | None = UNSET
    content: Raw = Raw()


class Said(Struct, gc=False):
    """A block of a user's message: a text, or what a tool gave back."""

    type: str | None = None
    text: Raw = Raw()
    content: Raw = Raw()


class Inner(Struct, gc=False):
    """A message of a sub-agent as a `progress` row embeds it."""

    type: str | None = None
    timestamp: str | None = None
    requestId: str | None = None
    message: Message | None = None


class Progress(Struct, gc=False):
    """`data` of a progress row."""

    type: str | None = None
    agentId: str | None = None
    message: Inner | None = None


class Attachment(Struct, gc=False):
    """What the client put into the prompt by itself."""

    type: str | None = None


class Compaction(Struct, gc=False):
    """How a conversation was summarised."""

    trigger: str | None = None
    preTokens: int | None = None


class Row(Struct, gc=False):
    """One line of a transcript. `parentUuid` is unset where the row has no such key."""

    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | UnsetType | None = UNSET
    logicalParentUuid: str | None = None
    sessionId: str | None = None
    agentId: str | None = None
    isSidechain: bool = False
    isCompactSummary: bool = False
    timestamp: str | None = None
    requestId: str | None = None
    version: str | None = None
    cwd: str | None = None
    permissionMode: str | None = None
    message: Message | None = None
    data: Progress | None = None
    attachment: Attachment | None = None
    compactMetadata: Compaction | None = None


decode = msgspec.json.Decoder(Row).decode
"""One line -> `Row`; raises `msgspec.ValidationError` for a wrong type, `msgspec.DecodeError` for what is no JSON."""

_blocks = msgspec.json.Decoder(list[Said]).decode

_GLUED = (b'{"type":"', b'{"parentUuid":')
_LINKS = ("type", "uuid", "parentUuid", "sessionId", "agentId", "timestamp")


def converted(value: JsonObject) -> Row | None:
    """The row in decoded JSON (text that only the standard library reads), `None` where a field is of another type."""
    try:
        return msgspec.convert(_raw(value), Row)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None


def _raw(value: JsonObject) -> JsonObject:
    """A row, or a message in it, with the content of messages as JSON text again."""
    inner = {name: _raw(each) for name in ("message", "data") if isinstance(each := value.get(name), dict)}
    content = {"content": Raw(json.dumps(value["content"]).encode())} if "content" in value else {}
    return value | inner | content


def links_of(value: JsonObject) -> Row:
    """The links of a row whose other fields are of odd types."""
    texts = {name: value[name] for name in _LINKS if isinstance(value.get(name), str)}
    parent = None if value.get("parentUuid", "") is None else texts.pop("parentUuid", UNSET)
    return Row(**texts, parentUuid=parent, isSidechain=value.get("isSidechain") is True)


def glued(line: bytes) -> int:
    """Where, behind a row that breaks off, a whole one stands: a killed writer's line that the next append went on.

    0 where there is none.
    """
    for mark in _GLUED:
        at = line.find(mark, 1)
        if at > 0:
            try:
                decode(line[at:])
            except REFUSALS:
                continue
            return at
    return 0


def spoken(content: Raw) -> list[str]:
    """What the content of a user's message tells, by marks that the client sets itself.

    What a tool gave back is no word of the client's: files and pages hold the same marks. Only the definitions that a
    tool search loads stand there.
    """
    try:
        blocks = _blocks(content)
    except REFUSALS:  # one text, or blocks of an unknown form
        return marked(bytes(content))
    found: list[str] = []
    for block in blocks:
        if block.type == "text":
            found += marked(bytes(block.text))
        elif block.type == "tool_result" and bytes(memoryview(block.content)[:1]) == b"[":
            found += [TOOL_SEARCH] if b'"tool_reference"' in bytes(block.content) else []
    return found


def marked(text: bytes) -> list[str]:
    """What a text (JSON) tells by marks that the client sets itself."""
    found = []
    if b"Base directory for this skill" in text:
        found.append(SKILL)
    if b"[Request interrupted" in text:
        found.append(INTERRUPT)
    at = text.find(b"<command-name>")
    if at >= 0:
        name = text[at + 14 : at + 80].split(b"<")[0].decode("utf-8", "replace")
        found.append(f"{COMMAND} {name}")
    return found
