"""Public reports of caches broken by a client, rebuilt as small traces: each gets the answer that its cause deserves.

Each test is named for its row of the table; texts are our own. Usage follows the provider's rules by the oracle, except
where a report is about a provider that did not follow them. Rows A30 to A41 are in test_reports_a_more.py, rows with
recorded cases of their own in test_cases.py.
"""

import copy
from decimal import Decimal
from typing import Any

from answers import answers, because, excluded, report, said
from script import (
    assistant,
    call,
    finished,
    marked,
    result,
    rounds,
    tail_marked,
    text,
    thinking,
    tool,
    use,
    user,
)

Json = dict[str, Any]

TOOLS = [tool(f"tool_{number}", 1000) for number in range(3)]
RULES = "You are an agent. Follow all the rules of this house to the letter."
HISTORY = [user(text("Please do the task.", 500)), *rounds(1, 3)]
NEXT = [assistant(text("Done.", 50)), user(text("And now the rest.", 300))]


def system(words: str = RULES, tokens: int = 2000) -> list[Json]:
    return [marked(text(words, tokens))]


def body(messages: list[Json], **rest: Any) -> Json:
    return {"tools": TOOLS, "system": system(), "messages": tail_marked(messages)} | rest


def answer(verdict: str, cause: str, lost: int, path: str | None, policy: str | None, **rest: Any) -> Json:
    """The right answer; established and without a second cause unless told otherwise."""
    usual: Json = {"status": "established", "change": None, "also": []}
    return {"verdict": verdict, "cause": cause, "lost": lost, "path": path, "policy": policy} | usual | rest


# A02: the last breakpoint is put on a reminder that the next request does not have any more.


def with_reminder(history: list[Json], number: int, as_message: bool) -> list[Json]:
    reminder = marked(text(f"Reminder {number}: be brief.", 100))
    if as_message:
        return [*history, {"role": "system", "content": [reminder]}]
    return [*history[:-1], user(*history[-1]["content"], reminder)]


def reminded(as_message: bool) -> list[Json]:
    history, rows = [user(text("Please work.", 3000))], []
    for number in range(3):
        rows.append(call(30 * number, body(history) | {"messages": with_reminder(history, number, as_message)}))
        history = [*history, assistant(text(f"Answer {number}.", 200)), user(text(f"Question {number}.", 800))]
    return finished(rows)


def test_a02_a_breakpoint_on_a_trailing_system_message() -> None:
    found = answers(reminded(as_message=True))
    assert said(found[1]) == {"verdict": "cold_write"}
    assert said(found[2]) == answer(
        "partial_miss", "breakpoint_on_volatile", 3000, "/messages/0/content/0", "mark_common_endpoint"
    )
    assert said(found[3])["cause"] == "breakpoint_on_volatile" and said(found[3])["lost"] == 4000
    assert "/messages/1/content/0, which does not stand there in this request" in because(found[2])
    assert "ttl_expired" in excluded(found[2])


def test_a02_a_breakpoint_on_a_trailing_block() -> None:
    found = answers(reminded(as_message=False))
    assert [said(found[row])["cause"] for row in (2, 3)] == ["breakpoint_on_volatile"] * 2
    assert [said(found[row])["lost"] for row in (2, 3)] == [3000, 4000]


# A04: an identifier of the session inside one tool's description.


def tools_of(session: str) -> list[Json]:
    url = f"Fetch a file from https://files.example/sessions/{session} by name."
    return [tool("fs_read", 1000), tool("fetch", 1000, url), tool("fs_find", 1000)]


SESSIONS = ("0b7f2c9e-1111-4222-8333-444455556666", "9d1a5b3c-7777-4888-9999-aaaabbbbcccc")


def a04(first: list[Json], second: list[Json], traces: tuple[str, str]) -> Json:
    rows = [
        call(40 * number, body(messages, tools=tools_of(session)), trace=trace)
        for number, (messages, session, trace) in enumerate(zip((first, second), SESSIONS, traces, strict=True))
    ]
    return answers(finished(rows))[2]


def test_a04_an_identifier_in_a_tool_after_resume() -> None:
    found = a04(HISTORY, [*HISTORY, *NEXT], ("s1", "s2"))
    expected = answer("miss", "tools_changed", 8710, "/tools/1/description", "stable_tools", change="identifier")
    assert said(found) == expected
    first = found["diagnosis"]["first_change"]
    assert (first["before"], first["after"], first["names"]) == (*SESSIONS, ["fetch"])
    assert first["char_offset"] == len("Fetch a file from https://files.example/sessions/")
    assert {"ttl_expired", "parameter_changed"} <= excluded(found)


def test_a04_an_identifier_in_a_tool_after_clear() -> None:
    long = [*HISTORY, *rounds(4, 8, 5000)]
    for traces in (("s1", "s2"), ("s1", "s1")):
        found = a04(long, [user(text("Another task.", 700))], traces)
        expected = answer("miss", "tools_changed", 5000, "/tools/1/description", "stable_tools", change="identifier")
        assert said(found) == expected, "tools and system are lost, the old conversation is not"


# A05: what a hook added to an old turn is rendered anew.


def hooked(clock: str, inside: bool) -> list[Json]:
    history = copy.deepcopy(HISTORY)
    if inside:
        history[2] = user(result("toolu_1", f"Output of step 1.\nhook ran at {clock}", 1000))
    else:
        history[2]["content"].append(text(f"hook ran at {clock}", 100))
    return history


def test_a05_a_hooks_old_output_is_rendered_anew() -> None:
    places = {True: "/messages/2/content/0/content/0/text", False: "/messages/2/content/1/text"}
    for inside, path in places.items():
        before, after = (hooked(clock, inside) for clock in ("2026-10-05 08:00:01", "2026-10-05 08:01:07"))
        rows = [call(0, body(before)), call(60, body([*after, *NEXT])), call(90, body([*after, *NEXT, *rounds(9, 1)]))]
        found = answers(finished(rows))
        lost = 3710 if inside else 3810
        expected = answer(
            "partial_miss", "history_rewritten", lost, path, "undo_history_rewrite", change="date_or_clock"
        )
        assert said(found[2]) == expected
        assert said(found[3]) == {"verdict": "hit"}
        assert "ttl_expired" in excluded(found[2])


# A08: resumed at another effort.


def test_a08_resumed_at_another_effort() -> None:
    for trace, effort in (("t", "high"), ("t", "medium"), ("resumed", "medium")):
        rows = [
            call(0, body(HISTORY, output_config={"effort": "low"})),
            call(60, body([*HISTORY, *NEXT], output_config={"effort": effort}), trace=trace),
        ]
        found = answers(finished(rows))[2]
        expected = answer(
            *("partial_miss", "parameter_changed", 3710, "/output_config/effort", "keep_effort"), status="likely"
        )
        assert said(found) == expected
        assert found["diagnosis"]["parameter"] == "effort" and '"low"' in because(found)
        assert {"ttl_expired", "history_rewritten"} <= excluded(found), "no change of text"


# A11: files and ages in the system prompt.


def listing(files: str) -> list[Json]:
    return system(f"You are an agent.\nFiles:\n{files}\nFollow all the rules of this house to the letter.", 3000)


def test_a11_a_file_was_created() -> None:
    before, after = "src/app.py\ntests/test_app.py", "src/app.py\nsrc/new_file.py\ntests/test_app.py"
    rows = [call(0, body(HISTORY, system=listing(before))), call(60, body([*HISTORY, *NEXT], system=listing(after)))]
    found = answers(finished(rows))[2]
    expected = answer("miss", "system_changed", 9710, "/system/0/text", "move_volatile_text", change="environment")
    assert said(found) == expected
    assert "src/new_file.py" in found["diagnosis"]["first_change"]["after"]


def test_a11_a_files_age_between_sessions() -> None:
    before, after = listing("src/app.py (changed 9m ago)"), listing("src/app.py (changed 10m ago)")
    other = [user(text("Another question.", 300))]
    rows = [call(0, body(HISTORY, system=before), trace="s1"), call(60, body(other, system=after), trace="s2")]
    found = answers(finished(rows))[2]
    expected = answer("miss", "system_changed", 6000, "/system/0/text", "move_volatile_text", change="relative_time")
    assert said(found) == expected


# A13: tools that a search loaded are inserted by name.


def test_a13_loaded_tools_are_inserted_by_name() -> None:
    names = "acegikmo"
    old = [tool(f"t_{name}", 500) for name in names]
    new = [tool(f"t_{name}", 500) for name in sorted(names + "blp")]
    catalogue = "You may load: {}. " + RULES
    rows = [
        call(0, body(HISTORY, tools=old, system=system(catalogue.format("b, l, p, x, y, z"), 3000))),
        call(60, body([*HISTORY, *NEXT], tools=new, system=system(catalogue.format("x, y, z"), 3000))),
    ]
    found = answers(finished(rows))[2]
    expected = answer("miss", "tools_changed", 7710, "/tools/1", "stable_tools", change="inserted")
    assert said(found) == expected | {"also": ["system_changed"]}, "both: the list of unloaded tools shrank"
    assert found["diagnosis"]["first_change"]["names"] == ["t_b", "t_l", "t_p"]
    assert found["diagnosis"]["first_change"]["token_offset"] == 500


# A15, A16: compaction requests with another head than the turns before.

ASK = [user(text("Summarise the whole conversation.", 200))]
LONG = [*HISTORY, *rounds(4, 6)]


def test_a15_the_compaction_request_leaves_out_the_tools() -> None:
    absent: list[list[Json] | None] = [None, []]
    for tools in absent:
        rows = [call(0, body(LONG)), call(60, body([*LONG, *ASK], tools=tools), kind="summary")]
        found = answers(finished(rows))[2]
        lost = 2000 + 500 + 9 * 1070
        assert said(found) == answer("miss", "tools_changed", lost, "/tools/0", "stable_tools", change="removed")
        assert "compaction request" in because(found) and "same tools" in because(found)
        assert Decimal(found["diagnosis"]["avoidable_equivalents"]) > 12_000


def test_a16_the_compaction_request_joins_the_system_blocks() -> None:
    words = ["Part one of the rules.", "Part two of the rules.", "Part three."]
    parts = [text(word, 1500) for word in words]
    three, one = [*parts[:2], marked(parts[2])], [marked(text("\n\n".join(words), 4500))]
    for history in (LONG, HISTORY[:1]):
        rows = [
            call(0, body(history, system=three)),
            call(60, body([*history, assistant(text("So.", 20)), *ASK], system=one), kind="summary"),
        ]
        found = answers(finished(rows))[2]
        whole = 3000 + 4500 + 500 + (9 * 1070 if history is LONG else 0)
        assert said(found) == answer(
            "miss", "system_changed", whole, "/system/0", "move_volatile_text", change="structure"
        )


# A19: nothing changed, and yet a miss between two hits.


def test_a19_a_miss_between_two_hits_without_a_change() -> None:
    first = [user(text("Please do the task.", 170_000)), *rounds(1, 1)]
    second, third = [*first, *rounds(2, 1)], [*first, *rounds(2, 2)]
    billed = {"read": 5000, "write_5m": 172_140}
    rows = finished([call(0, body(first)), call(24, body(second), usage=billed), call(264, body(third))])
    found = report(rows)
    middle = found["calls"][1]
    assert said(middle) == answer("partial_miss", "provider_side", 171_070, None, None, status="likely") | {
        "also": ["evicted"]
    }
    assert middle["diagnosis"]["avoidable_equivalents"] is None, "no fix of the client's would have helped"
    assert "nothing in the recorded request explains it" in because(middle)
    assert said(found["calls"][2]) == {"verdict": "hit"}
    assert Decimal(found["what_if"][-1]["saving_equivalents"]) == 0


def test_a19_without_bodies_the_provider_is_among_the_suspects() -> None:
    counts = [(180_000, 178_000), (183_000, 8_000), (185_000, 182_000)]
    rows = [
        {"provider": "openai", "trace": "t", "started_at": f"2026-06-28T10:0{minute}:00Z", "seq": minute + 1,
         "id": f"call-{minute}", "status": 200, "usage": {"input_tokens": total, "read_tokens": read}}
        for minute, (total, read) in enumerate(counts)
    ]  # fmt: skip
    found = answers(rows)
    assert (said(found[2])["cause"], said(found[2])["lost"]) == ("unknown", 172_000)
    assert "provider_side" in said(found[2])["also"]
    assert not {"beyond_lookback", "no_breakpoint"} & set(said(found[2])["also"]), "this provider has neither"
    assert excluded(found[2]) == {"ttl_expired"}, "a minute is shorter than any lifetime of this provider"
    assert "boundary" not in because(found[2])
    assert said(found[1]) == said(found[3]) == {"verdict": "hit"}


# A27: thinking of an earlier turn is left out.

THINKS = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
THOUGHTFUL = [
    user(text("Please do the task.", 500)),
    assistant(thinking("First thought", 400), text("Step 1.", 20), use("toolu_1")),
    user(result("toolu_1", "Output of step 1.", 4000)),
    assistant(thinking("Second thought", 300), text("Step 2.", 20), use("toolu_2")),
    user(result("toolu_2", "Output of step 2.", 4000)),
]


def thoughtless(history: list[Json]) -> list[Json]:
    return [{**one, "content": [block for block in one["content"] if block["type"] != "thinking"]} for one in history]


def test_a27_thinking_of_the_turn_before_is_left_out() -> None:
    rows = [call(0, body(THOUGHTFUL, **THINKS)), call(30, body([*thoughtless(THOUGHTFUL), *NEXT], **THINKS))]
    found = answers(finished(rows))[2]
    expected = answer(
        *("partial_miss", "history_rewritten", 14_340 - 700 - 5000, "/messages/1/content/0", "undo_history_rewrite"),
        change="thinking_stripped",
    )
    assert said(found) == expected


def test_a27_turns_without_thinking_hit() -> None:
    rows = [call(0, body(HISTORY, **THINKS)), call(30, body([*HISTORY, *NEXT], **THINKS))]
    assert said(answers(finished(rows))[2]) == {"verdict": "hit"}


def test_a27_models_that_drop_old_thinking_do_so_themselves() -> None:
    billed = {"read": 5000, "write_5m": 500 + 2 * (4000 + 70) + 350, "dropped": 700}
    for kept in (THOUGHTFUL, thoughtless(THOUGHTFUL)):
        usage = billed if kept is THOUGHTFUL else None
        rows = [
            call(0, body(THOUGHTFUL, model="claude-sonnet-4-5", **THINKS)),
            call(30, body([*kept, *NEXT], model="claude-sonnet-4-5", **THINKS), usage=usage),
        ]
        found = answers(finished(rows))[2]
        expected = answer("partial_miss", "provider_side", 8640, "/messages/1/content/0", None)
        assert said(found) == expected | {"change": "thinking_stripped"}, "nothing the client sends would keep it"
        assert found["agrees"] is True and found["diagnosis"]["rule"]["id"] == "strips_thinking"
