"""What the database says about a call, whatever became of it."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxying import Connection, answer, chunks, post, proxied, read_all, read_reply, recorded, upstream

from traces.exchange import Exchange
from traces.schema import Usage

SSE = ("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
HEAD = "HTTP/1.1 200 OK\r\n" + "\r\n".join(SSE) + "\r\n\r\n"


def streamed(
    tmp_path: Path, path: str, *pieces: bytes, request: bytes = b'{"model":"m","stream":true}'
) -> tuple[bytes, Exchange]:
    """What a client got of a stream in these pieces, and what was recorded."""

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(HEAD.encode())
        for piece in chunks(*pieces):
            connection.send(piece)
            time.sleep(0.002)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post(path, request))
        _, body = read_reply(client)
    return body, recorded(tmp_path / "a.db")[-1]


def test_stream_cut_anywhere(tmp_path: Path, shared: Path) -> None:
    case = shared / "cases" / "F01_F02"
    pieces = [bytes.fromhex(line) for line in (case / "chunks.hex").read_text().split()]
    expected = json.loads((case / "expected.json").read_text())
    body, exchange = streamed(tmp_path, "/v1/messages", *pieces)
    assert body == b"".join(pieces) == exchange.response
    call = exchange.call
    assert call is not None
    assert call.response is not None
    assert "".join(block["text"] for block in call.response["content"]) == expected["text"]
    want = expected["usage"]
    assert (call.usage.uncached_tokens, call.usage.write_tokens) == (want["input"], want["write"])
    assert (call.usage.read_tokens, call.usage.output_tokens) == (want["read"], want["output"])


def test_streams_with_and_without_usage(tmp_path: Path, shared: Path) -> None:
    case = shared / "cases" / "F11"
    found = {}
    for name in ("no_usage", "with_usage", "error_before_usage"):
        body = (case / f"{name}.sse").read_bytes()
        got, found[name] = streamed(tmp_path, "/v1/chat/completions", body[:100], body[100:])
        assert got == body
    expected = json.loads((case / "expected.json").read_text())
    for name, exchange in found.items():
        assert exchange.call is not None
        usage, want = exchange.call.usage, expected[name]
        assert exchange.facts["result"] == want.get("status", "complete")
        if "read" in want:
            assert (usage.uncached_tokens, usage.read_tokens, usage.output_tokens) == (80, 1920, 2)
            assert "estimate" not in exchange.facts
        else:
            assert usage == Usage()
            assert exchange.facts["estimate"]["output_tokens"] > 0
    assert "include_usage" in found["no_usage"].facts["hint"]
    assert "hint" not in found["error_before_usage"].facts


START_USAGE = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 10,
    "cache_read_input_tokens": 20,
    "output_tokens": 1,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 0},
}


def event(name: str, end: str = "\n\n", blank: str = " ", **rest: Any) -> bytes:
    """One event of the Messages API; its lines end as the event does."""
    data = json.dumps({"type": name, **rest}, ensure_ascii=False)
    return f"event: {name}{end[: len(end) // 2]}data:{blank}{data}{end}".encode()


def delta(index: int, **rest: Any) -> bytes:
    return event("content_block_delta", index=index, delta=rest)


TOOL = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
MESSAGES = b"".join((
    event("message_start", "\r\n\r\n", message={"id": "msg_1", "model": "m", "usage": START_USAGE}),
    b": comment\n\n",
    event("content_block_start", blank="", index=0, content_block={"type": "text", "text": ""}),
    event("ping", "\r\r"),
    delta(0, type="text_delta", text="価🙂"),
    event("content_block_start", index=1, content_block=TOOL),
    delta(1, type="input_json_delta", partial_json='{"a":'),
    delta(1, type="input_json_delta", partial_json="1}"),
    event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 15, "input_tokens": None}),
    event("message_stop"),
))  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(MESSAGES) - 1), max_size=12, unique=True))
def test_chunk_borders_mean_nothing(tmp_path: Path, cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(MESSAGES)]
    pieces = [MESSAGES[a:b] for a, b in pairwise(ends)]
    db = tmp_path / os.urandom(4).hex()

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(HEAD.encode(), *chunks(*pieces))

    with upstream(handle) as url, proxied(db, url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        assert read_reply(client)[1] == MESSAGES
    (exchange,) = recorded(db)
    assert exchange.response == MESSAGES
    call = exchange.call
    assert call is not None
    assert call.response is not None
    assert call.response["content"] == [
        {"type": "text", "text": "価🙂"},
        {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}},
    ]
    assert call.response["stop_reason"] == "tool_use"
    assert call.usage == Usage(33, 20, 10, 10, 0, 15)
    assert len(exchange.facts["times"]["events_ms"]) == 9


def test_arrival_times(tmp_path: Path) -> None:
    first, rest = MESSAGES[:400], MESSAGES[400:]

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(HEAD.encode(), chunks(first)[0])
        time.sleep(0.3)
        connection.send(*chunks(rest))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        read_reply(client)
    (exchange,) = recorded(tmp_path / "a.db")
    times, call = exchange.facts["times"], exchange.call
    assert call is not None
    assert times["first_byte_ms"] < 250 < 290 < times["first_token_ms"] <= times["end_ms"]
    assert times["events_ms"][0] < 250 < times["events_ms"][-1]
    assert call.first_token_at is not None
    assert call.started_at is not None
    assert 0.29 < (call.first_token_at - call.started_at).total_seconds() < 5


def test_client_leaves(tmp_path: Path) -> None:
    """The upstream is cancelled at once; what came is kept, and the output is an estimate marked as one."""
    gone: list[float] = []

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(HEAD.encode(), chunks(MESSAGES[:-260])[0])
        with suppress(ConnectionResetError):
            connection.socket.recv(1)
        gone.append(time.monotonic())

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy:
        with proxy.client() as client:
            client.sendall(post("/v1/messages", b"{}"))
            data = b""
            while b"partial_json" not in data:
                data += client.recv(2**16)
        left = time.monotonic()
        while not gone:
            time.sleep(0.01)
    assert gone[0] - left < 1
    (exchange,) = recorded(tmp_path / "a.db")
    assert (exchange.outcome, exchange.facts["result"]) == ("client_closed", "aborted")
    assert exchange.call is not None
    assert exchange.call.usage == Usage(33, 20, 10, 10, 0, None)
    assert exchange.facts["estimate"]["output_tokens"] > 0
    assert "characters received / 4" in exchange.facts["estimate"]["method"]


@pytest.mark.parametrize("end", [Connection.reset, lambda connection: connection.socket.close()])
def test_upstream_breaks_off(tmp_path: Path, end: Callable[[Connection], None]) -> None:
    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(HEAD.encode(), chunks(MESSAGES[:-260])[0])
        time.sleep(0.1)
        end(connection)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        told = read_all(client)
    assert MESSAGES[:-260] in told
    assert not told.endswith(b"0\r\n\r\n")
    (exchange,) = recorded(tmp_path / "a.db")
    assert (exchange.outcome, exchange.facts["result"]) == ("upstream_closed", "aborted")


def exchanges_of(tmp_path: Path, *requests: tuple[Any, int], path: str = "/v1/messages") -> list[Exchange]:
    """The record of these bodies, each answered with a status."""
    statuses = [status for _, status in requests]

    def handle(connection: Connection) -> None:
        for status in statuses:
            connection.request()
            connection.send(answer(b'{"id":"m","usage":{"input_tokens":1,"output_tokens":1}}', status=f"{status} X"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        for body, _ in requests:
            client.sendall(post(path, json.dumps(body).encode()))
            read_reply(client)
    return recorded(tmp_path / "a.db")


def said(*texts: str, **rest: Any) -> dict[str, Any]:
    """A Messages body in which user and assistant take turns."""
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(texts)], **rest}


def test_retries_and_fallbacks_are_linked(tmp_path: Path) -> None:
    body = said("hello", stream=True, tools=[])
    stripped = said("hello", tools=[])
    first, again, fallback, after, repeat = exchanges_of(
        tmp_path,
        (body, 529),
        (body, 529),
        (stripped, 200),
        (said("hello", "ok", "more"), 200),
        (said("hello", "ok", "more"), 200),
    )
    links = [one.facts.get("links") for one in (first, again, fallback, after, repeat)]
    assert links[0] is None
    assert links[1] == {"retry_of": first.id}
    assert links[2] == {"fallback_of": again.id, "changed": ["stream"]}
    assert links[3] is None
    assert links[4] == {"repeats": after.id}
    calls = [one.call for one in (first, again, fallback, after)]
    assert [(call.kind, call.attempt) for call in calls if call] == [
        ("main", 1),
        ("retry", 2),
        ("main", 3),
        ("main", 1),
    ]


def test_conversations_interleave(tmp_path: Path) -> None:
    marked = [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]
    bodies = [
        said("one", system="a"),
        said("title?", system="title"),
        {"model": "m", "messages": [{"role": "user", "content": marked}, *said("-", "x", "two")["messages"][1:]]},
        said("title?", "t", "another"),
        said("summary of it all"),
    ]
    found = exchanges_of(tmp_path, *((body, 200) for body in bodies))
    names = [one.conversation for one in found]
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert len(set(names)) == 3


def test_runs_agents_and_kinds(tmp_path: Path) -> None:
    def handle(connection: Connection) -> None:
        for _ in range(4):
            connection.request()
            connection.send(answer(b"{}"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/run/a%20b/agent/scout/v1/messages?beta=true", b'{"max_tokens":0}'))
        read_reply(client)
        client.sendall(post("/v1/messages", b"{}", "X-Claude-Code-Session-Id: s1", "x-claude-code-agent-id: ag"))
        read_reply(client)
        client.sendall(post("/run/c/v1/messages/count_tokens", b"{}", "anthropic-beta: one, two"))
        read_reply(client)
        client.sendall(post("/v1/responses", b'{"prompt_cache_key":"k","model":"g"}'))
        read_reply(client)
    calls = [one.call for one in recorded(tmp_path / "a.db")]
    assert [(one.trace, one.agent, one.kind, one.provider, one.api) for one in calls if one] == [
        ("a b", "scout", "prewarm", "anthropic", "messages"),
        ("s1", "ag", "subagent", "anthropic", "messages"),
        ("c", "main", "count", "anthropic", "messages"),
        ("k", "main", "main", "openai", "responses"),
    ]
    assert calls[2] is not None
    assert calls[2].betas == ("one", "two")


def test_responses_stream(tmp_path: Path) -> None:
    done: dict[str, Any] = {
        "id": "r",
        "output": [],
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2},
    }
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "usage": None}},
        {"type": "response.output_text.delta", "delta": "hi"},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": done},
    ]
    raw = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    _, exchange = streamed(tmp_path, "/v1/responses", *raw)
    call = exchange.call
    assert call is not None
    assert call.response == done | {"output": [item]}
    assert call.usage == Usage(9, 4, None, output_tokens=2)
    _, exchange = streamed(tmp_path, "/v1/responses", *raw[:2])
    assert exchange.facts["result"] == "aborted"
    assert exchange.call is not None
    assert exchange.call.usage == Usage()


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    from harness.errors import BadRoute

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with proxied(tmp_path / "a.db") as proxy:
            import asyncio

            with pytest.raises(BadRoute, match=f"127.0.0.1:{port}: cannot be used"):
                asyncio.run(proxy.proxy.listen("127.0.0.1", port))
