"""The server over plain HTTP: what the three dialects send back, what they refuse, and who may share what."""

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from serving import Client, Running, message

Json = dict[str, Any]
LONG = "word " * 100
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    path = serving.script(folder, {"match": "stop here", "text": "One STOP two."}, context_window=20_000)
    with serving.running(script=path, sets=["min_tokens=20"]) as found:
        yield found


@pytest.fixture
def client(server: Running, request: pytest.FixtureRequest) -> Client:
    """Each test has a key, and so a cache, of its own."""
    return server.client(request.node.name)


def usage_of(reply: serving.Reply) -> Json:
    assert reply.status == 200, reply.raw
    found: Json = reply.json["usage"]
    return found


# ---- dialects ------------------------------------------------------------------------------------------------


def test_messages_stream_is_the_full_named_sequence(client: Client) -> None:
    tool = {"name": "go", "input_schema": {"type": "object"}}
    reply = client.post("/v1/messages", message('call go with {"far": true}', stream=True, tools=[tool]))
    names = [name for name, _ in reply.events]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert all(data["type"] == name for name, data in reply.events)
    start, end = reply.events[0][1]["message"]["usage"], reply.events[-2][1]
    four = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert {name: end["usage"][name] for name in four} == {name: start[name] for name in four}
    assert end["usage"]["output_tokens"] > 0
    assert end["delta"]["stop_reason"] == "tool_use"
    assert start["cache_creation"]["ephemeral_5m_input_tokens"] == start["cache_creation_input_tokens"] > 0


def test_streamed_and_whole_replies_are_equal(client: Client) -> None:
    whole = client.post("/v1/messages", message("Say it again, please."))
    streamed = client.post("/v1/messages", message("Say it again, please.", stream=True))
    text = "".join(data["delta"]["text"] for name, data in streamed.events if name == "content_block_delta")
    assert [{"type": "text", "text": text}] == whole.json["content"]
    assert streamed.events[-2][1]["usage"]["output_tokens"] == whole.json["usage"]["output_tokens"]


def test_the_same_request_gets_the_same_answer(client: Client, tmp_path: Path) -> None:
    body = message('call go with {"far": true}', tools=[{"name": "go", "input_schema": {"type": "object"}}])
    with serving.running() as other:
        replies = [one.post("/v1/messages", body).json for one in (client, client, other.client())]
    assert replies[0]["content"] == replies[1]["content"] == replies[2]["content"]
    assert len({reply["id"] for reply in replies}) == 3


def test_one_call_in_both_families_has_one_total(client: Client) -> None:
    """As case D06_D07: whole and remainder name the same tokens, reads are the same, what is unknown is absent."""
    chat = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    cold = usage_of(client.post("/v1/chat/completions", chat))
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": cold["prompt_tokens"]}
    warm = usage_of(client.post("/v1/chat/completions", chat))
    assert warm["prompt_tokens_details"]["cached_tokens"] == cold["prompt_tokens"]
    other = usage_of(client.post("/v1/messages", message(LONG)))
    assert other["cache_read_input_tokens"] == warm["prompt_tokens_details"]["cached_tokens"]
    assert sum(other[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_")) == warm["prompt_tokens"]
    response = usage_of(client.post("/v1/responses", {"model": "m", "input": LONG}))
    assert response["input_tokens_details"]["cached_tokens"] == response["input_tokens"] == warm["prompt_tokens"]
    assert "prompt_cache_hit_tokens" not in warm


def test_codex_and_chat_streams_end_as_clients_need_it(client: Client) -> None:
    names = [name for name, _ in client.post("/v1/responses", {"model": "m", "input": "Hi.", "stream": True}).events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-2:] == ["response.output_item.done", "response.completed"]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "stream": True}
    plain = client.post("/v1/chat/completions", body)
    assert plain.events[-1][1]["choices"][0]["finish_reason"] == "stop"
    assert plain.raw.endswith(b"data: [DONE]\n\n")
    asked = client.post("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert asked.events[-1][1]["choices"] == [] and asked.events[-1][1]["usage"]["prompt_tokens"] > 0


def test_a_forced_tool_gets_the_least_its_schema_allows(client: Client) -> None:
    schema = {
        "type": "object",
        "required": ["path", "lines", "mode"],
        "properties": {
            "path": {"type": "string", "minLength": 2},
            "lines": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 3}},
            "mode": {"enum": ["r", "w"]},
            "more": {"type": "string"},
        },
    }
    forced = {"tools": [{"name": "open", "input_schema": schema}], "tool_choice": {"type": "tool", "name": "open"}}
    content = client.post("/v1/messages", message("anything", **forced)).json["content"]
    assert [block["input"] for block in content] == [{"path": "xx", "lines": [3], "mode": "r"}]


def test_a_tool_result_gets_a_sentence_and_what_follows_it_counts(client: Client) -> None:
    tools = [{"type": "function", "function": {"name": "go", "parameters": {}}}]
    call = {"id": "c", "type": "function", "function": {"name": "go", "arguments": "{}"}}
    rows = [
        {"role": "user", "content": "call go with {}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
    path, again = "/v1/chat/completions", {"role": "user", "content": 'call go with {"far": 1}, and then rest'}
    answer = client.post(path, {"model": "m", "tools": tools, "messages": rows}).json["choices"][0]
    assert (answer["finish_reason"], "tool has answered" in answer["message"]["content"]) == ("stop", True)
    answer = client.post(path, {"model": "m", "tools": tools, "messages": [*rows, again]}).json["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"far":1}'


def test_stop_sequences_and_max_tokens(client: Client) -> None:
    stopped = client.post("/v1/messages", message("stop here", stop_sequences=["STOP"])).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "STOP")
    assert stopped["content"][0]["text"] == "One "
    short = client.post("/v1/messages", message("stop here", max_tokens=2)).json
    assert (short["stop_reason"], short["usage"]["output_tokens"]) == ("max_tokens", 2)
    assert client.post("/v1/messages", message("stop here", max_tokens=128_000)).status == 200


def test_a_prewarm_writes_and_answers_nothing(client: Client) -> None:
    body = message(LONG, max_tokens=0)
    first = client.post("/v1/messages", body).json
    assert (first["content"], first["stop_reason"], first["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert usage_of(client.post("/v1/messages", message(LONG)))["cache_read_input_tokens"] > 100
    refused = client.post("/v1/messages", {**body, "stream": True})
    assert refused.status == 400 and "max_tokens 0" in refused.json["error"]["message"]


def test_the_providers_own_diagnosis(client: Client) -> None:
    first = client.post("/v1/messages", message(LONG, diagnostics={"previous_message_id": None})).json
    assert first["diagnostics"] is None
    named = {"diagnostics": {"previous_message_id": first["id"]}}
    assert client.post("/v1/messages", message(LONG, **named)).json["diagnostics"] is None
    changed = client.post("/v1/messages", message(LONG, system="Be brief.", **named)).json["diagnostics"]
    assert changed["cache_miss_reason"]["type"] == "system_changed"
    assert changed["cache_miss_reason"]["cache_missed_input_tokens"] == first["usage"]["cache_creation_input_tokens"]
    unknown = message(LONG, diagnostics={"previous_message_id": "msg_none"})
    reason = client.post("/v1/messages", unknown).json["diagnostics"]["cache_miss_reason"]
    assert reason == {"type": "previous_message_not_found"}
    assert (
        client.post("/v1/messages", {**message(LONG, **named), "model": "other"}).json["diagnostics"][
            "cache_miss_reason"
        ]["type"]
        == "model_changed"
    )


def test_openai_comparison(client: Client) -> None:
    first = client.post("/v1/responses", {"model": "m", "input": LONG}).json
    options = {"prompt_cache_options": {"comparison_response_id": first["id"]}}
    same = client.post("/v1/responses", {"model": "m", "input": LONG, **options}).json
    assert same["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    other = client.post("/v1/responses", {"model": "m", "input": LONG, "prompt_cache_key": "k", **options}).json
    assert other["prompt_cache_diagnostics"]["reason"] == "prompt_cache_key_changed"


# ---- paths, keys, refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/p/claude", "/run/v1-test"])
def test_prefixes_queries_and_encodings(client: Client, prefix: str) -> None:
    body = json.dumps(message("Hello.")).encode()
    assert client.send("POST", f"{prefix}/v1/messages?beta=true", body).status == 200
    assert (
        client.send("POST", f"{prefix}/v1/messages/", zlib.compress(body), {"content-encoding": "deflate"}).status
        == 200
    )
    assert client.get(f"{prefix}/v1/models?limit=1000").json["object"] == "list"
    assert client.get(f"{prefix}/v1/models", {"anthropic-version": "2026-10-21"}).json["first_id"] == "scripted"
    assert client.send("HEAD", f"{prefix}/api/hello").status == 404
    assert client.get("/openapi.json").json["paths"].keys() > set(PATHS)


def test_what_the_fuzzer_found(client: Client) -> None:
    """Each was found by tests/e2e/test_serve_fuzz.py, in the order of these lines."""
    for path, allowed in (("/v1/messages", "POST"), ("/metrics", "GET, HEAD")):
        reply = client.send("PATCH", path)
        assert (reply.status, sorted(reply.headers["allow"].split(", "))) == (405, allowed.split(", "))
    nameless = {"type": "tool", "name": {}}
    assert client.post("/v1/messages", message("x", tool_choice=nameless)).status == 400
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert (
        client.post("/v1/chat/completions", {**chat, "tool_choice": {"type": "function", "function": nameless}}).status
        == 400
    )
    assert client.post("/v1/messages", message("x", max_tokens=5.0)).json["usage"]["output_tokens"] <= 5
    assert client.post("/v1/messages", message("x", max_tokens=5.5)).status == 400


def test_what_the_real_api_refuses(client: Client) -> None:
    def refusal(body: Json) -> str:
        reply = client.post("/v1/messages", body)
        error = reply.json
        assert (reply.status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
        assert error["request_id"].startswith("req_")
        return str(error["error"]["message"])

    marker = {"type": "ephemeral"}
    hour = {**marker, "ttl": "1h"}
    system = [{"type": "text", "text": "Be brief.", "cache_control": marker}]
    late_hour = message("Hi.", system=system)
    late_hour["messages"][0]["content"][0]["cache_control"] = hour
    assert "1h breakpoint follows a 5m one" in refusal(late_hour)
    assert "differ in TTL" in refusal(message("Hi.", cache_control=hour))
    four = [{"type": "text", "text": f"part {n}", "cache_control": marker} for n in range(4)]
    assert "5 breakpoints" in refusal({**message("Hi."), "system": four})
    assert "'5m' or '1h'" in refusal(message("Hi.", cache_control={**marker, "ttl": "2h"}))
    assert "not among the tools" in refusal(message("Hi.", tool_choice={"type": "tool", "name": "x"}))
    too_long = refusal(message("word " * 30_000))
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 20000 maximum", too_long)


def test_fields_that_nobody_knows_are_not_refused(client: Client) -> None:
    body = message("Hi.", thinking={"type": "between_tools", "display": "updates"}, safeguards=[1], temperature=9)
    body["messages"] += [
        {"role": "assistant", "content": [{"type": "quite_new", "x": {"y": 1}}, {"type": "text", "text": "Yes."}]},
        {"role": "system", "content": [], "output_config": {"effort": "medium"}},
        {"role": "user", "content": "Go on."},
    ]
    headers = {"anthropic-beta": "made-up-2030-01-01,other", "anthropic-version": "2026-10-21"}
    assert client.post("/v1/messages?beta=true", body, headers).status == 200
    items = [{"type": "quite_new", "id": "x"}, {"type": "reasoning", "content": None, "encrypted_content": "abc"}]
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    request = {"model": "m", "input": [{"role": "user", "content": "Hi."}, *items], "tools": tools, "include": ["x"]}
    assert client.post("/v1/responses", request).status == 200


def test_keys_are_demanded_and_keep_callers_apart(tmp_path: Path) -> None:
    with serving.running(api_keys=["one", "two"], sets=["min_tokens=20"]) as found:
        one, two = found.client("one"), Client(found.url)
        bearer = {"authorization": "Bearer two"}
        assert usage_of(one.post("/v1/messages", message(LONG)))["cache_creation_input_tokens"] > 100
        alone = two.post("/v1/messages", message(LONG), bearer)
        assert usage_of(alone)["cache_read_input_tokens"] == 0
        # Nothing tells the second that the first has sent the same.
        assert alone.headers["x-cachewright-cause"] == "cold_write"
        assert usage_of(two.post("/v1/messages", message(LONG), bearer))["cache_read_input_tokens"] > 100
        assert len(one.calls()) == 1
        other = message(LONG, diagnostics={"previous_message_id": one.calls()[0]["id"]})
        told = two.post("/v1/messages", other, bearer).json["diagnostics"]
        assert told == {"cache_miss_reason": {"type": "previous_message_not_found"}}
        for path in (*PATHS, "/v1/models", "/metrics", "/cachewright/calls"):
            method, body = ("POST", b"{}") if path in PATHS else ("GET", None)
            reply = two.send(method, path, body, {"x-api-key": "three"})
            assert reply.status == 401 and b"one" not in reply.raw.split(b"message")[0]


def test_a_prompt_cache_key_is_a_namespace(client: Client) -> None:
    body = {"model": "m", "input": LONG, "prompt_cache_key": "first"}
    usage_of(client.post("/v1/responses", body))
    assert usage_of(client.post("/v1/responses", body))["input_tokens_details"]["cached_tokens"] > 100
    other = client.post("/v1/responses", {**body, "prompt_cache_key": "second"})
    assert usage_of(other)["input_tokens_details"]["cached_tokens"] == 0
    assert other.headers["x-cachewright-cause"] == "scope_changed"
