"""Small traces of the same kinds as the public cases, made here, so that a checkout alone checks them too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
Audit = Callable[..., Json]

MARK = {"cache_control": {"type": "ephemeral"}}


def text(words: str, mark: bool = False) -> Json:
    return {"type": "text", "text": words} | (MARK if mark else {})


def tool(name: str) -> Json:
    return {"name": name, "description": f"Use {name}.", "input_schema": {"type": "object"}}


def row(number: int, start: str, request: Json, usage: tuple[int, int, int], end: str | None = None) -> Json:
    """One call; `usage` is read, written and uncached tokens, `start` and `end` are times of one day."""
    read, written, rest = usage
    counts = {"input_tokens": rest, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    base = {"provider": "anthropic", "host": "h", "key_fp": "k", "seq": number, "id": f"c{number}", "status": 200}
    times = {"started_at": f"2026-06-01T{start}Z", "ended_at": end and f"2026-06-01T{end}Z"}
    return base | times | {"request": {"model": "claude-sonnet-4-5", **request}, "response": {"usage": counts}}


@pytest.fixture
def audited(audit: Audit, tmp_path: Path) -> Callable[..., list[Json]]:
    """Audits rows and gives the calls of the report."""

    def run(*rows: Json) -> list[Json]:
        path = tmp_path / "small.jsonl"
        path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
        calls: list[Json] = audit(path)["calls"]
        return calls

    return run


SYSTEM = [text("You plan journeys.", mark=True)]


def talk(*turns: list[Json], **more: Any) -> Json:
    roles = ("user", "assistant")
    return {**more, "system": SYSTEM, "messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(turns)]}


def test_a_block_that_moved_is_one_move(audited: Callable[..., list[Json]]) -> None:
    note = text("(timetable of the day)")
    first = talk([text("(map)"), note, text("(fares)"), text("From Ulm to Bonn.", mark=True)])
    second = talk(
        [text("(map)"), text("(fares)"), text("From Ulm to Bonn.")],
        [text("By rail.")],
        [note, text("And back?", mark=True)],
    )
    _, moved = audited(
        row(1, "08:00:00", first, (9_000, 60_000, 2)),
        row(2, "08:02:00", second, (9_000, 61_000, 2)),
    )
    found = moved["diagnosis"]
    assert (moved["verdict"], found["cause"], found["change"]) == ("partial_miss", "history_rewritten", "moved")
    assert (found["path"], found["first_change"]["moved_to"]) == ("/messages/0/content/1", "/messages/2/content/0")
    assert (found["also"], found["lost_tokens"]) == ([], 60_000)
    assert "ttl_expired" in [one["cause"] for one in found["ruled_out"]]


def test_tools_in_another_order_are_reordered(audited: Callable[..., list[Json]]) -> None:
    names = ["map", "rail", "taxi"]
    request = [text("Hello.", mark=True)]
    first = talk(request, tools=[tool(name) for name in names[:2]] + [tool("taxi") | MARK])
    order = [tool("map"), tool("taxi"), tool("rail") | MARK]
    second = talk([text("Hello.")], [text("Where to?")], [text("Bonn.", mark=True)], tools=order)
    _, shuffled = audited(
        row(1, "08:00:00", first, (0, 20_000, 5)),
        row(2, "08:01:00", second, (0, 20_100, 5)),
    )
    found = shuffled["diagnosis"]
    assert (shuffled["verdict"], found["cause"], found["change"]) == ("miss", "tools_changed", "reordered")
    assert (found["path"], found["also"]) == ("/tools/1", [])
    assert set(found["first_change"]["names"]) == {"rail", "taxi"}


def test_a_long_answer_does_not_prolong_a_lifetime(audited: Callable[..., list[Json]]) -> None:
    turns = [[text("One.")], [text("Yes.")], [text("Two.")], [text("Yes.")], [text("Three.")]]

    def upto(count: int) -> Json:
        return talk(*turns[: count - 1], [text(turns[count - 1][0]["text"], mark=True)])

    _, late, soon = audited(
        row(1, "08:00:00", upto(1), (40_000, 600, 4), end="08:04:10"),
        row(2, "08:05:01", upto(3), (0, 41_000, 4), end="08:09:00"),
        row(3, "08:10:00", upto(5), (41_000, 300, 4)),
    )
    found = late["diagnosis"]
    assert (late["verdict"], found["cause"], found["status"]) == ("miss", "ttl_expired", "established")
    assert (found["facts"]["gap_start_to_start_s"], found["facts"]["ttl_s"]) == (301, 300)
    assert "only 51 s after that response ended" in found["evidence"][1]
    assert "history_rewritten" in [one["cause"] for one in found["ruled_out"]]
    assert (soon["verdict"], soon["diagnosis"]) == ("hit", None), "299 s from start to start"


def test_calls_that_start_together_cannot_read_each_other(audited: Callable[..., list[Json]]) -> None:
    def candidate(number: int) -> Json:
        return talk([text("The same brief.", mark=True), text(f"Draft {number}.")])

    leader, follower, waiter = audited(
        row(1, "08:00:00", candidate(1), (0, 12_000, 9)) | {"first_token_at": "2026-06-01T08:00:03Z"},
        row(2, "08:00:02", candidate(2), (0, 12_000, 9)) | {"first_token_at": "2026-06-01T08:00:04Z"},
        row(3, "08:00:05", candidate(3), (12_000, 0, 9)),
    )
    found = follower["diagnosis"]
    assert (leader["verdict"], leader["diagnosis"]["lost_tokens"]) == ("cold_write", 0)
    assert (found["cause"], found["status"], found["lost_tokens"]) == ("not_yet_readable", "established", 12_000)
    assert found["policy"] == "shared_endpoint_stagger"
    assert (waiter["verdict"], waiter["diagnosis"]) == ("hit", None)


@pytest.mark.parametrize(
    ("names", "change", "path"),
    [(["a", "c", "b"], "inserted", "/tools/1"), (["b", "a"], "reordered", "/tools/0"), (["a"], "removed", "/tools/1")],
)
def test_tools_changed_without_a_new_message(
    audited: Callable[..., list[Json]], names: list[str], change: str, path: str
) -> None:
    first = talk([text("From Ulm to Bonn.", mark=True)], tools=[tool("a"), tool("b")])
    second = talk([text("From Ulm to Bonn.", mark=True)], tools=[tool(name) for name in names])
    _, call = audited(row(1, "10:00:00", first, (0, 8000, 3)), row(2, "10:00:30", second, (0, 8000, 3)))
    found = call["diagnosis"]
    assert (found["cause"], found["change"], found["path"]) == ("tools_changed", change, path)


def test_entries_live_by_the_lifetime_that_was_billed(audit: Audit, tmp_path: Path) -> None:
    """Markers without a ttl, but writes billed for an hour (a gateway set it): six minutes of silence are no expiry."""
    first = talk([text("From Ulm to Bonn.", mark=True)])
    second = talk([text("From Ulm to Bonn.")], [text("By rail.")], [text("And back?", mark=True)])
    rows = [row(1, "10:00:00", first, (0, 9000, 3)), row(2, "10:06:00", second, (0, 9200, 3))]
    for each in rows:
        counts = each["response"]["usage"]
        hour = counts["cache_creation_input_tokens"]
        counts["cache_creation"] = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": hour}
    path = tmp_path / "hour.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    found = audit(path)["calls"][1]["diagnosis"]
    assert (found["cause"], found["lost_tokens"]) == ("provider_side", 9000)
