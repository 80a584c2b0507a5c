"""Streams put together, and what is sent back, in each dialect."""

from itertools import pairwise
from typing import Any

import pytest

from harness.dialects.chat import Chat
from harness.dialects.messages import Messages
from harness.dialects.responses import Responses
from harness.providers.targets import hosted, target
from harness.wire import Dialect, Head, Result, ToolCall, ToolSpec, chained
from traces.canonical import dump

Json = dict[str, Any]
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"b": {}, "a": {}}})
DIALECTS: list[Dialect] = [Messages(), Chat(), Chat(deepseek=True), Responses()]


def fed(dialect: Dialect, events: list[Json]) -> tuple[Json, str]:
    assembly = dialect.assembly()
    text = "".join(assembly.feed(event) for event in events)
    return assembly.response, text


def delta(index: int, **members: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": members}


def test_messages_thinking_text_and_calls() -> None:
    dialect = Messages()
    events: list[Json] = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "cache_read_input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="thinking_delta", thinking="m"),
        delta(0, type="signature_delta", signature="sig"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        delta(1, type="text_delta", text="a"),
        delta(1, type="text_delta", text="b"),
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2,
         "content_block": {"type": "tool_use", "id": "t", "name": "add", "input": {}}},
        delta(2, type="input_json_delta", partial_json='{"b":'),
        delta(2, type="input_json_delta", partial_json='2,"a":1}'),
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"},
         "usage": {"output_tokens": 9, "cache_read_input_tokens": None}},
    ]  # fmt: skip
    response, text = fed(dialect, events)
    assert text == "ab"
    assert response["usage"] == {"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 9}
    turn = dialect.answer(response)
    assert turn.items[0]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert list(dialect.calls(turn)[0].arguments or {}) == ["b", "a"]  # the order that the model chose
    assert dialect.stop(response) == "tools"
    assert [block["type"] for block in dialect.without_thinking(turn).items[0]["content"]] == ["text", "tool_use"]


def test_messages_a_call_that_the_limit_cut() -> None:
    dialect = Messages()
    block = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    response, _ = fed(dialect, [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        delta(0, type="input_json_delta", partial_json='{"a": "lon'),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
    ])  # fmt: skip
    assert dialect.calls(dialect.answer(response)) == [ToolCall("t", "add", None, '{"a": "lon')]
    assert dialect.stop(response) == "length"


def test_chat_pieces_of_calls_and_reasoning() -> None:
    dialect = Chat(deepseek=True)

    def chunk(**part: Any) -> Json:
        return {"id": "c", "choices": [{"index": 0, "delta": part, "finish_reason": None}]}

    first = {"index": 0, "id": "t", "function": {"name": "add", "arguments": '{"a"'}}
    response, text = fed(dialect, [
        chunk(role="assistant", reasoning_content="hm"),
        chunk(content="a"), chunk(content="b"),
        chunk(tool_calls=[first]), chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2}},
    ])  # fmt: skip
    assert text == "ab"
    turn = dialect.answer(response)
    assert turn.items[0]["reasoning_content"] == "hm"
    assert dialect.calls(turn) == [ToolCall("t", "add", {"a": 1}, '{"a": 1}')]
    assert dialect.stop(response) == "tools"
    assert response["usage"]["prompt_cache_hit_tokens"] == 5


def test_responses_keeps_output_verbatim() -> None:
    dialect = Responses()
    reasoning = {"type": "reasoning", "id": "r", "encrypted_content": "x", "summary": []}
    call = {"type": "function_call", "id": "f", "call_id": "t", "name": "add", "arguments": '{"a": 1}'}
    done = {"id": "resp", "status": "completed", "output": [reasoning, call], "usage": {"input_tokens": 3}}
    response, text = fed(dialect, [
        {"type": "response.created", "response": {"id": "resp", "status": "in_progress", "output": []}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_item.done", "item": reasoning},
        {"type": "response.completed", "response": done},
    ])  # fmt: skip
    assert text == "a"
    turn = dialect.answer(response)
    assert list(turn.items) == [reasoning, call]
    assert dialect.calls(turn) == [ToolCall("t", "add", {"a": 1}, '{"a": 1}')]
    assert dialect.without_thinking(turn) == turn  # a call may not be sent without the reasoning it came with
    assert dialect.stop(response) == "tools"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: f"{one!r}")
def test_a_longer_body_begins_with_the_bytes_of_a_shorter_one(dialect: Dialect) -> None:
    head = Head(dialect.head("m", "system", [ADD], "s"))
    call = ToolCall("t", "add", {})
    turns = [dialect.user("one"), dialect.user("two"), dialect.results([Result(call, "3", failed=True)])]
    bodies = [dump(dialect.body(head, turns[:n], 10, stream=True, marks={})) for n in range(1, 4)]
    if dialect.api == "chat":  # messages stand in front of the limit here too
        assert all(b'"messages"' in body for body in bodies)
    for short, long in pairwise(bodies):
        cut = short.index(b',"max_')
        assert long.startswith(short[: cut - 1])
    assert chained(turns) == chained(list(turns)) != chained(turns[:2])


def test_markers_change_no_other_byte() -> None:
    dialect = Messages()
    head = Head(dialect.head("m", "system", [ADD], "s"))
    turns = [dialect.user("one"), dialect.user("two")]
    plain = dump(dialect.body(head, turns, 10, stream=True, marks={}))
    marks = {"/tools/0": "1h", "/system/0": "1h", "/messages/1/content/0": "5m"}
    marked = dump(dialect.body(head, turns, 10, stream=True, marks=marks))  # type: ignore[arg-type]
    short, hour = b',"cache_control":{"type":"ephemeral"}', b',"cache_control":{"type":"ephemeral","ttl":"1h"}'
    assert (marked.count(short), marked.count(hour)) == (1, 2)
    assert marked.replace(hour, b"").replace(short, b"") == plain


@pytest.mark.parametrize(
    ("text", "name", "path", "key", "deepseek"),
    [
        ("https://api.openai.com/v1/chat/completions", "openai", "/chat/completions", "OPENAI_API_KEY", False),
        ("https://eu.api.openai.com/v1/responses", "openai", "/responses", "OPENAI_API_KEY", False),
        ("https://api.deepseek.com/chat/completions", "deepseek", "/chat/completions", "DEEPSEEK_API_KEY", True),
        ("https://api.deepseek.com/anthropic", "deepseek", "/v1/messages", "DEEPSEEK_API_KEY", False),
        ("http://127.0.0.1:8377/v1/chat/completions", "openai", "/chat/completions", "OPENAI_API_KEY", False),
        ("http://127.0.0.1:8377", "anthropic", "/v1/messages", "ANTHROPIC_API_KEY", False),
        ("https://notdeepseek.com/chat/completions", "openai", "/chat/completions", "OPENAI_API_KEY", False),
    ],
)
def test_a_url_is_its_owners_api_where_that_is_known(text: str, name: str, path: str, key: str, deepseek: bool) -> None:
    found = target(text)
    assert (found.name, found.path, found.key_variable) == (name, path, key)
    assert getattr(found.dialect, "deepseek", False) == deepseek
    assert (hosted(found.host) is None) == (name not in text.replace("notdeepseek", ""))
