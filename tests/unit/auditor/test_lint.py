"""Each finding of the linter, the legal request next to it, and hostile bodies."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.lint import Finding, as_json, as_text, lint
from localmodel.rules.load import load
from traces.errors import TraceError
from traces.schema import JsonObject

RULES = load("anthropic")
MARK = {"type": "ephemeral"}
MARKED = {"cache_control": MARK}
HOUR = {"type": "ephemeral", "ttl": "1h"}
MODEL = "claude-sonnet-4-5"
LONG = "Read the code with care and change only what was asked for. " * 200


def text(words: str, mark: Any = None) -> JsonObject:
    return {"type": "text", "text": words} | ({} if mark is None else {"cache_control": mark})


def say(role: str, *blocks: JsonObject | str) -> JsonObject:
    return {"role": role, "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def body(*messages: JsonObject, **fields: Any) -> JsonObject:
    return {"model": MODEL, "max_tokens": 10, **fields, "messages": list(messages)}


def findings(request: JsonObject, **kwargs: Any) -> dict[str, Finding]:
    """Findings by code (the last of each); each says what to do."""
    found = lint(request, RULES, moment=None, **kwargs)
    assert all(finding.remedy for finding in found)
    return {finding.code: finding for finding in found}


def errors(request: JsonObject, **kwargs: Any) -> list[str]:
    return [f.code for f in lint(request, RULES, moment=None, **kwargs) if f.severity == "error"]


GOOD = body(say("user", text("Fix the test.", MARK)), system=[text(LONG, HOUR)])


def test_a_good_request_has_no_findings() -> None:
    assert lint(GOOD, RULES, moment=None) == []


def test_order_of_tools_is_not_judged() -> None:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("zeta", "alpha", "mid")]
    assert lint(GOOD | {"tools": tools}, RULES, moment=None) == []


def test_limit_comes_from_the_rules() -> None:
    marked = body(say("user", *(text(str(i), MARK) for i in range(5))), system=[text(LONG)])
    found = findings(marked)["too_many_breakpoints"]
    assert found.paths == tuple(f"/messages/0/content/{i}" for i in range(5))
    assert "5 breakpoints, anthropic allows 4" in found.message
    assert found.rule is not None
    assert found.rule.id == "max_breakpoints"


def test_automatic_needs_a_slot() -> None:
    marks = [text(str(i), MARK) for i in range(4)]
    full = body(say("user", *marks, "last"), cache_control=MARK)
    assert errors(full) == ["automatic_conflict"]
    assert findings(full)["automatic_conflict"].paths[0] == "/cache_control"
    assert errors(body(say("user", *marks[:3], "last"), cache_control=MARK)) == []
    # The last block's own marker with the same lifetime makes automatic caching a no-op.
    assert errors(body(say("user", *marks), cache_control=MARK)) == []
    five = findings(body(say("user", *marks, text("4", MARK), "last"), cache_control=MARK))["too_many_breakpoints"]
    assert five.paths[-1] == "/cache_control"
    assert "6 breakpoints" in five.message


def test_automatic_and_last_block_differ() -> None:
    found = findings(body(say("user", text("a", MARK)), cache_control=HOUR))
    assert found["automatic_conflict"].paths == ("/cache_control", "/messages/0/content/0")


def test_automatic_where_the_platform_has_none() -> None:
    request = body(say("user", LONG), cache_control=MARK)
    assert errors(request) == []
    assert errors(request, platform="bedrock") == ["automatic_conflict"]
    assert "no_breakpoint" in findings(request, platform="bedrock")


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [(MARK, HOUR, ["ttl_order"]), (HOUR, MARK, []), (HOUR, HOUR, []), (MARK, MARK | {"ttl": "5m"}, [])],
)
def test_ttl_order(first: JsonObject, second: JsonObject, codes: list[str]) -> None:
    request = body(say("user", text("a", second)), system=[text(LONG, first)])
    assert errors(request) == codes
    if codes:
        assert findings(request)["ttl_order"].paths == ("/system/0", "/messages/0/content/0")


def test_automatic_hour_behind_five_minutes() -> None:
    request = body(say("user", "a"), system=[text(LONG, MARK)], cache_control=HOUR)
    assert findings(request)["ttl_order"].paths == ("/system/0", "/cache_control")


def test_deferred_tool() -> None:
    tool = {"name": "big", "input_schema": {}, "defer_loading": True}
    assert errors(GOOD | {"tools": [tool]}) == []
    assert findings(GOOD | {"tools": [tool | {"cache_control": MARK}]})["defer_loading_with_cache_control"].paths == (
        "/tools/0",
    )


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (say("assistant", {"type": "thinking", "thinking": "x", "cache_control": MARK}), "/messages/1/content/0"),
        (say("assistant", {"type": "redacted_thinking", "cache_control": MARK}), "/messages/1/content/0"),
        (say("assistant", text("", MARK)), "/messages/1/content/0"),
        (
            say("assistant", text("a") | {"citations": [{"cited_text": "b"}, {"cache_control": MARK}]}),
            "/messages/1/content/0/citations/1",
        ),
        ({"role": "assistant", "content": "a", "cache_control": MARK}, "/messages/1"),
        (
            say("user", {"type": "tool_result", "content": [{"type": "search_result", "content": [text("a", MARK)]}]}),
            "/messages/1/content/0/content/0/content/0",
        ),
    ],
)
def test_unmarkable(message: JsonObject, path: str) -> None:
    request = body(say("user", text(LONG, MARK)), message)
    assert errors(request) == ["marker_on_unmarkable"]
    assert findings(request)["marker_on_unmarkable"].paths == (path,)


@pytest.mark.parametrize(
    ("outer", "inner"), [({"type": "tool_result"}, "content"), ({"type": "document"}, "source/content")]
)
def test_marker_inside(outer: JsonObject, inner: str) -> None:
    def request(*items: JsonObject) -> JsonObject:
        content = {"content": list(items)}
        return body(say("user", outer | (content if inner == "content" else {"source": content})), system=LONG)

    assert errors(request(text("a"), text("b", MARK))) == []
    wrong = findings(request(text("a", MARK), text("b")))["marker_inside_tool_result"]
    assert wrong.paths == (f"/messages/0/content/0/{inner}/0",)
    assert "inner block 1 of 2" in wrong.message


def test_a_field_called_cache_control_is_data() -> None:
    call = {"type": "tool_use", "input": {"cache_control": "no-store", "content": [{"cache_control": 1}]}}
    schema = {"properties": {"cache_control": {"type": "string"}}}
    assert errors(GOOD | {"tools": [{"name": "http", "input_schema": schema}]}) == []
    assert errors(body(say("assistant", call), say("user", text(LONG, MARK)))) == []


@pytest.mark.parametrize(
    "mark", ["ephemeral", 5, True, [], {}, {"type": "x"}, MARK | {"ttl": "2h"}, MARK | {"ttl": []}]
)
def test_invalid_marker(mark: Any) -> None:
    assert errors(body(say("user", text(LONG, mark)))) == ["invalid_marker"]
    assert errors(body(say("user", text(LONG)), cache_control=mark)) == ["invalid_marker"]


def test_a_null_marker_is_none() -> None:
    assert set(findings(body(say("user", text(LONG) | {"cache_control": None})))) == {"no_breakpoint"}


def test_no_breakpoint() -> None:
    found = findings(body(say("user", LONG)))
    assert set(found) == {"no_breakpoint"}
    assert found["no_breakpoint"].severity == "warning"
    assert set(findings(body(say("user", LONG), cache_control=MARK))) == set()


def test_below_minimum() -> None:
    short = findings(body(say("user", text("hi", MARK))))["below_minimum"]
    assert short.severity == "warning"
    assert "1,024" in short.message
    assert "10 %" not in short.message
    assert short.rule is not None
    assert short.rule.id == "min_tokens"
    # What stands behind the last breakpoint does not count.
    assert "below_minimum" in findings(body(say("user", text("hi", MARK), LONG)))


@pytest.mark.parametrize(("words", "severity"), [(80, "warning"), (88, "info")])
def test_close_to_the_minimum(words: int, severity: str) -> None:
    sentence = "Read the code with care and change only what was asked. "
    found = findings(body(say("user", text(sentence * words, MARK))))["below_minimum"]
    assert found.severity == severity, found.message
    assert "within 10 % of the minimum" in found.message


def test_unknown_model_is_an_info() -> None:
    found = findings(GOOD | {"model": "claude-unheard-of"})
    assert [(code, finding.severity) for code, finding in found.items()] == [("below_minimum", "info")]


def test_moment_chooses_the_minimum() -> None:
    request = body(say("user", text(LONG[:7000], MARK)), model="claude-sonnet-4-6")
    old = lint(request, RULES, moment=datetime(2026, 5, 1, tzinfo=UTC))
    assert [finding.code for finding in old] == ["below_minimum"]
    assert lint(request, RULES, moment=datetime(2026, 6, 1, tzinfo=UTC)) == []


REMINDER = "<system-reminder>The todo list is empty.</system-reminder>"


@pytest.mark.parametrize(
    "message",
    [
        say("system", text("Be brief.", MARK)),
        {"role": "user", "content": [text("Go on."), text(REMINDER, MARK)]},
        say("user", "Go on.", text("It is 23:59:40", MARK)),
        say("user", text("Go on.\nCurrent time: 23:59:40", MARK)),
        say("user", "Go on.", text("session-8f3a2b1c", MARK)),
    ],
)
def test_marker_on_volatile_tail(message: JsonObject) -> None:
    request = body(say("user", text(LONG, MARK)), say("assistant", "Yes."), message)
    last = f"/messages/2/content/{len(message['content']) - 1}"
    assert findings(request)["marker_on_volatile_tail"].paths == (last,)


@pytest.mark.parametrize(
    "message",
    [
        say("user", text("What broke on 2026-06-17?", MARK)),
        say("user", {"type": "tool_result", "content": "now 2026-06-17T23:59:40Z", "cache_control": MARK}),
        say("user", text("Go on.", MARK), REMINDER),
        say("user", text("Go on.", MARK), "Current time: 23:59:40"),
    ],
)
def test_stable_tail(message: JsonObject) -> None:
    request = body(say("user", text(LONG, MARK)), say("assistant", "Yes."), message)
    assert lint(request, RULES, moment=None) == []


def test_automatic_marker_on_a_reminder() -> None:
    request = body(say("user", LONG, REMINDER), cache_control=MARK)
    assert findings(request)["marker_on_volatile_tail"].paths == ("/messages/0/content/1",)


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ("Today's date: Wed Jun 17 2026", "clock_in_prefix", "Wed Jun 17 2026"),
        ("Started 2026-06-17.", "clock_in_prefix", "2026-06-17"),
        ("Epoch 1781733580", "clock_in_prefix", "1781733580"),
        ("Last edit 5m ago", "relative_time_in_prefix", "5m ago"),
        ("Run 123e4567-e89b-12d3-a456-426614174000", "id_in_prefix", "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_volatile_prefix(words: str, code: str, shown: str) -> None:
    last = say("user", text("Go.", MARK))
    for request, path, offset in (
        (body(last, system=[text(LONG + words)]), "/system/0/text", len(LONG)),
        (body(last, system=LONG + words), "/system", len(LONG)),
        (body(say("user", text(words), text(LONG, MARK))), "/messages/0/content/0/text", 0),
        (body(last, system=LONG, tools=[{"name": "a/b", "description": words}]), "/tools/0/description", 0),
        (
            body(last, system=LONG, tools=[{"input_schema": {"properties": {"a/b": {"description": words}}}}]),
            "/tools/0/input_schema/properties/a~1b/description",
            0,
        ),
    ):
        found = findings(request)
        assert set(found) - {"marker_on_volatile_tail"} == {code}
        assert found[code].paths == (path,)
        assert f"character {offset + words.index(shown)}" in found[code].message
        assert f'"{shown}"' in found[code].message


@pytest.mark.parametrize(
    "words",
    [
        "You are claude-sonnet-4-5-20250929, version 1.2.3; cite lines 10-25 as app.py:10:20.",
        "Dates look like 2026-06-17. Write times, e.g. 23:59:40 or 3 hours ago.",
        "Knowledge cutoff date: 2025-01-31. Send anthropic-version: 2023-06-01.",
        "Use the format 2026-06-17 for the current date.",
    ],
)
def test_fixed_text_is_left_alone(words: str) -> None:
    assert lint(body(say("user", text("Go.", MARK)), system=words + LONG), RULES, moment=None) == []


def test_a_clock_behind_the_last_breakpoint_is_the_cure_not_the_illness() -> None:
    clock = "Current time: 23:59:40"
    assert lint(body(say("user", "Go."), system=[text(LONG, MARK), text(clock)]), RULES, moment=None) == []
    assert lint(body(say("user", text(LONG, MARK), clock)), RULES, moment=None) == []
    # Without any breakpoint it would stand in front of the one that is missing.
    assert set(findings(body(say("user", "Go."), system=clock))) == {"no_breakpoint", "clock_in_prefix"}
    # Later messages are history: they stay as they are.
    later = body(say("user", LONG), say("assistant", "Yes."), say("user", clock, text("Go.", MARK)))
    assert lint(later, RULES, moment=None) == []


def test_many_clocks_in_one_text_are_one_finding() -> None:
    log = "\n".join(f"12:00:{second:02} ok" for second in range(60))
    found = findings(body(say("user", text("Go.", MARK)), system=LONG + log))
    assert "and 59 more" in found["clock_in_prefix"].message


def turn(blocks: int, *, mark_old: bool = False, parallel: bool = False) -> JsonObject:
    """A request whose newest turn adds `blocks` blocks to the previous request."""
    kind: JsonObject = {"type": "tool_result", "content": "ok"} if parallel else text("more")
    news = [*({**kind} for _ in range(blocks - 2)), text("end", MARK)]
    old = text(LONG, MARK if mark_old else None)
    return body(say("user", "first", old), say("assistant", "Yes."), say("user", *news))


def test_lookback_risk() -> None:
    found = findings(turn(20))["lookback_risk"]
    assert found.paths == ("/messages/2/content/18", "/messages/0/content/1")
    assert "position 21 " in found.message
    assert "looks at 20" in found.message
    assert findings(turn(19)) == {}
    assert findings(turn(60, mark_old=True)) == {}


def test_a_run_of_tool_results_is_one_position_where_the_platform_says_so() -> None:
    assert findings(turn(60, parallel=True)) == {}
    assert set(findings(turn(60, parallel=True), platform="bedrock")) == {"lookback_risk"}


def test_lookback_number_comes_from_the_rules() -> None:
    class Narrow:
        def at(self, model: str, platform: str, moment: datetime | None) -> Any:
            return replace(RULES.at(model, platform, moment), lookback=3)

    assert [f.code for f in lint(turn(4), Narrow(), moment=None)] == ["lookback_risk"]


# ---- hostile bodies -------------------------------------------------------------------------------------------


def test_ten_thousand_marked_blocks() -> None:
    many = [text(f"{number}", MARK if number % 2 else HOUR) for number in range(10_000)]
    assert errors(body(say("user", *many))) == ["too_many_breakpoints", "ttl_order"]
    assert all(len(f.message) < 5000 for f in lint(body(say("user", *many)), RULES, moment=None))


def test_deep_nesting() -> None:
    deep: Any = "end"
    for _ in range(100_000):
        deep = {"content": [deep]}
    with pytest.raises(TraceError):
        lint(body(say("user", {"type": "tool_result", "content": [deep]})), RULES, moment=None)
    shallow: Any = "2026-06-17"
    for _ in range(400):
        shallow = [shallow]
    request = GOOD | {"tools": [{"name": "x", "description": shallow}]}
    assert list(findings(request)) == ["clock_in_prefix"]


KEYS = st.sampled_from(
    ["type", "text", "content", "source", "citations", "cache_control", "name", "defer_loading", "ttl", "data", "role"]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(
        ["text", "thinking", "tool_result", "document", "user", "ephemeral", "1h", "2026-06-17", "\ud800", ""]
    ),
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5))
BLOCKS = st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=4) | JSON
MESSAGES = st.lists(st.fixed_dictionaries({"role": LEAVES, "content": BLOCKS}, optional={"cache_control": JSON}))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"messages": MESSAGES | JSON},
        optional={"tools": BLOCKS, "system": BLOCKS, "cache_control": JSON, "model": JSON, "tool_choice": JSON},
    )
)
def test_no_body_raises_anything_but_the_projects_error(request: JsonObject) -> None:
    try:
        found = lint(request, RULES, moment=None)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    lines = as_text("a.json", found)
    assert lines.count("\n") == len(found)
    lines.encode()
    json.dumps(as_json("a.json", found))
