"""The server under time and load: simultaneous calls, silence, clients that leave, full queues, hostile bodies."""

import json
import random
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from serving import Client, Running, message

from localmodel.server.settings import Limits

Json = dict[str, Any]
LONG = "word " * 100
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    slow = {"match": "slowly", "text": "Here it is at last.", "delay_ms": 300}
    endless = {"match": "endless", "text": "again " * 2000, "piece_ms": 20}
    path = serving.script(tmp_path_factory.mktemp("server"), slow, endless, context_window=20_000)
    # A ping each tenth of a second and small limits, so that waiting and refusing are quick to see.
    limits = Limits(body_bytes=200_000, slots=4, queue=8, ping_s=0.1)
    with serving.running(limits, script=path, sets=["min_tokens=20"]) as found:
        yield found


@pytest.fixture
def client(server: Running, request: pytest.FixtureRequest) -> Client:
    """Each test has a key, and so a cache, of its own."""
    return server.client(request.node.name)


def usage_of(reply: serving.Reply) -> Json:
    assert reply.status == 200, reply.raw
    found: Json = reply.json["usage"]
    return found


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


def test_two_cold_requests_at_once_both_write(client: Client) -> None:
    replies: list[serving.Reply] = []
    body = message(f"Answer slowly. {LONG * 3}" + "more " * 800)
    threads = [threading.Thread(target=lambda: replies.append(client.post("/v1/messages", body))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [usage_of(reply)["cache_read_input_tokens"] for reply in replies] == [0, 0]
    assert all(usage_of(reply)["cache_creation_input_tokens"] > 1024 for reply in replies)
    causes = sorted(reply.headers["x-cachewright-cause"] for reply in replies)
    assert causes == ["cold_write", "not_yet_readable"]
    assert usage_of(client.post("/v1/messages", body))["cache_read_input_tokens"] > 1024


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("/v1/messages", message("slowly"), "ping"),
        ("/v1/responses", {"model": "m", "input": "slowly"}, "response.in_progress"),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "slowly"}]}, ""),
    ],
)
def test_a_silent_stream_shows_signs_of_life(client: Client, path: str, body: Json, sign: str) -> None:
    names = [name for name, _ in client.post(path, {**body, "stream": True}).events]
    assert names.count(sign) >= 2
    assert names.index(sign) <= 1


def test_a_client_that_leaves_frees_its_slot(server: Running, client: Client) -> None:
    for stream in (True, False):
        raw = json.dumps(message("endless", stream=stream, max_tokens=5000)).encode()
        connection = socket.create_connection((urlsplit(client.url).hostname, urlsplit(client.url).port))
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {client.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        assert until(lambda: server.service.gate.running == 1)
        connection.close()
        assert until(lambda: server.service.gate.running == 0)
    ended = client.calls()
    assert [call["status"] for call in ended] == [200, 200]
    assert all(call["output_tokens"] == 0 and call["ended_at"] for call in ended)


def test_who_leaves_before_the_response_begins_writes_nothing(server: Running, client: Client) -> None:
    body = message(f"slowly {LONG}")
    raw = json.dumps(body).encode()
    connection = socket.create_connection((urlsplit(client.url).hostname, urlsplit(client.url).port))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {client.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    assert until(lambda: server.service.gate.running == 1)
    connection.close()
    assert until(lambda: client.calls()[0]["status"] == 499)
    assert client.post("/v1/messages", body).headers["x-cachewright-cause"] == "cold_write"


def test_a_full_queue_turns_away_and_counting_goes_on(tmp_path: Path) -> None:
    path = serving.script(tmp_path, {"text": "Done.", "delay_ms": 500})
    with serving.running(Limits(slots=1, queue=1), script=path) as found:
        client = found.client()
        threads = [threading.Thread(target=client.post, args=["/v1/messages", message("Hi.")]) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert until(lambda: found.service.gate.waiting == 1)
        refused = client.post("/v1/messages", message("Hi."))
        assert (refused.status, refused.json["error"]["type"]) == (529, "overloaded_error")
        chat = client.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi."}]})
        assert (chat.status, chat.headers["retry-after"], set(chat.json["error"])) == (
            503, "1", {"message", "type", "param", "code"})  # fmt: skip
        assert client.post("/v1/messages/count_tokens", message("Hi.")).json["input_tokens"] > 0
        for thread in threads:
            thread.join()


def test_stopping_lets_replies_end_and_cuts_the_rest_with_an_error(tmp_path: Path) -> None:
    replies: list[serving.Reply] = []
    quick, long = {"match": "quick", "text": "Done.", "delay_ms": 200}, {"text": "on " * 999, "piece_ms": 50}
    path, record = serving.script(tmp_path, quick, long), tmp_path / "calls.jsonl"
    with serving.running(Limits(grace_s=0.6), script=path, record=record) as found:
        client = found.client()

        def ask(text: str) -> None:
            replies.append(client.post("/v1/messages", message(text, stream=True)))

        threads = [threading.Thread(target=ask, args=[text]) for text in ("quick", "long")]
        for thread in threads:
            thread.start()
        assert until(lambda: found.service.gate.running == 2)
    for thread in threads:
        thread.join()
    assert [reply.events[-1][0] for reply in replies] == ["message_stop", "error"]
    requests = found.service.metrics.requests
    assert (requests["messages", 200], requests["messages", 529]) == (1, 1)
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["response"]["stop_reason"] for row in rows] == ["end_turn", None]


def test_metrics_count_what_happened(client: Client) -> None:
    client.post("/v1/messages", message(LONG))
    client.post("/v1/messages", {})
    page = client.get("/metrics").raw.decode()
    assert re.search(r'^cachewright_requests_total\{api="messages",status="200"\} \d+$', page, re.M)
    assert re.search(r'^cachewright_requests_total\{api="messages",status="400"\} \d+$', page, re.M)
    assert re.search(r'^cachewright_tokens_total\{class="write"\} [1-9]\d*$', page, re.M)
    count = re.search(r"^cachewright_ttft_seconds_count (\d+)$", page, re.M)
    top = re.search(r'^cachewright_ttft_seconds_bucket\{le="\+Inf"\} (\d+)$', page, re.M)
    assert count and top and count[1] == top[1]


def hostile(rng: random.Random, depth: int = 0) -> Any:
    words = ["", "text", "type", "role", "user", "tool_result", "\ud800", "\x00", "thinking", "content", "x" * 300]
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 6:
        return [None, True, -1, 2**80, 1.5, rng.choice(words)][kind]
    if kind == 6:
        return [hostile(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = ["type", "text", "role", "content", "tools", "name", "input_schema", "cache_control", "source", "function"]
    return {rng.choice(names): hostile(rng, depth + 1) for _ in range(rng.randrange(5))}


def test_hostile_bodies_never_break_the_server(server: Running, client: Client) -> None:
    rng = random.Random(7)
    fields = ["model", "messages", "input", "tools", "system", "max_tokens", "stream", "tool_choice", "stop",
              "cache_control", "output_config", "thinking", "diagnostics", "instructions", "text", "prompt_cache_key",
              "prompt_cache_options", "response_format", "stop_sequences", "stream_options"]  # fmt: skip
    seen = set()
    for number in range(600):
        path = PATHS[number % 4]
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}], "input": "Hi."}
        body |= {rng.choice(fields): hostile(rng) for _ in range(rng.randrange(1, 3))}
        if number % 3 == 0:
            blocks = [hostile(rng), {"type": rng.choice(["text", "tool_result", "tool_use"]), "content": hostile(rng)}]
            body["messages"] = [{"role": rng.choice(["user", "assistant", "tool"]), "content": blocks}]
            body["input"] = [{"type": "message", "role": "user", "content": blocks}, hostile(rng)]
        reply = client.post(path, body)
        assert reply.status < 500, (path, body, reply.raw)
        seen.add(reply.status)
    assert {200, 400} <= seen
    raw = [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model":' * 2000, b'{"a":NaN}', b'"' + b"a" * 90]
    deep = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[' + b'{"type":"x","a":' * 900
    nested = deep + b"1" + b"}" * 900 + b"]}]}"
    for path in PATHS:
        assert client.send("POST", path, nested).status < 500
        for one in raw:
            assert client.send("POST", path, one).status == 400
    assert client.send("POST", PATHS[0], b"x" * 200_001).status == 413
    bomb = zlib.compress(b" " * 10**7)
    assert client.send("POST", PATHS[0], bomb, {"content-encoding": "gzip"}).status == 413
    assert client.send("POST", PATHS[0], b"{}", {"content-encoding": "br"}).status == 415
    assert until(lambda: server.service.gate.running == 0)
    assert client.post("/v1/messages", message("Still there?")).status == 200
