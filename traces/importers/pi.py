"""Pi sessions: `~/.pi/agent/sessions/*/*.jsonl`, a tree of entries (version 1: a plain list without ids).

A message's own `timestamp` is when its request was sent, the entry's when it was written, which is the end. Input
leaves out what was read and written. Aborted replies have all-zero usage: unknown. `usage` entries are billed requests
that are no messages, as cache warming, which keeps entries alive.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from traces.facts import COMPACT, EFFORT
from traces.importers.endpoints import counts_writes, provider_named
from traces.importers.fields import MILLISECONDS, exclusive, moment, obj, text
from traces.importers.reading import Item, calls, json_lines
from traces.lines import OnReject, objects
from traces.schema import Call, JsonObject, Kind, Usage
from traces.wire.usage import count

NAME = "pi"
_APIS = {
    "anthropic-messages": "messages",
    "bedrock-converse-stream": "converse",
    "google-generative-ai": "generate_content",
    "openai-completions": "chat",
    "openai-responses": "responses",
    "openai-codex-responses": "responses",
}
_TYPES = ("session", "message", "model_change", "thinking_level_change")
_KINDS: dict[str, Kind] = {"cache_warm": "keepalive", "compaction": "summary", "branch_summary": "summary"}


def sniff(head: bytes) -> bool:
    """A session header with a folder, or entries whose messages count `cacheRead`."""
    return any(_is_ours(row) for row in objects(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call an assistant message and billed extra. `agent` is the branch of the tree that a call continues."""
    return calls(json_lines(path, on_reject), partial(_calls, _Session(path.stem)), on_reject)


@dataclass(slots=True)
class _Session:
    """What the entries so far tell: the tree as branch names, the model in use, the call that each entry follows."""

    stem: str
    trace: str = ""
    project: str | None = None
    effort: str | None = None
    provider: str | None = None
    model: str | None = None
    branch: dict[str, str] = field(default_factory=dict)
    follows: dict[str, str] = field(default_factory=dict)
    tips: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str | None] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def place(self, entry: JsonObject) -> tuple[str, str | None]:
        """The branch of an entry, and the call that the branch starts from."""
        name, parent = text(entry, "id"), text(entry, "parentId")
        if name is None or entry.get("type") == "session":  # in version 1 each entry follows the one before
            return "main", None
        branch = self.branch.get(parent or "", "main")
        if self.tips.get(branch, parent) != parent:
            branch = f"branch {name}"
            self.origins[branch] = self.follows.get(parent or "")
        self.branch[name], self.tips[branch] = branch, name
        if parent in self.follows:
            self.follows[name] = self.follows[parent]
        if parent in self.words:
            self.words[name] = self.words[parent]
        return branch, self.origins.get(branch)

    def happened(self, entry: JsonObject, word: str) -> None:
        """Remember what lies between the latest call of this path and the next one."""
        name = text(entry, "id") or ""
        self.words[name] = (*self.words.get(name, ()), word)


def _is_ours(row: JsonObject) -> bool:
    if row.get("type") == "session":
        return "cwd" in row and "id" in row
    message = row.get("message")
    usage = message.get("usage") if isinstance(message, dict) and row.get("type") == "message" else None
    return isinstance(usage, dict) and "cacheRead" in usage and "sessionId" not in row


def _calls(session: _Session, item: Item) -> Iterator[Call]:
    entry = item.row
    kind = entry.get("type")
    branch, origin = session.place(entry)
    if kind == "session":
        session.trace = text(entry, "id") or session.stem
        session.project, session.effort = text(entry, "cwd"), text(entry, "thinkingLevel")
        session.provider, session.model = text(entry, "provider"), text(entry, "modelId")
    elif kind == "model_change":
        _change_model(session, entry)
    elif kind == "message" and obj(entry, "message").get("role") == "assistant":
        yield _call(session, item, obj(entry, "message"), branch, origin, "main")
    elif kind in ("usage", "compaction", "branch_summary") and entry.get("usage") is not None:
        extra = text(entry, "kind") if kind == "usage" else f"{kind}"
        yield _call(session, item, entry, branch, origin, _KINDS.get(extra or "", "side"))
    if kind == "compaction":
        session.happened(entry, COMPACT)
    elif kind == "thinking_level_change":
        level = text(entry, "thinkingLevel")
        session.happened(entry, f"{EFFORT} {session.effort or 'unknown'} → {level or 'unknown'}")
        session.effort = level


def _change_model(session: _Session, entry: JsonObject) -> None:
    """Forks of Pi write `model: "provider/id"` in the place of two fields."""
    provider, _, model = (text(entry, "model") or "").partition("/")
    session.provider = text(entry, "provider") or provider or session.provider
    session.model = text(entry, "modelId") or model or session.model


def _call(session: _Session, item: Item, message: JsonObject, branch: str, origin: str | None, kind: Kind) -> Call:
    entry, api = item.row, text(message, "api")
    model = text(message, "model") or session.model
    provider = provider_named(text(message, "provider") or session.provider, model)
    written = moment(entry.get("timestamp"), "timestamp", MILLISECONDS)
    sent = moment(message.get("timestamp"), "message.timestamp", MILLISECONDS)
    name = text(message, "responseId") or f"{session.stem}:{item.place.line}"
    usage = _usage(obj(message, "usage"), counts_writes(provider, model, api), message.get("stopReason"))
    facts = _facts(session, text(entry, "id") or "", name, goes_on=kind == "main" and usage.input_tokens is not None)
    known = sent is not None and (written is None or sent <= written)
    return Call(
        id=name,
        trace=session.trace or session.stem,
        provider=provider,
        started_at=sent if known else written,
        seq=item.place.line,
        agent=branch,
        parent=origin,
        kind=kind,
        api=_APIS.get(api or "", api),
        model=model,
        ended_at=written if known else None,
        usage=usage,
        facts=facts,
        place=item.place,
    )


def _facts(session: _Session, entry: str, name: str, *, goes_on: bool) -> JsonObject:
    """What the session tells beside the usage. Only an answered message is what the next one `goes_on` from: of an
    aborted one it is not known whether it reached the cache, and warming adds nothing to the conversation."""
    facts: JsonObject = {"client": NAME, "project": session.project, "previous": session.follows.get(entry)}
    if session.words.get(entry):
        facts["since"] = list(session.words[entry])
    if goes_on:
        session.follows[entry] = name
        session.words.pop(entry, None)
    return {key: value for key, value in facts.items() if value is not None or key == "previous"}


def _usage(raw: JsonObject, written: bool, stop: Any) -> Usage:
    """Usage, unknown where a request was aborted or failed before any was reported (all counts 0)."""
    usage = exclusive(raw, rest="input", read="cacheRead", write="cacheWrite", output="output", written=written)
    if not usage.input_tokens and not usage.output_tokens and stop in ("aborted", "error", None):
        return Usage()
    long = count(raw.get("cacheWrite1h"), "usage.cacheWrite1h")
    total = usage.write_tokens
    if long is None or total is None or long > total:
        return usage
    return Usage(usage.input_tokens, usage.read_tokens, total, total - long, long, usage.output_tokens)
