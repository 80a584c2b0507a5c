"""OpenCode sessions as `opencode export` writes them, and its single message files (up to 1.1).

One assistant message can be several requests: each `step-finish` part is one, with tokens of its own; the message's
own figures are those of the last one (or of all), so they count only where there is no such part. Ids may all be the
word REDACTED (files that went through Entire) and are then not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path

from traces.facts import COMPACT
from traces.importers.documents import shapes
from traces.importers.endpoints import counts_writes, provider_named
from traces.importers.fields import MILLISECONDS, exclusive, items, moment, obj, text
from traces.importers.reading import Item, calls, json_document, json_parts
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Kind, Place, Usage

NAME = "opencode"
_MESSAGES = "messages"
_MESSAGE = frozenset(("sessionID", "role", "tokens", "modelID"))


def sniff(head: bytes) -> bool:
    """A document of a session's info and messages, or one assistant message."""
    return any(shape >= _MESSAGE or {"info.slug", "info.projectID"} <= shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a step of each assistant message."""
    session = Session(path.stem)
    with path.open("rb") as file:
        single = "info" not in shapes(file.read(2**16))[0]
    if single:
        return calls(json_document(path, on_reject), partial(_of_message_file, session), on_reject)
    return calls(json_parts(path, on_reject, _MESSAGES), partial(_of_export, session), on_reject)


@dataclass(slots=True)
class Session:
    """What a session's info tells about its calls."""

    stem: str
    trace: str = ""
    agent: str = "main"
    facts: JsonObject = field(default_factory=lambda: {"client": NAME})
    previous: str | None = None
    mode: str | None = None
    words: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def learn(self, info: JsonObject, parent: str = "parentID") -> None:
        """Take in a session's info. A session with a parent is a sub-agent of the parent's trace; where the parent's
        name is redacted, it is at least a sub-agent."""
        own = text(info, "id") or self.stem
        child = info.get(parent) is not None
        self.trace = (text(info, parent) if child else None) or own
        self.agent = own if child else "main"
        version = text(info, "version")
        self.facts = {"client": f"{NAME} {version}" if version else NAME}
        if text(info, "directory"):
            self.facts["project"] = text(info, "directory")

    def take(self, name: str, info: JsonObject, usage: Usage) -> JsonObject:
        """The facts of the next call, which then is what later ones go on from."""
        mode = text(info, "agent") or text(info, "mode")
        if self.mode is not None and mode is not None and mode != self.mode:
            self.words.append(f"agent {self.mode} → {mode}")
        self.mode = mode or self.mode
        facts = self.facts | {"previous": self.previous}
        if self.words:
            facts["since"] = list(self.words)
        if usage.input_tokens is not None:
            self.previous, self.words = name, [COMPACT] if info.get("summary") is True else []
        return facts


def _of_export(session: Session, item: Item) -> Iterator[Call]:
    if item.path == "info":
        session.learn(item.row)
    elif item.path == _MESSAGES:
        parts = [part for part in items(item.row, "parts") if isinstance(part, dict)]
        name = f"{session.stem}:{item.index + 1}"
        yield from calls_of_message(session, item.place, obj(item.row, "info"), parts, name)


def _of_message_file(session: Session, item: Item) -> Iterator[Call]:
    session.trace = text(item.row, "sessionID") or session.stem
    yield from calls_of_message(session, item.place, item.row, None, session.stem)


def calls_of_message(
    session: Session, place: Place, info: JsonObject, parts: list[JsonObject] | None, name: str
) -> Iterator[Call]:
    """The calls of one assistant message; `parts` are `None` where they lie in other files.

    Steps tell no times of their own: all of a message have its start, and the last its end.

    Raises `MalformedRow`.
    """
    if info.get("role") != "assistant":
        return
    steps = [part for part in parts or () if part.get("type") == "step-finish"]
    figures = [_flat(obj(step, "tokens")) for step in steps] or [_flat(obj(info, "tokens"))]
    begun = parts is None or any(part.get("type") == "step-start" for part in parts) or info.get("error") is not None
    if not steps and not begun and not any(figures[0].values()):
        return  # a message that only carries the result of a sub-agent: no request was made for it
    started = moment(obj(info, "time").get("created"), "time.created", MILLISECONDS)
    ended = moment(obj(info, "time").get("completed"), "time.completed", MILLISECONDS)
    model, provider = text(info, "modelID"), text(info, "providerID")
    ours = _provider(provider, model)
    for number, tokens in enumerate(figures):
        own = f"{text(info, 'id') or name}{f'#{number}' if number else ''}"
        usage = _usage(tokens, counts_writes(ours, model), bool(steps))
        yield Call(
            id=own,
            trace=session.trace or session.stem,
            provider=ours,
            started_at=started,
            seq=next(session.numbers),
            agent=session.agent,
            kind=_kind(session, info),
            model=model,
            ended_at=_end(started, ended) if number == len(figures) - 1 else None,
            usage=usage,
            facts=session.facts if parts is None else session.take(own, info, usage),
            place=place,
        )


def _flat(tokens: JsonObject) -> JsonObject:
    """Reasoning is a part of the output, unless the total shows that it stands beside it."""
    cache = obj(tokens, "cache")
    found = {"input": tokens.get("input"), "output": tokens.get("output")}
    found |= {"cache.read": cache.get("read"), "cache.write": cache.get("write")}
    reasoning, output = tokens.get("reasoning"), found["output"]
    sizes = [part for part in (*found.values(), reasoning) if type(part) is int]
    if type(reasoning) is int and type(output) is int and sum(sizes) == tokens.get("total"):
        found["output"] = output + reasoning
    return found


def _usage(raw: JsonObject, written: bool, finished: bool) -> Usage:
    """All counts 0 without a finished step: the request failed or was broken off before any usage came."""
    if not finished and not any(raw.values()):
        return Usage()
    return exclusive(raw, rest="input", read="cache.read", write="cache.write", output="output", written=written)


def _provider(provider: str | None, model: str | None) -> str:
    """OpenCode's own gateway ("opencode") passes requests on to the model's maker."""
    return provider_named(None if provider in (None, "opencode", "opencode-go") else provider, model)


def _kind(session: Session, info: JsonObject) -> Kind:
    if info.get("summary") is True or info.get("mode") == "compaction" or info.get("agent") == "compaction":
        return "summary"
    return "main" if session.agent == "main" else "subagent"


def _end(started: datetime | None, ended: datetime | None) -> datetime | None:
    return None if started is None or ended is None or ended < started else ended
