"""Langfuse exports: `{trace, observations[]}`, a list of observations, or observations as JSON Lines.

Only the innermost GENERATION of each branch is a call: wrappers repeat its usage, and the same observations may stand
in the trace and beside it. Names in `usageDetails` depend on the integration, and so does whether `input` holds what
was read and written: it is decided by the total where there is one, else an input that is smaller than its own parts
leaves them out, and where neither tells, the input is unknown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from traces import rows
from traces.importers import bodies
from traces.importers.documents import shapes
from traces.importers.endpoints import provider_named
from traces.importers.fields import moment, obj, text
from traces.importers.reading import Item, calls, json_lines, json_parts
from traces.lines import OnReject
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import checked, count

NAME = "langfuse"
_LISTS = ("observations", "trace.observations", "data", "")
_WRAPPER = re.compile(r"ai\.(stream|generate)(Text|Object)")
"""Vercel's SDK nests each request ("….doStream") in a span of this name that repeats its usage."""

_READ = (
    "cache_read_input_tokens",
    "input_cached_tokens",
    "input_cache_read",
    "input_cache_read_tokens",
    "cached_tokens",
)
_WRITE = ("cache_creation_input_tokens", "input_cache_creation", "cache_write_input_tokens")
_REASONING = ("output_reasoning_tokens", "output_reasoning", "reasoning_tokens")
_SPLIT = ("cache_creation_ephemeral_5m_input_tokens", "cache_creation_ephemeral_1h_input_tokens")
_INPUT = ("input", "input_tokens", "prompt_tokens", "promptTokens")
_OUTPUT = ("output", "output_tokens", "completion_tokens", "completionTokens")


def sniff(head: bytes) -> bool:
    """A trace with observations, or observations with usage details."""
    for shape in shapes(head):
        if "trace" in shape and {"observations", "trace.projectId", "trace.observations"} & shape:
            return True
        if {"observations", "projectId"} <= shape:
            return True
        if {"type", "startTime"} <= shape and ({"usageDetails", "traceId"} & shape) and "spanId" not in shape:
            return True
    return False


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a GENERATION that wraps no other. The file is read twice: a wrapper may stand before what it wraps."""
    tree = _Tree(path.stem)
    for item in _rows(path, None):
        tree.learn(item)
    return calls(_rows(path, on_reject), partial(_call, tree, set()), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The messages of an observation as a Chat body."""
    row = rows.loads(span)
    return _request(row) if isinstance(row, dict) else None


def _rows(path: Path, on_reject: OnReject | None) -> Iterator[Item]:
    with path.open("rb") as file:
        found = shapes(file.read(2**16))
    lines = len(found) > 1 and not {"trace", "observations", "data"} & found[0]
    return json_lines(path, on_reject) if lines else json_parts(path, on_reject, *_LISTS)


@dataclass(slots=True)
class _Tree:
    """Parents of observations, which of them wrap a generation with usage, and the sessions of traces."""

    stem: str
    session: str | None = None
    parents: dict[str, str | None] = field(default_factory=dict)
    generations: list[str] = field(default_factory=list)
    wrapping: set[str] | None = None

    def learn(self, item: Item) -> None:
        """Take in one row of the first pass; rows that cannot be used are reported in the second."""
        if item.path in ("sessionId", "trace.sessionId"):
            self.session = text({"id": item.value}, "id")
        row = item.value
        name = text(row, "id") if isinstance(row, dict) else None
        if name is not None and item.path in (*_LISTS, ""):
            self.parents[name] = text(row, "parentObservationId")
            if row.get("type") == "GENERATION" and row.get("usageDetails"):
                self.generations.append(name)

    def wraps(self, name: str | None) -> bool:
        """Whether a generation with usage stands below the observation `name`."""
        if self.wrapping is None:
            self.wrapping = set()
            for leaf in self.generations:
                self.wrapping |= self._above(leaf)
        return name in self.wrapping

    def _above(self, leaf: str) -> set[str]:
        """What stands above an observation and is not known yet to wrap one; nothing where parents run in a circle."""
        found, above = set[str](), self.parents.get(leaf)
        while above is not None and above not in found and above not in (self.wrapping or ()):
            found.add(above)
            above = self.parents.get(above)
        return set() if above in found else found


def _call(tree: _Tree, seen: set[str], item: Item) -> Iterator[Call]:
    if item.path not in _LISTS or (item.path and item.index < 0) or not isinstance(item.value, dict):
        return
    row = item.row
    name = text(row, "id")
    if row.get("type") != "GENERATION" or name in seen or tree.wraps(name):
        return
    details = obj(row, "usageDetails")
    if _WRAPPER.fullmatch(text(row, "name") or "") or (not details and text(row, "model") is None):
        return
    if name is not None:
        seen.add(name)
    number = item.index + 1 if item.index >= 0 else item.place.line
    model = text(row, "model")
    started, ended = moment(row.get("startTime"), "startTime"), moment(row.get("endTime"), "endTime")
    begun = moment(row.get("completionStartTime"), "completionStartTime")
    yield Call(
        id=name or f"{tree.stem}:{number}",
        trace=text(row, "sessionId") or tree.session or text(row, "traceId") or tree.stem,
        provider=provider_named(_provider(row), model),
        started_at=started,
        seq=number,
        api="chat",
        model=model,
        first_token_at=begun if begun and started and begun >= started else None,
        ended_at=ended if ended and started and ended >= started else None,
        request=_request(row),
        usage=usage_of(details),
        place=item.place,
    )


def _provider(row: JsonObject) -> str | None:
    metadata = row.get("metadata")
    if isinstance(metadata, str):
        metadata = bodies.json_object(metadata)
    return text(metadata, "ls_provider") if isinstance(metadata, dict) else None


def usage_of(details: JsonObject) -> Usage:
    """Usage of one observation's details. Raises `MalformedRow` for counts that are none."""
    read, output, rest = _one(details, _READ), _one(details, _OUTPUT), _one(details, _INPUT)
    split = [count(details.get(name), f"usageDetails.{name}") for name in _SPLIT]
    write = _one(details, _WRITE)
    if write is None and any(part is not None for part in split):
        write = sum(part or 0 for part in split)
    reasoning = _one(details, _REASONING) or 0
    total = count(details.get("total"), "usageDetails.total")
    # Reasoning is a part of the output, unless the total shows that it stands beside it.
    whole = _by_total(rest, read, write, output or 0, total)
    if whole is None and reasoning:
        whole = _by_total(rest, read, write, (output or 0) + reasoning, total)
        output = output if whole is None else (output or 0) + reasoning
    whole = _by_parts(rest, read, write) if whole is None else whole
    short, long = split if None not in split and sum(part or 0 for part in split) == write else (None, None)
    return checked(Usage(whole, read, write, short, long, output))


def _by_total(rest: int | None, read: int | None, write: int | None, output: int, total: int | None) -> int | None:
    """The whole input that adds up to the total with the output, `None` where none does."""
    if rest is None or total is None:
        return None
    parts = (read or 0) + (write or 0)
    candidates = (rest, rest + parts, rest + (read or 0))  # the last: LiteLLM's callback
    return next((whole for whole in candidates if whole >= parts and whole + output == total), None)


def _by_parts(rest: int | None, read: int | None, write: int | None) -> int | None:
    """An input that is smaller than its parts leaves them out; where they would fit into it, nothing tells."""
    parts = (read or 0) + (write or 0)
    return rest if rest is None or not parts else rest + parts if parts > rest else None


def _one(details: JsonObject, names: tuple[str, ...]) -> int | None:
    found = ((name, details[name]) for name in names if details.get(name) is not None)
    return next((count(value, f"usageDetails.{name}") for name, value in found), None)


def _request(row: JsonObject) -> JsonObject | None:
    sent: Any = row.get("input")
    if isinstance(sent, str):
        sent = (bodies.json_object(f'{{"input":{sent}}}') or {}).get("input") if sent[:1] in "[{" else None
    body = sent if isinstance(sent, dict) else {"messages": sent}
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    return {"model": row.get("model")} | body if all(isinstance(each, dict) for each in messages) else None
