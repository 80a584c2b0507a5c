"""The oracle against the recorded 14 rows and against numbers worked out by hand, rule by rule.

In the small traces each block has 1,000 tokens unless said otherwise and the minimum is 1,000.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import naive
import pytest

ROOT = Path(__file__).parents[3]
DAY = "2026-03-02"
RUNS_DAY = "2026-09-01"
Json = dict[str, Any]


def marked(block: Json, ttl: str | None = "5m") -> Json:
    return block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def text(word: str, ttl: str | None = None) -> Json:
    return marked({"type": "text", "text": word}, ttl)


def texts(count: int, *marks: int) -> list[Json]:
    """`count` blocks t1, t2, ... with 5m markers on the numbers given."""
    return [text(f"t{n}", "5m" if n in marks else None) for n in range(1, count + 1)]


def call(
    at: float, *blocks: Json, day: str = DAY, first: float | None = 0, row: Json | None = None, **body: Any
) -> Json:
    """A row `at` seconds into the day with one user message; the response begins `first` seconds later."""
    start = datetime.fromisoformat(f"{day}T00:00:00+00:00") + timedelta(seconds=at)
    request: Json = {"model": "m", **body, "messages": [{"role": "user", "content": list(blocks)}]}
    tokens = {f"/messages/0/content/{n}": 1000 for n in range(len(blocks))}
    for level in ("tools", "system"):
        tokens |= {f"/{level}/{n}": 1000 for n in range(len(request.get(level, ())))}
    known = None if first is None else (start + timedelta(seconds=first)).isoformat()
    base: Json = {"provider": "anthropic", "host": "api.anthropic.com", "key_fp": "k", "started_at": start.isoformat()}
    return {**base, "first_token_at": known, "request": request, "tokens": tokens, **(row or {})}


def reads(*rows: Json) -> list[int]:
    return [result["read"] for result in naive.replay(list(rows), min_tokens=1000)]


def last(*rows: Json) -> tuple[int, int, int, int]:
    """read, write_5m, write_1h, uncached of the last row."""
    result = naive.replay(list(rows), min_tokens=1000)[-1]
    return result["read"], result["write_5m"], result["write_1h"], result["uncached"]


def test_reproduces_the_recorded_fourteen() -> None:
    lines = (ROOT / "traces" / "recorded" / "fourteen" / "calls.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    seen = naive.replay(rows, min_tokens=1024)
    usages = [row["response"]["usage"] for row in rows]
    reported = [(usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) for usage in usages]
    assert len(reported) == 14
    assert [(result["read"], result["write_5m"]) for result in seen] == reported
    assert [(result["write_1h"], result["uncached"]) for result in seen] == [(0, 0)] * 14


# Lookback


def test_the_documented_lookback_example() -> None:
    first, second = call(0, *texts(10, 10)), call(10, *texts(15, 15))
    assert last(first, second) == (10_000, 5_000, 0, 0)
    assert last(first, second, call(20, *texts(35, 35))) == (0, 35_000, 0, 0)
    assert last(first, second, call(20, *texts(35, 15, 35))) == (15_000, 20_000, 0, 0)


@pytest.mark.parametrize(("blocks", "read"), [(29, 10_000), (30, 0)])
def test_the_breakpoint_is_the_first_of_20_positions(blocks: int, read: int) -> None:
    assert reads(call(0, *texts(10, 10)), call(10, *texts(blocks, blocks)))[-1] == read


def use(n: int) -> Json:
    return {"type": "tool_use", "id": f"u{n}", "name": "f", "input": {"a": n, "b": 0}}


def result(n: int, ttl: str | None = None) -> Json:
    return marked({"type": "tool_result", "tool_use_id": f"u{n}", "content": "ok"}, ttl)


@pytest.mark.parametrize(
    ("day", "host", "read"),
    [
        (RUNS_DAY, "api.anthropic.com", 1_000),
        ("2026-08-31", "api.anthropic.com", 0),
        (RUNS_DAY, "other.example", 0),
    ],
)
def test_runs_of_tool_blocks_are_one_position_since_september(day: str, host: str, read: int) -> None:
    tail = [*(use(n) for n in range(15)), *(result(n) for n in range(14)), result(14, "5m")]
    rows = [
        call(0, text("a", "5m"), day=day, row={"host": host}),
        call(9, text("a"), *tail, day=day, row={"host": host}),
    ]
    assert reads(*rows)[-1] == read


@pytest.mark.parametrize(("pairs", "read"), [(9, 1_000), (10, 0)])
def test_sequential_rounds_count_two_positions_each(pairs: int, read: int) -> None:
    rounds = [block for n in range(pairs) for block in (use(n), result(n))]
    rounds[-1] = marked(rounds[-1])
    rows = call(0, text("a", "5m"), day=RUNS_DAY), call(9, text("a"), *rounds, day=RUNS_DAY)
    assert reads(*rows)[-1] == read


def test_only_written_boundaries_can_be_read() -> None:
    assert reads(call(0, *texts(3, 3)), call(9, *texts(2, 2))) == [0, 0]


def test_longest_entry_over_all_breakpoints_wins() -> None:
    assert last(call(0, *texts(6, 2, 5)), call(9, *texts(8, 3, 8))) == (5_000, 3_000, 0, 0)


# Lifetimes


@pytest.mark.parametrize(
    ("ttl", "gap", "read"), [("5m", 299.999, 1), ("5m", 300, 0), ("1h", 3599.999, 1), ("1h", 3600, 0)]
)
def test_alive_while_the_gap_is_below_the_lifetime(ttl: str, gap: float, read: int) -> None:
    assert reads(call(0, text("a", ttl)), call(gap, text("a", ttl)))[-1] == 1_000 * read


def test_lifetime_counts_from_the_start_of_the_writing_call() -> None:
    assert reads(call(0, text("a", "5m"), first=100), call(300, text("a", "5m"))) == [0, 0]


def test_a_read_refreshes_the_entry() -> None:
    assert reads(*(call(at, text("a", "5m")) for at in (0, 250, 500, 750))) == [0, 1_000, 1_000, 1_000]


def test_a_hit_refreshes_entries_at_breakpoints_only() -> None:
    rows = call(0, *texts(3, 1, 2, 3)), call(200, *texts(3, 1, 3))
    assert reads(*rows, call(400, *texts(1, 1)))[-1] == 1_000
    assert reads(*rows, call(400, *texts(2, 2)))[-1] == 1_000  # block 2 had no breakpoint at 200 s and has expired
    assert reads(*rows, call(400, *texts(3, 3)))[-1] == 3_000


def test_a_breakpoint_before_the_hit_gets_an_entry_without_a_charge() -> None:
    rows = call(0, *texts(3, 3)), call(9, *texts(3, 2, 3))
    assert last(*rows) == (3_000, 0, 0, 0)
    assert reads(*rows, call(20, *texts(2, 2)))[-1] == 2_000


def test_a_live_entry_keeps_its_lifetime_when_marked_anew() -> None:
    rows = call(0, text("a", "5m")), call(100, text("a", "1h"))
    assert last(*rows) == (1_000, 0, 0, 0)
    assert reads(*rows, call(400, text("a", "1h")))[-1] == 0
    hour = call(0, text("a", "1h")), call(100, text("a", "5m"))
    assert reads(*hour, call(3000, text("a", "5m")))[-1] == 1_000


def test_mixed_lifetimes_are_billed_from_the_hit() -> None:
    cold = call(0, text("a", "1h"), text("b"), text("c", "1h"), text("d", "5m"), text("e"))
    assert last(cold) == (0, 1_000, 3_000, 1_000)
    grown = call(9, text("a", "1h"), text("b"), text("c"), text("d"), text("e", "1h"), text("f"), text("g", "5m"))
    assert last(cold, grown) == (4_000, 2_000, 1_000, 0)
    only_5m_new = call(9, text("a", "1h"), text("b"), text("c", "1h"), text("d"), text("e"), text("f", "5m"))
    assert last(cold, only_5m_new) == (4_000, 2_000, 0, 0)


# Minimum, concurrency, failures


@pytest.mark.parametrize(("minimum", "expected"), [(2_000, (0, 2_000)), (2_001, (0, 0))])
def test_below_the_minimum_nothing_is_cached(minimum: int, expected: tuple[int, int]) -> None:
    rows = [call(0, *texts(2, 2)), call(9, *texts(2, 2))]
    first, second = naive.replay(rows, min_tokens=lambda row: minimum)
    assert (first["read"], first["write_5m"]) == expected
    assert second["read"] == expected[1]
    assert second["uncached"] == 2_000 - expected[1]


def test_a_breakpoint_below_the_minimum_does_not_hide_the_others() -> None:
    rows = [call(0, *texts(3, 1, 3)), call(9, *texts(1, 1)), call(9, *texts(3, 1, 3))]
    assert [result["read"] for result in naive.replay(rows, min_tokens=2_000)] == [0, 0, 3_000]


@pytest.mark.parametrize(
    ("fields", "at", "read"),
    [
        ({}, 19.999, 0),
        ({}, 20, 1_000),
        ({"first_token_at": None, "ended_at": f"{DAY}T00:00:30Z"}, 29.999, 0),
        ({"first_token_at": None, "ended_at": f"{DAY}T00:00:30Z"}, 30, 1_000),
        ({"first_token_at": None}, 4.999, 0),
        ({"first_token_at": None}, 5, 1_000),
    ],
)
def test_readable_once_the_response_begins(fields: Json, at: float, read: int) -> None:
    assert reads(call(0, text("a", "5m"), first=20, row=fields), call(at, text("a", "5m")))[-1] == read


def test_calls_at_once_all_write_and_the_file_order_does_not_matter() -> None:
    at_once = [call(0, text("a", "5m"), first=1) for _ in range(3)]
    assert reads(call(9, text("a", "5m")), *at_once) == [1_000, 0, 0, 0]
    assert [r["write_5m"] for r in naive.replay(at_once, min_tokens=1)] == [1_000] * 3


@pytest.mark.parametrize("row", [{"status": 400}, {"status": 529}, {"kind": "count"}])
def test_failed_calls_and_counts_touch_nothing(row: Json) -> None:
    refused = call(0, text("a", "5m"), row=row)
    assert last(refused) == (0, 0, 0, 0)
    assert reads(refused, call(9, text("a", "5m")))[-1] == 0
    assert reads(call(0, text("a", "5m")), call(200, text("a", "5m"), row=row), call(400, text("a", "5m")))[-1] == 0


# Markers


def test_markers_are_not_content_and_key_order_is() -> None:
    assert reads(call(0, *texts(3, 1, 3)), call(9, *texts(4, 3, 4)))[-1] == 3_000
    swapped = {**use(1), "input": {"b": 0, "a": 1}}
    assert reads(call(0, marked(use(1))), call(9, marked(swapped)))[-1] == 0


def test_a_marker_on_the_last_inner_block_counts_for_its_parent() -> None:
    inner = {"type": "tool_result", "tool_use_id": "u", "content": [text("x"), text("y", "5m")]}
    outer = marked({"type": "tool_result", "tool_use_id": "u", "content": [text("x"), text("y")]})
    assert last(call(0, inner)) == (0, 1_000, 0, 0)
    assert reads(call(0, inner), call(9, outer))[-1] == 1_000


def test_cache_control_inside_a_tool_input_is_content() -> None:
    ask = {"type": "tool_use", "id": "u", "name": "f", "input": {"cache_control": 1}}
    other = {"type": "tool_use", "id": "u", "name": "f", "input": {"cache_control": 2}}
    assert reads(call(0, marked(ask)), call(9, marked(other)))[-1] == 0


AUTO = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def test_automatic_marker_since_its_first_day() -> None:
    assert last(call(0, *texts(2), cache_control=AUTO, day="2026-02-18")) == (0, 0, 0, 2_000)
    assert last(call(0, *texts(2), cache_control=AUTO, day="2026-02-19")) == (0, 2_000, 0, 0)
    assert last(call(0, *texts(2), cache_control={**AUTO, "ttl": "1h"})) == (0, 0, 2_000, 0)


@pytest.mark.parametrize("tail", [THOUGHT, {"type": "redacted_thinking", "data": "x"}, text("")])
def test_automatic_marker_walks_back_to_a_block_that_can_carry_it(tail: Json) -> None:
    assert last(call(0, text("a"), text("b"), tail, cache_control=AUTO)) == (0, 2_000, 0, 1_000)


def test_automatic_marker_adds_nothing_on_a_marked_block() -> None:
    assert last(call(0, *texts(2, 2), cache_control=AUTO)) == last(call(0, *texts(2, 2)))


def test_server_tool_results_get_a_five_minute_breakpoint() -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    rows = call(0, text("a", "1h"), found, text("b")), call(9, text("a", "1h"), found, text("c"))
    assert last(rows[0]) == (0, 1_000, 1_000, 1_000)
    assert last(*rows) == (2_000, 0, 0, 1_000)
    assert last(call(0, text("a"), found, text("b"))) == (0, 0, 0, 3_000)


# Levels


def tool(name: str, **extra: Any) -> Json:
    return {"name": name, **extra}


def levels(at: float, tools: list[Json] | None = None, message: Json | None = None, **changes: Any) -> Json:
    """A call with a breakpoint at the end of each level: 1,000 + 1,000 + 2,000 tokens."""
    body = {"tools": tools or [marked(tool("f"))], "system": [text("s", "5m")], **changes}
    return call(at, message or text("m"), text("q", "5m"), **body)


CITED = {"type": "document", "source": {"type": "text", "data": "d"}, "citations": {"enabled": True}}
UNCITED = {"type": "document", "source": {"type": "text", "data": "d"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "u"}}
SHOT = {"type": "tool_result", "tool_use_id": "u", "content": [IMAGE]}


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, 4_000),
        ({"model": "other"}, 0),
        ({"tools": [marked(tool("g"))]}, 0),
        ({"system": [text("other", "5m")]}, 1_000),
        ({"speed": "fast"}, 1_000),
        ({"speed": "standard"}, 4_000),
        ({"tool_choice": {"type": "any"}}, 2_000),
        ({"tool_choice": {"type": "auto"}}, 4_000),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, 2_000),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, 4_000),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 2_000),
        ({"output_config": {"effort": "low"}}, 2_000),
        ({"output_config": {"format": {"type": "json_schema"}}}, 2_000),
        ({"max_tokens": 7, "temperature": 0.5, "stream": True, "metadata": {"user_id": "x"}}, 4_000),
        ({"message": text("edited")}, 2_000),
        ({"tools": [marked(tool("f")), tool("later", defer_loading=True)]}, 4_000),
        ({"tools": [tool("early", defer_loading=True), marked(tool("f"))]}, 4_000),
        ({"tools": [marked(tool("f")), tool("web_search", type="web_search_20250305")]}, 1_000),
        ({"tools": [tool("web_fetch", type="web_fetch_20250910"), marked(tool("f"))]}, 1_000),
    ],
)
def test_a_change_spares_the_levels_before_its_own(changes: Json, read: int) -> None:
    row = levels(9, **changes)
    row["tokens"].setdefault("/tools/1", 1000)
    assert reads(levels(0), row)[-1] == read


def test_deferred_tools_need_no_token_count() -> None:
    row = levels(0, tools=[marked(tool("f")), tool("later", defer_loading=True)])
    del row["tokens"]["/tools/1"]
    assert last(row) == (0, 4_000, 0, 0)


@pytest.mark.parametrize(
    ("old", "new", "read"), [(UNCITED, CITED, 1_000), (CITED, UNCITED, 1_000), (CITED, CITED, 4_000)]
)
def test_citations_are_a_switch_of_the_system_level(old: Json, new: Json, read: int) -> None:
    assert reads(levels(0, message=old), levels(9, message=new))[-1] == read


@pytest.mark.parametrize("picture", [IMAGE, SHOT])
def test_an_image_anywhere_is_a_switch_of_the_messages_level(picture: Json) -> None:
    before = call(0, text("m", "5m"), system=[text("s", "5m")])
    after = call(9, text("m", "5m"), marked(picture), system=[text("s", "5m")])
    assert reads(before, after)[-1] == 1_000
    assert reads(before, after, call(18, text("m"), picture, text("q", "5m"), system=[text("s", "5m")]))[-1] == 3_000


def test_a_restored_parameter_finds_the_old_entry() -> None:
    forced = levels(9, tool_choice={"type": "any"})
    assert reads(levels(0), forced, levels(18)) == [0, 2_000, 4_000]


@pytest.mark.parametrize("scope", [{"key_fp": "other"}, {"host": "other.example"}, {"provider": "other"}])
def test_entries_are_not_shared_across_scopes(scope: Json) -> None:
    assert reads(call(0, text("a", "5m")), call(9, text("a", "5m"), row=scope))[-1] == 0


def test_strings_are_one_block() -> None:
    row = call(0, system="s", cache_control=AUTO)
    row["request"]["messages"] = [{"role": "user", "content": "m"}]
    row["tokens"] = {"/system": 700, "/messages/0/content": 500}
    assert last(row) == (0, 1_200, 0, 0)
