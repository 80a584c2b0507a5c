"""Negative controls: what clients do every day and no cache suffers from. A false accusation is worse than a miss."""

import copy
from typing import Any

import pytest
from answers import accused, answers, because, said
from script import assistant, call, finished, image, marked, result, rounds, tail_marked, text, tool, use, user

Json = dict[str, Any]

TOOLS = [tool(f"tool_{number}", 1000) for number in range(3)]
RULES = [marked(text("Follow all the rules of this house.", 2000))]
BARE_RULES = [text("Follow all the rules of this house.", 2000)]
HISTORY = [user(text("Please do the task.", 500)), *rounds(1, 3)]
GROWN = [*HISTORY, *rounds(4, 1)]
GROWN_MORE = [*GROWN, *rounds(5, 1)]
DONE = assistant(text("Done.", 50))


def body(messages: list[Json], **rest: Any) -> Json:
    return {"tools": TOOLS, "system": RULES, "messages": tail_marked(messages)} | rest


def verdicts(rows: list[Json]) -> list[str]:
    return [one["verdict"] for one in answers(rows).values()]


# Within one conversation.


def files(count: int) -> list[Json]:
    """A turn that adds more blocks than a breakpoint looks back over."""
    return [assistant(text("Reading.", 20)), user(*(text(f"File {number}.", 300) for number in range(count)))]


def test_the_old_marker_is_kept_across_many_blocks() -> None:
    first = [user(text("Please do the task.", 3000))]
    kept = tail_marked([*first, *files(25)])
    kept[0] = user(marked(first[0]["content"][0]))
    rows = finished([call(0, body(first)), call(30, {**body(first), "messages": kept})])
    assert verdicts(rows) == ["cold_write", "hit"] and accused(rows) == {}


def test_a_hit_after_more_than_the_lifetime_accuses_nobody() -> None:
    rows = finished([call(0, body(HISTORY)), call(335, body(GROWN), usage={"read": 8710, "write_5m": 1070})])
    assert verdicts(rows) == ["cold_write", "hit"] and accused(rows) == {}


def test_only_the_marker_moves() -> None:
    rows = [call(0, body(HISTORY)), call(30, body(HISTORY, system=BARE_RULES)), call(60, body(GROWN))]
    assert accused(finished(rows)) == {}


def test_going_back_to_an_earlier_message() -> None:
    fork = [*HISTORY, assistant(text("Otherwise.", 40)), user(text("No, do this instead.", 200))]
    long = [*HISTORY, *rounds(4, 4)]
    rows = [call(0, body(HISTORY)), call(30, body(long)), call(60, body(fork)), call(90, body([*fork, *rounds(20, 1)]))]
    assert accused(finished(rows)) == {}
    rows = finished([call(0, body(long)), call(60, body(fork))])
    assert accused(rows) == {2: "no_breakpoint"}, "no call ended at the fork: nobody rewrote anything"


def test_the_last_prompt_is_worded_anew() -> None:
    first, second = (user(text(words, 300)) for words in ("The first wording of it.", "Something else entirely."))
    rows = [call(0, body(HISTORY)), call(20, body([*HISTORY, DONE, first])), call(40, body([*HISTORY, DONE, second]))]
    assert accused(finished(rows)) == {}


def test_cleared_and_started_anew() -> None:
    topic = [user(text("Another topic.", 300))]
    rows = [
        call(0, body(HISTORY)),
        call(30, body(GROWN)),
        call(60, body(topic)),
        call(90, body([*topic, *rounds(9, 1)])),
    ]
    assert accused(finished(rows)) == {}


LONG = [*HISTORY, *rounds(4, 17)]
SUMMARY = [user(text("Summary of all so far.", 2500))]
ASK = user(text("Summarise the conversation.", 100))


def test_compaction_with_a_summary() -> None:
    rows = [
        call(0, body(LONG)),
        call(30, body([*LONG, DONE, ASK]), kind="summary"),
        call(60, body(SUMMARY)),
        call(90, body([*SUMMARY, *rounds(60, 1)])),
    ]
    assert accused(finished(rows)) == {}


@pytest.mark.parametrize("kept", [12, 30])
def test_turns_kept_behind_a_summary_are_sent_again_once(kept: int) -> None:
    shortened = [*SUMMARY, *LONG[-kept:], *rounds(60, 1)]
    rows = [call(0, body(LONG)), call(60, body(shortened)), call(90, body([*shortened, *rounds(70, 1)]))]
    found = answers(finished(rows))
    assert said(found[2]) == {
        "verdict": "partial_miss", "cause": "compaction", "status": "established", "lost": kept // 2 * 1070,
        "change": "edited", "path": "/messages/0/content/0/text", "policy": None, "also": [],
    }  # fmt: skip
    assert said(found[3]) == {"verdict": "hit"}


def test_the_api_clears_old_results() -> None:
    asks = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    billed = {"read": 5000, "write_5m": 9000, "dropped": 13_970}
    rows = [call(0, body(LONG, **asks)), call(60, body([*LONG, *rounds(60, 1)], **asks), usage=billed)]
    found = answers(finished(rows))[2]
    assert (said(found)["cause"], said(found)["status"], said(found)["policy"]) == ("compaction", "likely", None)
    assert "context_management" in because(found)


def test_the_client_clears_old_results() -> None:
    old = [user(text("Please do the task.", 500)), assistant(use("toolu_1"))]
    old.append(user(result("toolu_1", "A long output that nobody needs any more. " * 20, 1000)))
    new = copy.deepcopy(old)
    new[2] = user(result("toolu_1", "[cleared]", 20))
    rows = [call(0, body([*old, *rounds(2, 6)])), call(60, body([*new, *rounds(2, 7)]))]
    found = said(answers(finished(rows))[2])
    assert (found["cause"], found["change"]) == ("history_rewritten", "tool_result_cleared")
    assert (found["lost"], found["path"]) == (500 + 50 + 6 * 1070, "/messages/2/content/0/content/0/text")


def test_retries_of_the_same_body() -> None:
    rows = [call(0, body(HISTORY)), call(30, body(HISTORY), kind="retry", attempt=2), call(60, body(HISTORY))]
    assert verdicts(finished(rows)) == ["cold_write", "hit", "hit"]


def test_calls_while_the_first_still_streams() -> None:
    rows = [call(0, body(HISTORY), first_s=2, length_s=60), call(10, body(GROWN)), call(20, body(GROWN_MORE))]
    assert accused(finished(rows)) == {}


def test_failed_calls_between() -> None:
    broken = body(GROWN, system=[marked(text("Another prompt.", 2000))])
    rows = [
        *(call(0, body(HISTORY)), call(20, body(GROWN), status=529), call(25, broken, status=429)),
        *(call(40, body(GROWN)), call(60, body(GROWN_MORE))),
    ]
    assert verdicts(finished(rows)) == ["cold_write", "unknown", "unknown", "hit", "hit"]


def test_keep_alives_and_a_warm_up() -> None:
    warm = {"tools": TOOLS, "system": RULES, "messages": [user(text("warm", 5))], "max_tokens": 0}
    rows = [
        *(call(0, warm, kind="prewarm"), call(20, body(HISTORY)), call(290, body(HISTORY), kind="keepalive")),
        *(call(560, body(HISTORY), kind="keepalive"), call(700, body(GROWN))),
    ]
    assert accused(finished(rows)) == {}


def test_entries_of_an_hour() -> None:
    def at(history: list[Json]) -> Json:
        system = [marked(text("Follow all the rules of this house.", 2000), "1h")]
        return {"tools": TOOLS, "system": system, "messages": tail_marked(history, "1h")}

    rows = [call(0, at(HISTORY)), call(2000, at(GROWN)), call(4000, at(GROWN_MORE))]
    assert accused(finished(rows)) == {}


def test_the_first_image_starts_the_messages_anew() -> None:
    seen = [*HISTORY, DONE, user(text("See this.", 20), image("AAAA"))]
    found = answers(finished([call(0, body(HISTORY)), call(30, body(seen)), call(60, body([*seen, *rounds(9, 1)]))]))
    answer = said(found[2])
    assert (answer["cause"], answer["path"], answer["lost"]) == ("parameter_changed", "/images", 3710)
    assert said(found[3]) == {"verdict": "hit"}


def test_tool_search_appends_references() -> None:
    tools = [*TOOLS, tool("deferred", 500, defer_loading=True)]
    reference = [{"type": "tool_reference", "tool_name": "deferred"}]
    found = {"type": "tool_result", "tool_use_id": "toolu_s", "content": reference, "#": 60}
    searched = [*HISTORY, assistant(use("toolu_s")), user(found)]
    rows = [
        call(30 * n, body(one, tools=tools)) for n, one in enumerate((HISTORY, searched, [*searched, *rounds(9, 1)]))
    ]
    assert accused(finished(rows)) == {}


def test_server_tools() -> None:
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search", "#": 300}]
    asked = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}, "#": 40}
    hits = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [], "#": 5000}
    searched = [*HISTORY, assistant(asked, hits, text("Found.", 100)), user(text("Go on.", 30))]
    rows = [
        call(30 * n, body(one, tools=tools)) for n, one in enumerate((HISTORY, searched, [*searched, *rounds(9, 1)]))
    ]
    assert accused(finished(rows)) == {}


# Several conversations.


def test_one_shot_requests_with_one_head() -> None:
    questions = [[user(text(f"Question {number} of another kind.", 400))] for number in range(4)]
    assert accused(finished([call(30 * n, body(one)) for n, one in enumerate(questions)])) == {}
    slow = finished([call(400 * n, body(one, system=BARE_RULES)) for n, one in enumerate(questions)])
    assert accused(slow) == {}, "no entry would have lived that long"
    fast = finished([call(30 * n, body(one, system=BARE_RULES)) for n, one in enumerate(questions)])
    assert set(accused(fast).values()) == {"breakpoint_on_volatile"}, "here a marker behind the rules would help"


def test_title_generation_between() -> None:
    def title(number: int, tokens: int) -> Json:
        asked = [user(text(f"The conversation so far, {number}.", tokens))]
        return {"system": [text("Write a title.", 200)], "messages": tail_marked(asked)}

    rows = []
    for number, history in enumerate((HISTORY, GROWN, GROWN_MORE)):
        rows += [call(30 * number, body(history)), call(30 * number + 5, title(number, 3000))]
    assert accused(finished(rows)) == {}
    small = [call(0, body(HISTORY)), call(5, title(1, 300), model="claude-haiku-4-5"), call(30, body(GROWN))]
    assert accused(finished(small)) == {2: "below_minimum"}


REVIEWER = [marked(text("You review pull requests and say what is wrong with them.", 3000))]
ASKED = [user(text("Review this.", 400))]


@pytest.mark.parametrize("labels", [{"agent": "reviewer", "kind": "subagent", "parent": "call-1"}, {}])
@pytest.mark.parametrize("head", [{"system": REVIEWER}, {"system": REVIEWER, "tools": TOOLS[:2]}])
def test_two_agents_with_prompts_of_their_own(labels: Json, head: Json) -> None:
    rows = [
        *(call(0, body(HISTORY)), call(20, body(ASKED, **head), **labels), call(40, body(GROWN))),
        call(60, body([*ASKED, *rounds(9, 1)], **head), **labels),
    ]
    assert accused(finished(rows)) == {}


def test_agents_made_from_one_template() -> None:
    prompts = [
        [marked(text(f"You are helper {number} of the house, and follow all its rules.", 3000))] for number in "12"
    ]
    rows = [call(20 * n, body(ASKED, system=prompt), agent=f"helper-{n}") for n, prompt in enumerate(prompts)]
    assert accused(finished(rows)) == {}, "an agent's own prompt is no change"


def test_another_model_for_another_agent() -> None:
    rows = [call(0, body(HISTORY)), call(20, body(HISTORY, model="claude-opus-5"), agent="helper", parent="call-1"),
            call(40, body(GROWN))]  # fmt: skip
    assert accused(finished(rows)) == {}


def test_sub_agents_start_from_their_parent() -> None:
    rows = [
        call(0, body(HISTORY)),
        call(20, body([*HISTORY, DONE, user(text("You do this.", 400))]), agent="a", kind="subagent", parent="call-1"),
        call(40, body([user(text("You do that.", 400))]), agent="b", kind="subagent", parent="call-1"),
    ]
    assert accused(finished(rows)) == {}


def test_the_head_of_a_session_long_over_has_run_out() -> None:
    rows = finished([call(0, body(HISTORY), trace="s1"), call(3000, body(ASKED), trace="s2")])
    assert verdicts(rows) == ["cold_write", "cold_write"] and accused(rows) == {}


def test_sessions_in_other_folders() -> None:
    prompts = [[marked(text(f"You are a coder. Work in /home/u/{name}. Be brief.", 2000))] for name in ("one", "two")]
    rows = [call(0, body(HISTORY, system=prompts[0]), trace="s1"), call(9, body(ASKED, system=prompts[1]), trace="s2")]
    assert accused(finished(rows)) == {}


# What was not recorded.


def test_a_trace_that_starts_in_the_middle() -> None:
    rows = finished([call(0, body(HISTORY), usage={"read": 7640, "write_5m": 1070}), call(30, body(GROWN))])
    assert accused(rows) == {}
    for row in rows:
        del row["tokens"]
    assert verdicts(rows) == ["hit", "hit"] and accused(rows) == {}


@pytest.mark.parametrize("response", [None, {"id": "msg", "type": "message", "usage": None}])
def test_usage_is_not_known(response: Json | None) -> None:
    rows = finished([call(0, body(HISTORY)), call(30, body(GROWN)), call(60, body(GROWN_MORE))])
    rows[1]["response"] = response
    assert verdicts(rows) == ["cold_write", "unknown", "hit"] and accused(rows) == {}


def test_calls_in_another_order_than_they_started() -> None:
    rows = finished([call(0, body(HISTORY)), call(30, body(GROWN)), call(60, body(GROWN_MORE))])
    assert accused([rows[2], rows[0], rows[1]]) == {}


def test_two_traces_in_one_file() -> None:
    rows = []
    for number, history in enumerate((HISTORY, GROWN, GROWN_MORE)):
        rows.append(call(30 * number, body(history), trace="s1"))
        other = [user(text("Quite another thing.", 400)), *history[1:]]
        rows.append(call(30 * number + 9, body(other, system=REVIEWER), trace="s2"))
    assert accused(finished(rows)) == {}
