"""The 14-row trace to be sent for real: the same blocks and gaps, tokens and time divided, and its verdicts."""

import copy
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serving

from localmodel.rules.load import load
from localmodel.rules.step import step
from localmodel.rules.types import CacheState
from traces.canonical import Interner, canonical
from traces.io import read
from traces.wire import anthropic

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "traces/recorded/fourteen"
MINIMUM, TTL_S = 1024, 300
Json = dict[str, Any]
Count = Callable[[anthropic.Part], int]
HIT = ("hit", "hit")
VERDICTS = [
    ("cold_write", "cold_write"), HIT, HIT, HIT, ("miss", "tools_changed"), HIT, ("miss", "ttl_expired"), HIT,
    ("partial_miss", "parameter_changed"), ("partial_miss", "parameter_changed"),
    ("partial_miss", "beyond_lookback"), HIT, ("partial_miss", "not_yet_readable"),
    ("partial_miss", "not_yet_readable"),
]  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How many times fewer tokens, how many times faster, and the lifetime of entries in seconds."""

    tokens: int
    speed: int
    ttl_s: int

    @property
    def rules(self) -> str:
        """A rule file. On the trace's day, unlike since September 2026, each tool result was a position."""
        return f"""
schema = 1
inherits = "anthropic"
[sources]
test = "this test"
[[ttl_seconds_5m]]
value = {self.ttl_s}
status = "assumed"
checked = 2026-11-29
source = "test"
[[min_tokens]]
value = {MINIMUM // self.tokens}
status = "assumed"
checked = 2026-11-29
source = "test"
models = ["claude-sonnet-4-5"]
[[lookback_collapse]]
value = []
status = "assumed"
checked = 2026-11-29
source = "test"
platforms = ["claude_api"]
since = 2026-09-01
"""


def recorded() -> list[Json]:
    return [json.loads(line) for line in (FOLDER / "calls.jsonl").read_text().splitlines()]


def expected(scale: Scale) -> list[tuple[int, ...]]:
    """(total, write, read) of each row, by its table; exact where all its counts divide."""
    rows = (FOLDER / "usage.csv").read_text().splitlines()[1:]
    return [tuple(int(number) // scale.tokens for number in row.split(",")[3:]) for row in rows]


def padded(row: Json, scale: Scale, count: Count) -> Json:
    """The row's request, its blocks filled up to their share of the recorded tokens; `count` counts those of a block.

    A block that is longer than its share stays as it is.
    """
    body: Json = copy.deepcopy(row["request"])
    for part in list(anthropic.parts(body)):
        wanted = row["tokens"][part.path] // scale.tokens
        fill(part.value, " a" * max(0, wanted - count(part)))
    for part in anthropic.parts(body):
        assert count(part) >= row["tokens"][part.path] // scale.tokens
    return body


def fill(block: Json, words: str) -> None:
    if "input_schema" in block:
        block["description"] += words
    elif block["type"] == "tool_use":
        block["input"]["arg"] += words
    elif block["type"] == "tool_result":
        block["content"][0]["text"] += words
    else:
        block["text"] += words


def seconds(row: Json) -> int:
    minutes, rest = row["started_at"][14:19].split(":")
    return int(minutes) * 60 + int(rest)


def send_all(client: serving.Client, rows: list[Json], scale: Scale, count: Count) -> list[serving.Reply]:
    """Send the rows at their gaps; the last three together. Gaps count from the actual start of the row before."""
    replies, before, started = [], seconds(rows[0]), time.monotonic()
    for row in rows[:11]:
        sent = padded(row, scale, count)
        time.sleep(max(0.0, started + (seconds(row) - before) / scale.speed - time.monotonic()))
        before, started = seconds(row), time.monotonic()
        replies.append(client.post("/v1/messages?beta=true", sent))
    time.sleep(0.1)
    together: list[serving.Reply] = []
    threads = [
        threading.Thread(target=lambda body: together.append(client.post("/v1/messages", body)), args=[body])
        for body in [padded(row, scale, count) for row in rows[11:]]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*replies, *together]


def tail_text(rows: list[Json]) -> None:
    """What the last three rows have in common and no other has, for the script to answer late."""
    for row in rows[11:]:
        row["request"]["messages"][-1]["content"][-1]["text"] = f"Block tail {row['seq']}."


def predicted(record: Path, rules: Path) -> dict[str, tuple[int, int]]:
    """(read, write) of each recorded call by `step` folded over the record."""
    found: dict[str, tuple[int, int]] = {}
    state, ruleset, interner = CacheState(), load(str(rules)), Interner(lambda raw: 0)
    calls = sorted(read(record), key=lambda call: str(call.started_at))
    for call in calls:
        prompt = canonical(call, interner)
        assert prompt is not None and prompt.ends and call.started_at is not None
        state, outcome = step(state, prompt, ruleset, at=call.started_at, first_token_at=call.first_token_at)
        found[call.id] = outcome.read_tokens, outcome.write_tokens
    return found


def checked(replies: list[serving.Reply], client: serving.Client, record: Path, rules: Path) -> list[Json]:
    """Usage, books, headers and a replay of the record agree, and every row has its verdict. The calls in order."""
    assert [reply.status for reply in replies] == [200] * 14, [reply.raw[:300] for reply in replies]
    usage = {reply.json["id"]: reply.json["usage"] for reply in replies}
    figures = {
        name: (one["cache_read_input_tokens"], one["cache_creation_input_tokens"]) for name, one in usage.items()
    }
    assert figures == predicted(record, rules)
    calls = client.calls()
    assert {call["id"]: (call["read_tokens"], call["write_tokens"]) for call in calls} == figures
    assert all(call["reused_tokens"] == call["read_tokens"] for call in calls)
    assert [(call["verdict"], call["cause"]) for call in calls] == VERDICTS
    for reply in replies:
        call = next(call for call in calls if call["id"] == reply.json["id"])
        for name in ("verdict", "cause", "read", "write"):
            key = f"{name}_tokens" if name in ("read", "write") else name
            assert reply.headers[f"x-cachewright-{name}"] == str(call[key])
    return calls
