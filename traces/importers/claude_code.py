"""Claude Code transcripts: `~/.claude/projects/FOLDER/SESSION.jsonl` and the files of its sub-agents.

A transcript is a conversation, not the traffic: it holds usage, ids and times of each response, but neither system
prompt nor tools nor markers. What it tells of a call beside the usage goes into `Call.facts`.

One response is written as a row for each content block, with its usage repeated; early rows may hold a part of the
output count only. Rows are put together by message id (and request id where both have one). Rows link to their parent
by `parentUuid`; a call continues the response that its chain of parents last passed, across compactions
(`logicalParentUuid`). Sub-agents are chains of their own, wherever their rows are: in a file of theirs, between the
rows of the main chain (`isSidechain`), or inside `progress` rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import BinaryIO

from msgspec import UNSET

from traces.facts import API_ERROR, CLIENT, COMPACT, MICROCOMPACT, PERMISSION_MODE, SYNTHETIC
from traces.importers.claude_code_calls import CLIENT_NAME, Chain, Link, Response, calls_of, weight
from traces.importers.claude_code_rows import (
    SIDE_ROWS,
    Bill,
    Inner,
    Message,
    Row,
    converted,
    decode,
    glued,
    links_of,
    marked,
    spoken,
)
from traces.importers.transcripts import REFUSALS, loaded, named, wrong
from traces.lines import BUFFER, OnReject, Rejected, objects, spans_of
from traces.schema import Call, JsonObject, Place

NAME = CLIENT_NAME

PENDING = 64
"""Responses that wait for further rows of theirs; all rows of one stand together but for other chains' between them."""

LINKS = 50_000
"""Rows whose place in the conversation is remembered; a parent is nearly always among the last few."""

_ROW_TYPES = frozenset(("user", "assistant", "system", "attachment", "progress"))
_SIDE_TYPES = frozenset(
    ("file-history-snapshot", "queue-operation", "last-prompt", "ai-title", "permission-mode", "mode")
)
_SUBTYPES = {
    "microcompact_boundary": MICROCOMPACT,
    "api_error": API_ERROR,
    "model_refusal_fallback": "model_refusal_fallback",
}
_ATTACHMENTS = frozenset(
    (
        "deferred_tools_delta",
        "mcp_instructions_delta",
        "agent_listing_delta",
        "date_change",
        "plan_mode",
        "plan_mode_exit",
    )
)


def sniff(head: bytes) -> bool:
    """Whether rows of a session stand in the head of a file."""
    start = head[:4096]  # also where the first row is longer than the head
    if start.startswith(b'{"parentUuid":') and b'"isSidechain":' in start:
        return True
    if start.startswith(b'{"type":"file-history-snapshot",') and b'"snapshot":' in start:
        return True
    return any(_is_ours(row) for row in objects(head))


def _is_ours(row: JsonObject) -> bool:
    kind = row.get("type")
    if not isinstance(kind, str):
        return False
    if kind == "summary":
        return "leafUuid" in row
    if kind == "file-history-snapshot":
        return "snapshot" in row
    known = isinstance(kind, str) and (kind in _ROW_TYPES or kind in _SIDE_TYPES)
    return known and "sessionId" in row and ("message" in row or "uuid" in row or kind in _SIDE_TYPES)


def read(path: Path, *, on_reject: OnReject | None) -> Iterator[Call]:
    """Calls of one transcript in the order in which their responses began."""
    with path.open("rb", BUFFER) as file:
        yield from read_open(file, f"{path}", on_reject=on_reject)


def read_open(file: BinaryIO, path: str, *, on_reject: OnReject | None) -> Iterator[Call]:
    """The same, of a file that is open at its start."""
    transcript = _Transcript(path, on_reject)
    pending = transcript.pending
    for number, offset, length, line in spans_of(file):
        if line is None:
            transcript.reject(Place(transcript.name, number, offset, length), "row of more than 64 MiB, not read")
        elif not line.startswith(SIDE_ROWS) or b'"assistant"' in line:
            transcript.take(line, number, offset)
            while len(pending) > PENDING:
                yield from transcript.oldest()
    while pending:
        yield from transcript.oldest()


class _Transcript:
    """One file while it is read."""

    def __init__(self, path: str, on_reject: OnReject | None) -> None:
        self.name = path
        self.stem = os.path.splitext(os.path.basename(path))[0]  # noqa: PTH119, PTH122 -- as `Path.stem`, in a tenth
        self._on_reject = on_reject
        self._links: dict[str, Link] = {}
        self._main = Chain("main")
        self._chains = {"main": self._main}
        self.pending: dict[str, Response] = {}
        self._seen: set[str] = set()

    def reject(self, place: Place, reason: str, pending: bool = False) -> None:
        """Say that a row gave nothing."""
        if self._on_reject is not None:
            self._on_reject(Rejected(place, reason, pending))

    def oldest(self) -> list[Call]:
        """The calls of the response that waits longest, which it does no more."""
        name = next(iter(self.pending))
        response = self.pending.pop(name)
        if name in self._seen:
            return []
        self._seen.add(name)
        return calls_of(response, self.stem)

    def take(self, line: bytes, number: int, offset: int) -> None:
        """Take in one line."""
        try:
            row: Row | None = decode(line)
        except REFUSALS as error:
            row = self._damaged(line, Place(self.name, number, offset, len(line)), error)
        if row is None:
            return
        if row.type == "assistant":
            self._assistant(row, Place(self.name, number, offset, len(line)))
        elif row.type == "progress" and row.data is not None and row.data.message is not None:
            self._follow(row, line)
            self._embedded(row, row.data.message, Place(self.name, number, offset, len(line)))
        elif row.type in _ROW_TYPES:
            self._follow(row, line)

    def _damaged(self, line: bytes, place: Place, error: Exception) -> Row | None:
        """What can be saved of a line that is no row: a whole row behind a torn one, or the links of an odd one."""
        if not line.strip():
            return None
        if not line.strip(b"\0\r\n "):
            self.reject(place, f"a run of {line.count(0)} NUL bytes and no row")
            return None
        value, refused = loaded(line, place)
        if refused is not None:
            return self._torn(line, place, refused)
        if isinstance(value, dict):
            row = converted(value)
            if row is not None or value.get("type") != "assistant":
                return row or links_of(value)
        self.reject(place, wrong(error))
        return None

    def _torn(self, line: bytes, place: Place, refused: Rejected) -> Row | None:
        start = glued(line)
        if start:
            stub = Place(place.file, place.line, place.offset, start)
            self.reject(stub, f"a row that breaks off after {start} bytes; the whole row behind it is used")
            return decode(line[start:])
        self.reject(refused.place, refused.reason, refused.pending)
        return None

    def _assistant(self, row: Row, place: Place) -> None:
        message = row.message
        if message is None or (message.id is None and message.usage is UNSET):
            self.reject(place, "malformed message: neither an id nor usage")
            return
        if message.id is None and row.uuid is None:
            self.reject(place, "no message id and no uuid: a copy of a response and no row of a session, not counted")
            return
        if _is_synthetic(row, message):
            self._synthetic(row)
            return
        link = self._parent(row)
        response = self._response_of(row, message, link, place)
        response.last = row.timestamp or response.last
        response.finished = response.finished or message.stop_reason is not None
        if message.diagnostics is not UNSET:
            response.message.diagnostics = message.diagnostics
        if isinstance(message.usage, Bill) and (
            response.bill is None or weight(message.usage) >= weight(response.bill)
        ):
            response.bill = message.usage
        self._remember(row, Link(response.chain, response.id, None))

    def _response_of(self, row: Row, message: Message, link: Link, place: Place) -> Response:
        """The response that a row belongs to, a new one where none waits under its id."""
        name = named(message.id) or named(row.requestId)
        if name is None:
            known = self.pending.get(link.response or "")
            if known is not None and link.time is None and _same_prompt(known, message):
                return known
            name = named(row.uuid) or f"{self.stem}:{place.line}"
        known = self.pending.get(name)
        if known is not None and known.request and row.requestId and known.request != row.requestId:
            name = f"{name}/{row.requestId}"  # a gateway that gives one id to several responses
            known = self.pending.get(name)
        if known is not None:
            return known
        chain = link.chain
        first = row.timestamp
        sent = link.time if link.time and first and link.time <= first else first
        made = Response(name, row.requestId, chain, row, message, place, link.response, chain.since, sent, first)
        if row.version and chain.version and row.version != chain.version:
            chain.since.append(f"{CLIENT} {chain.version} → {row.version}")
        chain.version = row.version or chain.version
        chain.since, chain.latest, chain.time = [], name, None
        self.pending[name] = made
        return made

    def _synthetic(self, row: Row) -> None:
        """A message that the client made itself: no call; it stands where a turn was broken off or resumed."""
        link = self._parent(row)
        _note(link.chain, SYNTHETIC)
        self._remember(row, Link(link.chain, link.response, None))

    def _embedded(self, row: Row, inner: Inner, place: Place) -> None:
        """A sub-agent's message inside a progress row: a row of that agent's chain."""
        agent = row.data.agentId if row.data is not None else None
        moved = Row(
            type=inner.type, sessionId=row.sessionId, agentId=agent or "progress", isSidechain=True,
            timestamp=inner.timestamp or row.timestamp, requestId=inner.requestId, version=row.version, cwd=row.cwd,
            message=inner.message,
        )  # fmt: skip
        if inner.type == "assistant":
            self._assistant(moved, place)
        else:
            self._chain(moved.agentId or "progress").time = moved.timestamp

    def _follow(self, row: Row, line: bytes) -> None:
        """A row that is no response: it carries the conversation on, and may tell why a prefix broke."""
        link = self._parent(row)
        chain = link.chain
        for word in _words(row, line, chain):
            _note(chain, word)
        chain.time = row.timestamp or chain.time
        self._remember(row, Link(chain, link.response, row.timestamp or link.time))

    def _parent(self, row: Row) -> Link:
        """The place that a row continues; where its parent is not known, the latest of its chain."""
        parent = row.parentUuid if isinstance(row.parentUuid, str) else row.logicalParentUuid
        link = self._links.get(parent) if parent else None
        if link is not None and link.chain is self._main and row.agentId is None and not row.isSidechain:
            return link
        agent = named(row.agentId)
        if agent or not row.isSidechain:
            chain = self._chain(agent or "main")
        elif link is not None:
            chain = link.chain
        elif self.stem.startswith("agent-"):
            chain = self._chain(self.stem.removeprefix("agent-"))
        else:
            chain = self._chain(f"side-{(row.uuid or '')[:8]}")
        if link is not None and link.chain is chain:
            return link
        if row.parentUuid is None and parent is None:
            return Link(chain, None, None)
        return Link(chain, chain.latest, chain.time)

    def _chain(self, name: str) -> Chain:
        chain = self._chains.get(name)
        if chain is None:
            chain = self._chains[name] = Chain(intern(name))
        return chain

    def _remember(self, row: Row, link: Link) -> None:
        own = named(row.uuid)
        if own is None:
            return
        self._links[own] = link
        if len(self._links) > LINKS:
            self._links = dict(list(self._links.items())[LINKS // 2 :])


def _words(row: Row, line: bytes, chain: Chain) -> list[str]:
    """What a row tells that may matter to the cache."""
    found = []
    if row.type == "system":
        if row.subtype == "compact_boundary":
            trigger = row.compactMetadata.trigger if row.compactMetadata is not None else None
            found.append(f"{COMPACT} {trigger or ''}".rstrip())
        elif row.subtype in _SUBTYPES:
            found.append(_SUBTYPES[row.subtype])
    elif row.type == "attachment":
        if row.attachment is not None and row.attachment.type in _ATTACHMENTS:
            found.append(f"attachment {row.attachment.type}")
    elif row.isCompactSummary:
        found.append(COMPACT)
    if row.permissionMode and row.permissionMode != chain.mode:
        if chain.mode:
            found.append(f"{PERMISSION_MODE} {chain.mode} → {row.permissionMode}")
        chain.mode = row.permissionMode
    if row.type == "user" and row.message is not None:
        found += spoken(row.message.content)
    elif row.type == "system":
        found += marked(line)
    return found


def _note(chain: Chain, word: str) -> None:
    """Add a word once; "compact" after "compact manual" is the same compaction."""
    if word not in chain.since and not (word == COMPACT and any(each.startswith(COMPACT) for each in chain.since)):
        chain.since.append(word)


def _same_prompt(response: Response, message: Message) -> bool:
    """Whether a row without a name can be one more of a response without a name: its input was billed alike."""
    bill = message.usage
    unnamed = named(response.message.id) is None and named(response.request) is None
    return (
        unnamed and response.bill is not None and isinstance(bill, Bill) and weight(bill)[0] == weight(response.bill)[0]
    )


def _is_synthetic(row: Row, message: Message) -> bool:
    """Whether the client made a message itself: it says so, or (names being redacted) nothing was asked or billed."""
    if row.requestId is not None or (message.id or "").startswith("msg_"):
        return message.model == "<synthetic>"
    bill = message.usage
    return message.model == "<synthetic>" or (isinstance(bill, Bill) and weight(bill) == (0, 0))
