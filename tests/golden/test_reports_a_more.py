"""More public reports of broken caches as small traces: lifetimes, clocks, keys, and what numbers alone can tell."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

from answers import answers, because, excluded, report, said
from script import MODEL, START, call, finished, marked, rounds, tail_marked, text, tool, user

Json = dict[str, Any]

TOOLS = [tool(f"tool_{number}", 1000) for number in range(3)]
RULES = [marked(text("Follow all the rules of this house.", 2000))]


def talk(turns: int, first: int = 500) -> list[Json]:
    return [user(text("Please do the task.", first)), *rounds(1, turns)]


def body(messages: list[Json], ttl: str = "5m", **rest: Any) -> Json:
    return {"tools": TOOLS, "system": RULES, "messages": tail_marked(messages, ttl)} | rest


def numbers(seq: int, at_s: float, total: int, read: int, **rest: Any) -> Json:
    """A row without bodies; all that was not read was written for five minutes unless `usage` says otherwise."""
    usage = {"input_tokens": total, "read_tokens": read, "write_tokens": total - read}
    usage |= {"write_5m_tokens": total - read, "write_1h_tokens": 0, "output_tokens": 100} | rest.pop("usage", {})
    start = (START + timedelta(seconds=at_s)).isoformat()
    row = {"provider": "anthropic", "trace": "t", "model": MODEL, "id": f"call-{seq}", "seq": seq, "status": 200}
    return row | {"started_at": start, "usage": usage} | rest


def summary(rows: list[Json]) -> dict[int, tuple[str, str | None]]:
    """Verdict and cause by row."""
    return {seq: (one["verdict"], one["diagnosis"] and one["diagnosis"]["cause"]) for seq, one in answers(rows).items()}


# A21: the lifetime asked for fell from an hour to five minutes.


def hour(turns: int, ttl: str) -> Json:
    return body(talk(turns, 20_000), ttl, system=[marked(text("Follow all the rules of this house.", 2000), ttl)])


def test_a21_a_pause_after_the_lifetime_fell() -> None:
    rows = finished([call(0, hour(1, "1h")), call(1200, hour(2, "1h")), call(4900, hour(3, "5m")),
                     call(6100, hour(4, "5m"))])  # fmt: skip
    found = answers(rows)
    assert said(found[2]) == {"verdict": "hit"}, "a pause of 20 minutes, within the hour"
    assert (said(found[3])["cause"], said(found[3])["also"]) == ("ttl_expired", []), "more than an hour"
    assert said(found[4]) == {
        "verdict": "miss", "cause": "ttl_expired", "status": "established", "lost": 28_210, "change": None,
        "path": None, "policy": "keep_alive", "also": ["tier_changed"],
    }  # fmt: skip
    assert "from call 3 on" in because(found[4]) and "20 min" in because(found[4])
    assert "history_rewritten" in excluded(found[4])


def test_a21_the_lifetimes_as_usage_shows_them() -> None:
    def hours(total: int, read: int) -> Json:
        return {"write_5m_tokens": 0, "write_1h_tokens": total - read}

    rows = [
        numbers(1, 0, 50_000, 0, usage=hours(50_000, 0)),
        numbers(2, 1200, 51_000, 50_000, usage=hours(51_000, 50_000)),
        numbers(3, 6000, 52_000, 0),
        numbers(4, 7200, 53_000, 0),
    ]
    found = answers(rows)
    assert said(found[2]) == {"verdict": "hit"}
    assert (said(found[3])["cause"], said(found[3])["also"]) == ("ttl_expired", [])
    assert (said(found[4])["cause"], said(found[4])["status"]) == ("ttl_expired", "likely")
    assert said(found[4])["also"] == ["tier_changed"] and said(found[4])["lost"] == 52_000


def test_a21_a_short_tail_behind_a_long_head_is_no_fall() -> None:
    def mixed(turns: int) -> Json:
        return body(talk(turns), system=[marked(text("Follow all the rules of this house.", 2000), "1h")])

    found = answers(finished([call(0, mixed(1)), call(20, mixed(2)), call(1000, mixed(3))]))
    assert (said(found[3])["cause"], said(found[3])["also"]) == ("ttl_expired", [])


# A30: a clock at the head of the system prompt.


def clocked(clock: str) -> list[Json]:
    return [marked(text(f"{clock} You are an agent. Follow all the rules of this house to the letter.", 3000))]


def test_a30_a_clock_opens_the_system_prompt() -> None:
    for clocks in (("10:00:00", "10:00:14", "10:01:14"), ("10:00", "10:01", "10:02")):
        rows = [
            call(at_s, body(talk(turn), system=clocked(clock)))
            for turn, (at_s, clock) in enumerate(zip((0, 14, 74), clocks, strict=True))
        ]
        found = answers(finished(rows))
        for row, lost in ((2, 6500), (3, 7570)):
            assert said(found[row]) == {
                "verdict": "miss", "cause": "system_changed", "status": "established", "lost": lost, "also": [],
                "change": "date_or_clock", "path": "/system/0/text", "policy": "move_volatile_text",
            }  # fmt: skip
            assert found[row]["diagnosis"]["first_change"]["char_offset"] < len(clocks[0])
            assert "ttl_expired" in excluded(found[row])


# A32: sub-agents send no breakpoint.


def test_a32_sub_agents_without_breakpoints() -> None:
    rows = [call(0, body(talk(0)))]
    for turn in range(3):
        request = {"tools": TOOLS, "system": [text("You are a helper.", 3000)], "messages": talk(turn)}
        rows.append(call(10 + 10 * turn, request, agent="helper", kind="subagent", parent="call-1"))
    found = answers(finished(rows))
    for row in (2, 3, 4):
        answer = said(found[row])
        assert (answer["verdict"], answer["cause"], answer["lost"]) == ("not_engaged", "no_breakpoint", 0)
    repeated = [found[row]["diagnosis"]["facts"].get("repeated_tokens") for row in (2, 3, 4)]
    assert repeated == [3000, 6500, 7570], "the tools that the main agent sent, then what the helper itself sent"


# A34: requests go round robin over accounts.


def test_a34_accounts_in_turn() -> None:
    found = answers(finished([call(20 * turn, body(talk(turn)), key_fp="AB"[turn % 2]) for turn in range(4)]))
    assert said(found[1]) == {"verdict": "cold_write"}
    second = said(found[2])
    assert (second["verdict"], second["cause"], second["lost"]) == ("miss", "scope_changed", 5500)
    assert second["policy"] is None and {"history_rewritten", "ttl_expired"} <= excluded(found[2])
    third = said(found[3])
    assert found[3]["read_tokens"] == 5500, "what the first account wrote is read"
    assert (third["cause"], third["lost"]) == ("scope_changed", 1070), "the turn that the other account took"


# A36: expiries, first turns, one change of model, and misses that nothing explains.


def test_a36_nothing_is_made_up() -> None:
    rows = [
        numbers(1, 0, 50_000, 0),
        numbers(2, 60, 52_000, 50_000),
        numbers(3, 460, 54_000, 0),  # idle
        numbers(4, 500, 56_000, 54_000),
        numbers(5, 560, 58_000, 0),  # unexplained
        numbers(6, 600, 59_000, 0, model="claude-sonnet-4-6"),
        numbers(7, 640, 60_000, 59_000, model="claude-sonnet-4-6"),
        numbers(8, 700, 400, 0, model="claude-haiku-4-5", usage={"write_tokens": 0, "write_5m_tokens": 0}),
        numbers(9, 720, 30_000, 0, agent="helper"),
        numbers(10, 740, 9_000, 0, trace="other"),
    ]
    assert summary(rows) == {
        1: ("cold_write", None),
        2: ("hit", None),
        3: ("miss", "ttl_expired"),
        4: ("hit", None),
        5: ("miss", "unknown"),
        6: ("miss", "model_changed"),
        7: ("hit", None),
        8: ("not_engaged", None),
        9: ("cold_write", None),
        10: ("cold_write", None),
    }
    found = report(rows)
    unexplained = found["calls"][4]
    assert said(unexplained)["status"] == "possible" and "ttl_expired" in excluded(unexplained)
    assert {"provider_side", "tools_changed"} <= set(said(unexplained)["also"])
    assert all(Decimal(row["saving_equivalents"]) == 0 for row in found["what_if"]), "numbers prove no saving"


def test_a36_a_pair_equal_byte_for_byte() -> None:
    rows = [call(0, body(talk(1, 50_000))), call(24, body(talk(2, 50_000)), usage={"read": 0, "write_5m": 57_140})]
    found = answers(finished(rows))[2]
    assert (said(found)["cause"], said(found)["status"], said(found)["lost"]) == ("provider_side", "likely", 56_070)
    assert said(found)["policy"] is None


# A41: an aborted generation and its retry, taken for an idle pause.


def test_a41_the_gap_counts_from_the_start() -> None:
    ends = {seq: (START + timedelta(seconds=end)).isoformat() for seq, end in ((1, 51), (2, 387))}
    silent = {"output_tokens": 0}
    tiny = {"write_tokens": 0, "write_5m_tokens": 0}
    rows = [
        numbers(1, 0, 100_000, 0, usage=silent, ended_at=ends[1]),
        numbers(2, 53.2, 100_000, 0, ended_at=ends[2]),
        *(numbers(3 + number, 400 + number, 2, 0, usage=tiny) for number in range(10)),
        numbers(13, 420, 101_000, 0 + 100_000),
    ]
    found = report(rows)
    by_row = {one["seq"]: one for one in found["calls"]}
    assert said(by_row[2])["cause"] == "unknown" and "ttl_expired" in excluded(by_row[2])
    assert "53.2 s" in because(by_row[2]), "from start to start, not 336 s from end to end"
    assert {said(by_row[row])["verdict"] for row in range(3, 13)} == {"not_engaged"}
    assert found["totals"]["hit_ratio"] == round(100_000 / 301_020, 6), "weighted by tokens"


def test_a41_an_answer_that_never_began_left_nothing_to_read() -> None:
    request = body(talk(0, 90_000))
    rows = [
        call(0, request, first_s=None, length_s=51, usage={"read": 0, "write_5m": 95_000, "output": 0}),
        call(53.2, request, length_s=330, kind="retry", usage={"read": 0, "write_5m": 95_000}),
    ]
    found = answers(finished(rows))[2]
    assert (said(found)["cause"], said(found)["status"], said(found)["lost"]) == (
        *("not_yet_readable", "possible", 95_000),
    )
    assert "answered with 0 tokens" in because(found)
