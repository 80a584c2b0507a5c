"""Invalidation row by row: which levels of the cache survive a change of one thing in the request.

One request marks the ends of tools, system and a message. Then each row sends the same request with one change, and
what it reads tells how far the entries survived. The three levels are made 1 : 2 : 4 in size, so that the share that is
read tells the level without a count for each. Before and after each row the unchanged request must read everything, and
the row must come in time: an entry that died on its way would look like one that was invalidated. What the rules do not
predict is asked twice.
"""

import base64
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from probes.api import bodies, filler
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.lab import Lab, Plan
from probes.api.settled import settled
from traces.schema import JsonObject

NAME = "invalidation"
LEVELS = ("tools", "system", "messages")
CLAIM = "A change of {row} spares {spared}."
CANNOT = (
    "One value of the parameter was tried, against its absence.",
    "One request a row: a miss for another reason (routing, eviction) looks like invalidation.",
    "Which levels survive may depend on the model.",
)
NONE = "nothing"
"""The level that a change invalidates where it invalidates none."""

Change = Callable[[JsonObject], JsonObject]


class Row(NamedTuple):
    """One change: its name, the rule id that says what it invalidates (`None`: the prefix itself), how to make it."""

    name: str
    rule: str | None
    change: Change


def _tool(body: JsonObject) -> JsonObject:
    first, *rest = body["tools"]
    return {**body, "tools": [{**first, "description": "Changed. " + first["description"]}, *rest]}


def _system(body: JsonObject) -> JsonObject:
    block = body["system"][0]
    return {**body, "system": [{**block, "text": "Changed. " + block["text"]}]}


def _content(body: JsonObject, *blocks: JsonObject, first: JsonObject | None = None) -> JsonObject:
    content = body["messages"][0]["content"]
    start = [content[0] if first is None else first]
    return {**body, "messages": [{"role": "user", "content": [*start, *blocks, *content[1:]]}]}


def _message(body: JsonObject) -> JsonObject:
    block = body["messages"][0]["content"][0]
    return _content(body, first={**block, "text": "Changed. " + block["text"]})


def _png() -> str:
    """A small white picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff" * 32) * 32)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def _image(body: JsonObject) -> JsonObject:
    source = {"type": "base64", "media_type": "image/png", "data": _png()}
    return _content(body, {"type": "image", "source": source})


def _citations(body: JsonObject) -> JsonObject:
    source = {"type": "text", "media_type": "text/plain", "data": "The lake is cold."}
    return _content(body, {"type": "document", "source": source, "citations": {"enabled": True}})


def _with(**members: object) -> Change:
    return lambda body: {**body, **members}


def _web_search(body: JsonObject) -> JsonObject:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    # A search would cost more than any budget foresees. That no tool may be used spares tools and system by rule.
    return {**body, "tools": [*body["tools"], search], "tool_choice": {"type": "none"}}


_SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
           "additionalProperties": False}  # fmt: skip
_FORMAT = {"format": {"type": "json_schema", "schema": _SCHEMA}}

ROWS = (
    Row("tools", None, _tool),
    Row("system", None, _system),
    Row("messages", None, _message),
    Row("tool_choice", "invalidates_tool_choice", _with(tool_choice={"type": "none"})),
    Row("disable_parallel_tool_use", "invalidates_disable_parallel_tool_use",
        _with(tool_choice={"type": "auto", "disable_parallel_tool_use": True})),
    Row("images", "invalidates_images", _image),
    Row("citations", "invalidates_citations", _citations),
    Row("thinking", "invalidates_thinking", _with(thinking={"type": "adaptive"})),
    Row("effort", "invalidates_effort", _with(output_config={"effort": "low"})),
    Row("output_format", "invalidates_output_format", _with(output_config=_FORMAT)),
    Row("web_search", "invalidates_web_search", _web_search),
)  # fmt: skip


def plan(lab: Lab) -> Plan:
    """The unchanged request twice, then each row and the unchanged request again, seven documents in each."""
    count = 2 * len(ROWS) + 2
    return Plan(count, count * lab.words * 7 * 2, count * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Send the unchanged request twice, then each row, the unchanged one behind each."""
    lab.engage()
    body = _body(lab)
    first = lab.send("invalidation_write", body)
    base = lab.send("invalidation_base", body)
    if not base.hit:
        why = "the unchanged request was not read from the cache, so no change can be blamed"
        return [open_claim(NAME, None, "Invalidation.", why, (first.seq, base.seq))]
    return [claim for row in ROWS for claim in settled(partial(_row, row=row))(lab)]


def _row(lab: Lab, row: Row) -> list[Claim]:
    """One row's claim. What was sent last is the unchanged request; it is sent again behind the row."""
    before, name = lab.exchanges[-1], f"{NAME}_{row.name}"
    changed = row.change(before.body)
    if any(one.body == changed for one in lab.exchanges):
        # Sent once more it would read what its first sending left behind.
        before = lab.send(f"{NAME}_base", _body(lab))
        changed = row.change(before.body)
    one = lab.send(name, changed, may_fail=True)
    after = lab.send(f"{NAME}_base", before.body)
    requests, whole = (before.seq, one.seq, after.seq), before.covered
    told = lab.foretell().get(one.seq)
    claim = CLAIM.format(row=row.name, spared="?" if told is None else told.level or "no level")
    if not one.complete or one.read is None:
        why = f"the request was refused: {one.error}" if not one.complete else "the usage does not say what was read"
        return [open_claim(name, row.rule, claim, why, requests)]
    if after.read != whole or not lab.in_time(before, one):
        why = "the entries did not last as long as it took to ask, so no change can be blamed"
        return [open_claim(name, row.rule, claim, why, requests, again=True)]
    level = survived(one.read, whole)
    value, expected = broken_by(level), None if told is None else broken_by(told.level)
    behind = "" if value == NONE else " and what is behind"
    return [
        Claim(
            name, row.rule, claim, requests,
            prediction={"survives_to": None if told is None else told.level},
            observation={"survives_to": level, "read_tokens": one.read, "whole_tokens": whole},
            finding=finding_of(None if expected is None else value == expected),
            value=value,
            expected=expected,
            why=f"{one.read} of {whole} tokens were read: it invalidates {value}{behind}",
            cannot=CANNOT,
        )
    ]  # fmt: skip


def _body(lab: Lab) -> JsonObject:
    """Tools, system and message of 1, 2 and 4 documents, each marked at its end."""
    words = lab.words
    tool = {
        "name": "note",
        "description": filler.text(words),
        "input_schema": {"type": "object", "properties": {}},
        "cache_control": {"type": "ephemeral"},
    }
    document = bodies.text(filler.text(4 * words), mark=True)
    return bodies.messages(
        lab.model,
        tools=[tool],
        system=[bodies.text(filler.text(2 * words), mark=True)],
        content=[document, bodies.text(bodies.QUESTION)],
    )


def survived(read: int, whole: int) -> str:
    """The last level that was read, by its share of the whole: 1/7 tools, 3/7 system, 1 messages; "" none."""
    share = read / whole
    if share < 0.05:
        return ""
    return "tools" if share < 0.29 else "system" if share < 0.72 else "messages"


def broken_by(level: str) -> str:
    """The first level that a change invalidates where everything up to `level` survived it."""
    place = LEVELS.index(level) + 1 if level else 0
    return LEVELS[place] if place < len(LEVELS) else NONE
