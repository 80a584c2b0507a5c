"""How calls belong together: retries, fallbacks, and conversations by their longest common prefix.

Clients do not say that they retry (their retry counters mostly stay 0), and titles, sub-agents and compactions
interleave under one session id. So both are told from the bodies: a retry sends the same bytes again after an attempt
that did not succeed; a fallback sends the same messages with something stripped; a conversation goes on from the
longest run of messages that was sent before in its run.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_128_digest

from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import JsonObject

KEPT = 100_000
"""Prefixes remembered, about 20 MB; the least recently used are forgotten."""

ATTEMPTS = 1_000
"""Attempts among which a retry's first one is looked for."""

_MESSAGES = ("messages", "input", "contents")
# What a client may strip or change in sending the same conversation once more.
_NOT_CONTENT = frozenset(("metadata", "client_metadata", "safeguards", "diagnostics", "cache_control"))


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is remembered of an attempt: its id and number, and what it was like."""

    id: str
    number: int
    ok: bool
    digest: str
    shape: dict[str, bytes]


@dataclass(slots=True)
class Linked:
    """How a call is linked: its conversation, which attempt it is, and why (for `facts.links`)."""

    conversation: str | None = None
    attempt: int = 1
    links: JsonObject = field(default_factory=dict)


class Links:
    """The calls so far, by run. Used by the recorder's thread only."""

    def __init__(self) -> None:
        self._prefixes: OrderedDict[bytes, str] = OrderedDict()
        self._attempts: OrderedDict[bytes, Attempt] = OrderedDict()

    def add(self, run: str, id: str, body: JsonObject | None, digest: str, ok: bool) -> Linked:
        """Link a call with those that were added before it. `digest` identifies the exact body."""
        if body is None:
            return Linked()
        chain = list(_chain(run, body))
        tip = chain[-1] if chain else b""
        found = Linked(self._conversation(chain, id))
        earlier, shape = self._attempts.get(tip) if chain else None, _shape(body)
        if earlier is not None:
            _attempt(found, earlier, digest, shape)
        if chain:
            self._attempts[tip] = Attempt(id, found.attempt, ok, digest, shape)
            self._attempts.move_to_end(tip)
            if len(self._attempts) > ATTEMPTS:
                self._attempts.popitem(last=False)
        return found

    def _conversation(self, chain: list[bytes], id: str) -> str:
        name = id
        for link in reversed(chain):
            known = self._prefixes.get(link)
            if known is not None:
                name = known
                break
        for link in chain:
            self._prefixes[link] = name
            self._prefixes.move_to_end(link)
        while len(self._prefixes) > KEPT:
            self._prefixes.popitem(last=False)
        return name


def _attempt(found: Linked, earlier: Attempt, digest: str, shape: dict[str, bytes]) -> None:
    """The same messages came before: as a retry, as a fallback, or simply again."""
    same = digest == earlier.digest
    if earlier.ok:
        if same:
            found.links["repeats"] = earlier.id
        return
    found.attempt = earlier.number + 1
    if same:
        found.links["retry_of"] = earlier.id
        return
    changed = sorted(key for key in earlier.shape.keys() | shape.keys() if earlier.shape.get(key) != shape.get(key))
    found.links |= {"fallback_of": earlier.id, "changed": changed}


def _chain(run: str, body: JsonObject) -> Iterator[bytes]:
    """Running digests of the messages without system text and markers, whatever form their content has."""
    link = run.encode(errors="replace")
    for key in _MESSAGES:
        items = body.get(key)
        for item in [items] if isinstance(items, str) else items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("role") in ("system", "developer"):
                continue
            try:
                link = xxh3_128_digest(link + dump(_bare(item)))
            except MalformedRow:
                return
            yield link


def _bare(value: Any) -> Any:
    """A message without markers and ids of items; a text and its one-block list are one form."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if key != "cache_control"}
    if "role" in kept and "id" in kept:
        del kept["id"]
    content = kept.get("content")
    if isinstance(content, str):
        kept["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        kept["content"] = [_bare(one) for one in content]
    return kept


def _shape(body: JsonObject) -> dict[str, bytes]:
    """Digests of what stands beside the messages."""
    shape = {}
    for key, value in body.items():
        if key not in _MESSAGES and key not in _NOT_CONTENT:
            try:
                shape[key] = xxh3_128_digest(dump(value))
            except MalformedRow:
                shape[key] = b""
    return shape
