"""Both vendors' SDKs hold a session with a tool call against the server, and their second turn hits."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

ASK = 'Please call add with {"a": 1, "b": [2, 3]}'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LONG = "You are helpful. " * 40
ARGUMENTS = {"a": 1, "b": [2, 3]}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving.running(sets=["min_tokens=50"]) as server:
        yield server.url


@pytest.fixture
def claude(url: str) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="the SDK is not installed")
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(url: str) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="the SDK is not installed")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(claude: Any, stream: bool) -> None:
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    common: Json = {
        "model": f"claude-{stream}",
        "max_tokens": 1000,
        "system": system,
        "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
        "cache_control": {"type": "ephemeral"},
    }

    def turn(messages: list[Json]) -> Any:
        if not stream:
            return claude.messages.create(messages=messages, **common)
        with claude.messages.stream(messages=messages, **common) as events:
            return events.get_final_message()

    messages: list[Json] = [{"role": "user", "content": ASK}]
    first = turn(messages)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("add", ARGUMENTS)
    assert first.usage.cache_read_input_tokens == 0
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "6"}
    second = turn([*messages, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}])
    assert second.stop_reason == "end_turn"
    assert "tool has answered" in second.content[0].text
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens > 50
    assert second.usage.input_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_chat(gpt: Any, stream: bool) -> None:
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    common: Json = {"model": f"gpt-chat-{stream}", "tools": [{"type": "function", "function": function}]}

    def turn(messages: list[Json]) -> Any:
        if not stream:
            return gpt.chat.completions.create(messages=messages, **common)
        options = {"include_usage": True}
        with gpt.chat.completions.stream(messages=messages, stream_options=options, **common) as events:
            for _ in events:
                pass
            return events.get_final_completion()

    messages: list[Json] = [{"role": "developer", "content": LONG}, {"role": "user", "content": ASK}]
    first = turn(messages)
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS
    # As langchain sends it back: another spacing of the same arguments.
    spaced = {
        "id": call.id,
        "type": "function",
        "function": {"name": "add", "arguments": json.dumps(ARGUMENTS, indent=1)},
    }
    messages.append({"role": "assistant", "content": first.choices[0].message.content, "tool_calls": [spaced]})
    second = turn([*messages, {"role": "tool", "tool_call_id": call.id, "content": "6"}])
    assert second.choices[0].finish_reason == "stop"
    read = second.usage.prompt_tokens_details.cached_tokens
    assert read == first.usage.prompt_tokens > 50
    assert second.usage.prompt_tokens == read + second.usage.prompt_tokens_details.cache_write_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_responses(gpt: Any, stream: bool) -> None:
    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": False}]
    common: Json = {"model": f"gpt-responses-{stream}", "instructions": LONG, "tools": tools, "store": False}

    def turn(items: list[Any]) -> Any:
        if not stream:
            return gpt.responses.create(input=items, **common)
        with gpt.responses.stream(input=items, **common) as events:
            for _ in events:
                pass
            return events.get_final_response()

    items: list[Any] = [{"role": "user", "content": ASK}]
    first = turn(items)
    assert first.status == "completed"
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == ARGUMENTS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "6"}
    second = turn([*items, *[item.model_dump(exclude_none=True) for item in first.output], result])
    assert "tool has answered" in second.output_text
    read = second.usage.input_tokens_details.cached_tokens
    assert read == first.usage.input_tokens > 50


def test_models_and_counts(claude: Any, gpt: Any) -> None:
    assert [model.id for model in claude.models.list()] == ["scripted", "claude-scripted"]
    assert [model.id for model in gpt.models.list()] == ["scripted", "claude-scripted"]
    assert claude.models.retrieve("scripted").display_name == "scripted"
    messages = [{"role": "user", "content": "How many?"}]
    counted = claude.messages.count_tokens(model="m", messages=messages).input_tokens
    assert counted == claude.messages.create(model="m", max_tokens=9, messages=messages).usage.input_tokens


def test_errors_reach_the_sdks_as_theirs(claude: Any, gpt: Any) -> None:
    import anthropic
    import openai

    blocks = [{"type": "text", "text": f"part {n}", "cache_control": {"type": "ephemeral"}} for n in range(5)]
    with pytest.raises(anthropic.BadRequestError, match="5 breakpoints, anthropic allows 4"):
        claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": blocks}])
    with pytest.raises(openai.BadRequestError, match="keeps no responses"):
        gpt.responses.create(model="m", input="x", previous_response_id="resp_1")
