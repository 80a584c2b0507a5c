"""`cachewright serve --rules openai|deepseek`: the usage is what the rules say, in the provider's words."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

from serving import Client, running

Json = dict[str, Any]
LONG = "An instruction that goes on. " * 400


@pytest.fixture(scope="module")
def openai() -> Iterator[Client]:
    with running(model="scripted", rules="openai") as server:
        yield server.client()


@pytest.fixture(scope="module")
def deepseek() -> Iterator[Client]:
    with running(model="scripted", rules="deepseek", sets=("ttl.5m=30",)) as server:
        yield server.client()


def chat(client: Client, model: str, messages: list[Json], **more: Any) -> Json:
    reply = client.post("/v1/chat/completions", {"model": model, "messages": messages, **more})
    assert reply.status == 200, reply.raw
    return {**reply.json, "headers": reply.headers}


def said(text: str) -> list[Json]:
    return [{"role": "system", "content": LONG}, {"role": "user", "content": text}]


def test_openai_writes_at_message_ends_and_reads_them(openai: Client) -> None:
    first = chat(openai, "gpt-6-sol", said("one"))
    details = first["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 0, "cache_write_tokens": first["usage"]["prompt_tokens"]}
    answer = first["choices"][0]["message"]
    second = chat(openai, "gpt-6-sol", [*said("one"), answer, {"role": "user", "content": "two"}])
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"]
    # Another question behind the same instructions: their end is no boundary that was written.
    third = chat(openai, "gpt-6-sol", said("three"))
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert third["headers"]["x-cachewright-cause"] in ("no_breakpoint", "breakpoint_on_volatile")


def test_openai_before_56_reads_any_beginning_in_steps_and_has_no_writes(openai: Client) -> None:
    own = [{"role": "system", "content": "Older. " + LONG}]
    first = chat(openai, "gpt-5.1", [*own, *said("one")[1:]])
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    second = chat(openai, "gpt-5.1", [*own, *said("another")[1:]])
    read = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert read % 128 == 0 and 1024 <= read <= first["usage"]["prompt_tokens"]
    assert second["headers"]["x-cachewright-verdict"] == "hit"


def test_openai_compares_with_an_earlier_response(openai: Client) -> None:
    body: Json = {"model": "gpt-6-sol", "instructions": "R. " + LONG, "input": "one", "prompt_cache_key": "k"}
    first = openai.post("/v1/responses", body).json
    options = {"prompt_cache_options": {"comparison_response_id": first["id"]}}
    effort = openai.post("/v1/responses", {**body, **options, "reasoning": {"effort": "high"}}).json
    assert effort["prompt_cache_diagnostics"]["reason"] == "reasoning_effort_changed"
    again = openai.post("/v1/responses", {**body, **options}).json
    assert again["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert again["usage"]["input_tokens_details"]["cached_tokens"] == again["usage"]["input_tokens"]


def test_deepseek_reads_a_common_beginning_from_the_third_request_on(deepseek: Client) -> None:
    usages = [chat(deepseek, "deepseek-flash", said(word))["usage"] for word in ("b", "c", "d")]
    assert [usage["prompt_cache_hit_tokens"] > 0 for usage in usages] == [False, False, True]
    for usage in usages:
        assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": usage["prompt_cache_hit_tokens"]}


def test_deepseek_reads_through_the_output_that_was_sent_back(deepseek: Client) -> None:
    ask = [{"role": "user", "content": "a question of its own"}]
    first = chat(deepseek, "deepseek-flash", ask)
    longer = [*ask, first["choices"][0]["message"], {"role": "user", "content": "go on"}]
    second = chat(deepseek, "deepseek-flash", longer)
    assert second["usage"]["prompt_cache_hit_tokens"] > first["usage"]["prompt_tokens"]
