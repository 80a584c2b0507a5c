"""Real files of other tools: each is known by exactly one format, gives no reject, and its totals are those of a naive
count that reads the file without any of our code."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from traces import io
from traces.importers.registry import importers
from traces.lines import Rejected
from traces.schema import Call, JsonObject

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "traces" / "recorded"


class Totals(NamedTuple):
    """Calls, those of unknown usage, and sums of tokens over the others."""

    calls: int
    unknown: int
    input: int
    read: int
    write: int
    output: int


def find(name: str, shared: Path | None = None) -> Path:
    """A recorded file of the checkout, else of the folder beside it."""
    inside = RECORDED / "other_tools" / Path(name).name
    if inside.is_file():
        return inside
    path = ROOT.parent / "shared" / "traces" / name
    if not path.is_file():
        pytest.skip(f"shared/traces/{name} is not beside the checkout")
    return path


def totals(calls: list[Call]) -> Totals:
    known = [call.usage for call in calls if call.usage.input_tokens is not None]
    return Totals(
        len(calls),
        len(calls) - len(known),
        sum(usage.input_tokens or 0 for usage in known),
        sum(usage.read_tokens or 0 for usage in known),
        sum(usage.write_tokens or 0 for usage in known),
        sum(call.usage.output_tokens or 0 for call in calls),
    )


def add(rows: list[tuple[int, int, int, int]], unknown: int = 0) -> Totals:
    fresh, read, write, output = (sum(row[i] for row in rows) for i in range(4))
    return Totals(len(rows) + unknown, unknown, fresh + read + write, read, write, output)


def lines(path: Path) -> Iterator[JsonObject]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def naive_pi(path: Path) -> Totals:
    rows = []
    for row in lines(path):
        if row["type"] == "message" and row["message"]["role"] == "assistant":
            u = row["message"]["usage"]
            rows.append((u["input"], u["cacheRead"], u["cacheWrite"], u["output"]))
    return add([row for row in rows if any(row)], sum(not any(row) for row in rows))


def naive_opencode(path: Path) -> Totals:
    rows = []
    for message in json.loads(path.read_text())["messages"]:
        for part in message["parts"]:
            if part["type"] == "step-finish":
                t = part["tokens"]
                rows.append((t["input"], t["cache"]["read"], t["cache"]["write"], t["output"]))
    return add(rows)


def naive_gemini(path: Path) -> Totals:
    rows = []
    for message in json.loads(path.read_text())["messages"]:
        if message["type"] == "gemini":
            t = message["tokens"]
            assert t["total"] == t["input"] + t["output"] + t["thoughts"]
            rows.append((t["input"] - t["cached"], t["cached"], 0, t["output"] + t["thoughts"]))
    return add(rows)


def naive_copilot(path: Path) -> Totals:
    output = [row["data"]["outputTokens"] for row in lines(path) if row["type"] == "assistant.message"]
    return Totals(len(output), len(output), 0, 0, 0, sum(output))


def naive_mini(path: Path) -> Totals:
    document = json.loads(path.read_text())
    rows = []
    for message in document["messages"]:
        if "extra" in message:
            u = message["extra"]["response"]["usage"]
            cached = u["prompt_tokens_details"]["cached_tokens"]
            rows.append((u["prompt_tokens"] - cached, cached, 0, u["completion_tokens"]))
    assert len(rows) == document["info"]["model_stats"]["api_calls"]
    return add(rows)


def naive_langfuse(path: Path) -> Totals:
    rows = {}
    for observation in json.loads(path.read_text())["observations"]:
        if observation["usageDetails"]:
            u = observation["usageDetails"]
            rows[observation["id"]] = (u["input"], 0, 0, u["output"])
    return add(list(rows.values()))


def naive_tap(path: Path) -> Totals:
    rows = []
    for row in lines(path):
        for event in row["response"]["ws_events"]:
            if event["type"] == "response.completed":
                u = event["response"]["usage"]
                rows.append((u["input_tokens"], 0, 0, u["output_tokens"]))
    return add(rows)


def naive_requests(path: Path) -> Totals:
    asked = [row for row in lines(path) if row["method"] == "POST"]
    return Totals(len(asked), len(asked), 0, 0, 0, 0)


FILES: dict[str, tuple[str, Callable[[Path], Totals]]] = {
    "pi/pi-mono-large-session.jsonl": ("pi", naive_pi),
    "opencode/oc-nb-10-25miss.json": ("opencode", naive_opencode),
    "opencode/oc-nb-93-redacted-id.json": ("opencode", naive_opencode),
    "gemini_cli/gm-79-session.json": ("gemini_cli", naive_gemini),
    "copilot/cp-av-d8-events.jsonl": ("copilot", naive_copilot),
    "mini_swe_agent/msa-pytest-dev__pytest-6197.traj.json": ("mini_swe_agent", naive_mini),
    "langfuse/langfuse-1.json": ("langfuse", naive_langfuse),
    "raw_http/claude-tap-openai-responses.jsonl": ("claude_tap", naive_tap),
    "raw_http/claude-tap-codex-ws.jsonl": ("claude_tap", naive_tap),
    **{
        f"clients/{name}.jsonl": ("request_log", naive_requests)
        for name in ("codex", "llm", "mini-swe-agent", "pi-anthropic", "pi-resp", "sdk-anthropic", "sdk-openai")
    },
}


@pytest.mark.parametrize("name", FILES)
def test_totals_equal_a_naive_count_and_nothing_is_rejected(name: str) -> None:
    path, rejected = find(name), list[Rejected]()
    calls = list(io.read(path, on_reject=rejected.append))
    assert rejected == []
    assert totals(calls) == FILES[name][1](path)
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("name", FILES)
def test_bodies_can_be_read_again_from_their_place(name: str) -> None:
    for call in io.read(find(name)):
        assert call.place is not None
        if call.request is not None:
            assert io.read_request(call.place) == call.request


@pytest.mark.parametrize("name", FILES)
def test_exactly_one_format_knows_a_file_also_by_its_first_lines_alone(name: str) -> None:
    head = find(name).read_bytes()[: 2**16]
    assert [module.NAME for module in importers() if module.sniff(head)] == [FILES[name][0]]


@pytest.mark.parametrize("name", ["fourteen/calls.jsonl", "fourteen/usage.csv"])
def test_no_format_knows_native_files(name: str) -> None:
    head = (RECORDED / name).read_bytes()[: 2**16]
    assert [module.NAME for module in importers() if module.sniff(head)] == []


def test_no_format_knows_documents_that_are_none_of_its_own() -> None:
    documents: list[Any] = [{}, [], [1], {"a": 1}, {"request": {"model": "m", "messages": []}}, {"messages": [{}]}]
    for document in documents:
        for indent in (None, 2):
            head = json.dumps(document, indent=indent).encode()
            assert [module.NAME for module in importers() if module.sniff(head)] == [], document


def test_redacted_ids_separate_no_calls_and_join_none() -> None:
    """All ids in this export are the word REDACTED: each message stays a call of its own."""
    calls = list(io.read(find("opencode/oc-nb-93-redacted-id.json")))
    assert len({call.id for call in calls}) == 17
    assert not any("REDACTED" in f"{call.id} {call.trace} {call.agent}" for call in calls)
    assert {call.kind for call in calls} == {"subagent"}


def test_a_pi_session_has_starts_and_ends_and_unknown_usage_where_it_was_aborted() -> None:
    path = find("pi/pi-mono-large-session.jsonl")
    calls = list(io.read(path))
    stops = [row["message"]["stopReason"] for row in lines(path) if row.get("message", {}).get("role") == "assistant"]
    assert len(stops) == len(calls)
    for call, stop in zip(calls, stops, strict=True):
        assert call.started_at and call.ended_at and call.started_at <= call.ended_at
        assert call.usage.input_tokens is not None or stop in ("aborted", "error")


def test_responses_on_one_websocket_are_calls_of_their_own_with_their_own_request() -> None:
    first, second, third = io.read(find("raw_http/claude-tap-codex-ws.jsonl"))
    assert [call.kind for call in (first, second, third)] == ["prewarm", "main", "main"]
    assert first.request and first.request["input"] == []
    assert second.request and second.request["previous_response_id"] == first.id == "resp_prefetch"
    assert [call.usage.input_tokens for call in (first, second, third)] == [10, 20, 30]
    assert second.started_at and third.started_at and second.started_at < third.started_at


def test_every_recorded_file_beside_the_checkout_is_known_by_exactly_one_format(shared: Path) -> None:
    for path in sorted((shared / "traces").rglob("*.json*")):
        if "fourteen" not in path.parts:
            head = path.read_bytes()[: 2**16]
            known = [module.NAME for module in importers() if module.sniff(head)]
            assert len(known) == 1, (path, known)
