"""Tokens, canonical form and mapping: what may differ between two requests without being another prompt."""

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")

from hypothesis import given
from hypothesis import strategies as st

from localmodel.server import from_chat, from_responses
from localmodel.server.errors import BadRequest
from localmodel.server.minimal import minimal
from localmodel.server.pieces import detokenise, tokenise
from localmodel.server.render import Rendered, caller, render
from localmodel.server.scripted import ScriptedBackend

Json = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
LATE = {**TOOL, "name": "late", "defer_loading": True}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc=1"}


def rendered(body: Json) -> Rendered:
    return render({"model": "m", **body}, ScriptedBackend(), caller("k"))


def same(one: Json, two: Json) -> bool:
    first, second = rendered(one), rendered(two)
    return first.prompt.chain == second.prompt.chain and list(first.tokens) == list(second.tokens)


def talk(*blocks: Any, role: str = "user") -> Json:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@given(st.text())
def test_tokens_are_reversible(text: str) -> None:
    tokens = tokenise(text)
    assert detokenise(tokens) == text
    assert all(0 < token < 2**63 for token in tokens)


def test_tokens_are_pieces_of_words() -> None:
    assert [detokenise([token]) for token in tokenise("Hello tokenisers,\n\tyou!")] == [
        "Hello", " tokeni", "sers", ",", "\n\t", "you", "!"]  # fmt: skip


def test_ends_are_exact_sums_of_block_tokens() -> None:
    found = rendered({**talk({"type": "text", "text": "Hi there."}), "system": "Be brief.", "tools": [TOOL]})
    assert list(found.counts) == ["/tools/0", "/system", "/messages/0/content/0"]
    assert found.prompt.total == sum(found.counts.values()) == len(found.tokens)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (talk({"type": "text", "text": "x", **MARK}), talk({"type": "text", "text": "x"})),
        ({"messages": [{"role": "user", "content": "x"}]}, talk({"text": "x", "type": "text", "citations": None})),
        (
            talk({"type": "tool_result", "tool_use_id": "t", "content": "x"}),
            talk({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x", **MARK}]}),
        ),
        (
            {**talk("x"), "tools": [{**TOOL, "type": "custom", "eager_input_streaming": True}]},
            {**talk("x"), "tools": [dict(reversed(TOOL.items()))]},
        ),
        (
            {**talk("x"), "system": [BILLING, {"type": "text", "text": "s"}]},
            {**talk("x"), "system": [{"type": "text", "text": "s"}]},
        ),
        (
            {**talk("x"), "tools": [LATE, TOOL, {"name": "DeferredToolPlaceholder"}]},
            {**talk("x"), "tools": [TOOL]},
        ),
        ({**talk("x"), "metadata": {"user_id": "1"}, "safeguards": 1}, talk("x")),
    ],
)  # fmt: skip
def test_what_is_the_same_prompt(one: Json, two: Json) -> None:
    assert same(one, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (talk({"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1, "b": 2}}, role="assistant"),
         talk({"type": "tool_use", "id": "t", "name": "n", "input": {"b": 2, "a": 1}}, role="assistant")),
        (talk({"type": "text", "text": "x"}), talk({"type": "text", "text": "x"}, role="assistant")),
        ({**talk("x"), "tools": [TOOL]}, talk("x")),
        (talk({"type": "image", "source": {"data": "AA"}}), talk({"type": "image", "source": {"data": "AB"}})),
    ],
)  # fmt: skip
def test_what_is_another_prompt(one: Json, two: Json) -> None:
    assert rendered(one).prompt.chain != rendered(two).prompt.chain


def test_a_loaded_tool_stands_where_it_was_loaded() -> None:
    inner = {"type": "tool_reference", "tool_name": "late"}
    reference = {"type": "tool_result", "tool_use_id": "t", "content": [inner]}
    messages = [{"role": "user", "content": "find it"}]
    before = rendered({"messages": messages, "tools": [TOOL]})
    after = rendered({"messages": [*messages, {"role": "user", "content": [reference]}], "tools": [LATE, TOOL]})
    assert after.prompt.chain[: len(before.prompt.chain)] == before.prompt.chain
    bare = rendered({"messages": [*messages, {"role": "user", "content": [reference]}], "tools": [TOOL]})
    assert after.prompt.total > bare.prompt.total + 5


def test_counts_point_into_the_body_as_sent() -> None:
    found = rendered({**talk("x"), "system": [BILLING, {"type": "text", "text": "s"}]})
    assert found.counts["/system/0"] == 0 < found.counts["/system/1"]


def test_a_system_message_stays_in_its_place() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "system", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    }
    assert [block.role for block in rendered(body).prompt.blocks] == ["user", "system", "user"]
    empty = {"messages": [*body["messages"], {"role": "system", "content": [], "output_config": {"effort": "low"}}]}
    assert same(body, empty)


# ---- OpenAI --------------------------------------------------------------------------------------------------

CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"b": 1, "a": 2}}
MESSAGES = {
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [TOOL],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I will."}, CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
        {"role": "system", "content": [{"type": "text", "text": "Mind the units."}]},
    ],
}


def chat(arguments: str) -> Json:
    function = {"name": "add", "description": "Adds.", "parameters": TOOL["input_schema"]}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {
        "model": "m",
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Add."}]},
            {"role": "assistant", "content": "I will.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "system", "content": "Mind the units."},
        ],
    }


def responses(arguments: str) -> Json:
    return {
        "model": "m",
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": TOOL["input_schema"]}],
        "input": [
            {"role": "user", "content": "Add."},
            {
                "type": "message",
                "id": "i1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I will."}],
            },
            {"type": "function_call", "id": "i2", "call_id": "c1", "name": "add", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"role": "developer", "content": [{"type": "input_text", "text": "Mind the units."}]},
        ],
    }


@pytest.mark.parametrize("spelling", ['{"b":1,"a":2}', '{ "b": 1,\n "a": 2 }', '{"\\u0062": 1, "a": 2}'])
def test_three_dialects_of_one_conversation_are_one_prompt(spelling: str) -> None:
    expected = rendered(MESSAGES).prompt.chain
    assert rendered(from_chat.messages_body(chat(spelling))).prompt.chain == expected
    assert rendered(from_responses.messages_body(responses(spelling))).prompt.chain == expected


def test_openai_requests_get_one_breakpoint_at_the_end_unless_they_mark() -> None:
    body = from_chat.messages_body(chat("{}"))
    prompt = rendered(body).prompt
    assert (prompt.automatic, prompt.marks) == ("5m", ())
    sent = chat("{}")
    sent["messages"][1]["content"][0]["prompt_cache_breakpoint"] = {"mode": "explicit"}
    sent["prompt_cache_options"] = {"mode": "explicit"}
    prompt = rendered(from_chat.messages_body(sent)).prompt
    assert (prompt.automatic, [mark.index for mark in prompt.marks]) == (None, [2])


def test_only_the_latest_explicit_breakpoints_count() -> None:
    parts = [{"type": "text", "text": f"{n}", "prompt_cache_breakpoint": {"mode": "explicit"}} for n in range(6)]
    body = from_chat.messages_body({"model": "m", "messages": [{"role": "user", "content": parts}]})
    assert [mark.index for mark in rendered(body).prompt.marks] == [3, 4, 5]


@pytest.mark.parametrize("body", [{"messages": 1}, {"messages": []}, {"messages": [1]}, {"messages": [{"role": "x"}]},
                                  {"messages": [{"role": "user", "content": 5}]}])  # fmt: skip
def test_broken_chat_bodies_are_refused(body: Json) -> None:
    with pytest.raises(BadRequest):
        from_chat.messages_body(body)


# ---- least values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        (None, {}),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": ["null", "boolean"]}}}, {"a": False}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"const": 5}}}, 5),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 2}]}, 3),
        ({"type": "integer", "maximum": -4}, -4),
    ],
)
def test_least_values(schema: Any, value: Any) -> None:
    assert minimal(schema) == value


def test_a_schema_that_holds_itself_ends() -> None:
    schema = {"type": "object", "required": ["a", "b"], "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}
    assert len(json.dumps(minimal(schema))) < 100_000
