"""What real clients send and how they take the answers: sent for real over HTTP, one rule of compatibility a test."""

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from serving import Client, Running, message

from localmodel.server.errors import Overloaded
from localmodel.server.model import Claimed, Event, Generation
from localmodel.server.scripted import ScriptedBackend
from localmodel.server.settings import Limits

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]
LONG = "word " * 100
CHAT: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
ALL = [
    ("/v1/messages", message("Hi.")),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"model": "m", "input": "Hi."}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving.running(sets=["min_tokens=20"]) as found:
        yield found


@pytest.fixture
def client(server: Running, request: pytest.FixtureRequest) -> Client:
    """Each test has a key, and so a cache, of its own."""
    return server.client(request.node.name)


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


# ---- tools ---------------------------------------------------------------------------------------------------

NAMESPACE = {"type": "namespace", "name": "mcp__x", "tools": [{"type": "function", "name": "go", "parameters": {}}]}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}}


def test_only_what_the_client_can_run_is_called(client: Client) -> None:
    """Codex offers namespaces and web_search beside its functions; a call of those would reach nobody."""
    body = {"model": "m", "input": "x", "tools": [NAMESPACE, {"type": "web_search"}, SHELL], "tool_choice": "required"}
    (item,) = client.post("/v1/responses", body).json["output"]
    assert (item["type"], item["name"]) == ("function_call", "shell")
    (item,) = client.post("/v1/responses", {**body, "input": "call mcp__x with {}", "tool_choice": "auto"}).json[
        "output"
    ]
    assert item["type"] == "message"
    # A demand that only the provider's machines could meet is no error, and is answered in words.
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    for choice in ({"type": "any"}, {"type": "tool", "name": "web_search"}):
        reply = client.post("/v1/messages", message("x", tools=[hosted], tool_choice=choice))
        assert [block["type"] for block in reply.json["content"]] == ["text"]
    bash = {"type": "bash_20250124", "name": "bash"}
    reply = client.post("/v1/messages", message("x", tools=[hosted, bash], tool_choice={"type": "any"}))
    assert [block["name"] for block in reply.json["content"]] == ["bash"]


def test_null_and_empty_text_beside_calls_are_one_prompt(client: Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "go", "arguments": "{}"}}

    def usage(content: str | None) -> Json:
        rows = [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
        found: Json = client.post("/v1/chat/completions", {"model": "m", "messages": rows}).json["usage"]
        return found

    usage(None)
    same = usage("")
    assert same["prompt_tokens_details"]["cached_tokens"] == same["prompt_tokens"] > 100


# ---- streams -------------------------------------------------------------------------------------------------


def test_data_is_one_line_to_clients_that_split_by_splitlines(tmp_path: Path) -> None:
    """As all on httpx's `iter_lines` do, LiteLLM and so aider among them."""
    text = "a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1e e\r\n f"
    with serving.running(script=serving.script(tmp_path, {"text": text})) as found:
        for path, body in ALL:
            reply = found.client().post(path, {**body, "stream": True})
            lines = [line for line in reply.raw.decode().splitlines() if line]
            assert all(line.startswith(("event: ", "data: ")) for line in lines), path
            told = "".join(json.dumps(data, ensure_ascii=False) for _, data in reply.events)
            assert "a\u2028b\u2029c\x85d" in told


# ---- refusals ------------------------------------------------------------------------------------------------


def test_a_burst_cannot_overfill_the_queue(tmp_path: Path) -> None:
    """All of these are let in while the queue is empty: their bodies come later, all at once."""
    path = serving.script(tmp_path, {"text": "Done.", "delay_ms": 500})
    with serving.running(Limits(slots=1, queue=1), script=path) as found:
        raw = json.dumps(message("Hi.")).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        place = urlsplit(found.url)
        sockets = [socket.create_connection((place.hostname or "", place.port or 0), timeout=30) for _ in range(6)]
        for one in sockets:
            one.sendall(head.encode())
        time.sleep(0.3)
        for one in sockets:
            one.sendall(raw)
        statuses = sorted(int(one.makefile("rb").readline().split()[1]) for one in sockets)
        for one in sockets:
            one.close()
        assert statuses == [200, 200, 529, 529, 529, 529]
        assert found.service.metrics.requests["messages", 529] == 4


class Full(ScriptedBackend):
    """A backend whose own queue is full, at once or (where the user asks for it) after it has begun."""

    async def generate(
        self, request: Generation, prompt: Sequence[int], reuse_tokens: int
    ) -> AsyncGenerator[Event, None]:
        if "late" in json.dumps(request.body):
            yield Claimed(0)
        raise Overloaded("17 requests wait already; try again later")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_has_the_status_that_the_client_got(stream: bool) -> None:
    with serving.running(backend=Full()) as found:
        for path, body in ALL:
            reply = found.client().post(path, {**body, "stream": stream})
            assert reply.status == (529 if path == "/v1/messages" else 503)
            call = found.client().calls()[-1]
            assert call["status"] == reply.status, path
            assert found.service.metrics.requests[call["api"], reply.status] == 1


def test_an_error_on_a_stream_names_the_request_of_its_head() -> None:
    with serving.running(backend=Full()) as found:
        reply = found.client().post("/v1/messages", message("late", stream=True))
        ((name, error),) = reply.events
        assert (reply.status, name, error["error"]["type"]) == (200, "error", "overloaded_error")
        assert error["request_id"] == reply.headers["request-id"]
        assert found.client().calls()[-1]["status"] == 529


def test_stopping_tells_each_dialect_in_its_own_status(tmp_path: Path) -> None:
    path, replies = serving.script(tmp_path, {"text": "on " * 999, "piece_ms": 50}), {}
    with serving.running(Limits(grace_s=0.1), script=path) as found:

        def ask(where: str, body: Json) -> None:
            replies[where] = found.client().post(where, body).status

        threads = [threading.Thread(target=ask, args=one) for one in ALL]
        for thread in threads:
            thread.start()
        assert until(lambda: found.service.gate.running == 3)
    for thread in threads:
        thread.join()
    assert replies == {"/v1/messages": 529, "/v1/chat/completions": 503, "/v1/responses": 503}
    assert set(found.service.metrics.requests) == {("messages", 529), ("chat", 503), ("responses", 503)}


@pytest.mark.parametrize("reply", [{"text": "on " * 999, "piece_ms": 40}, {"text": "a", "delay_ms": 9000}])
def test_a_reply_that_takes_too_long_ends_and_is_booked_before_its_end_is_read(tmp_path: Path, reply: Json) -> None:
    with serving.running(Limits(reply_s=0.2), script=serving.script(tmp_path, reply)) as found:
        client = found.client()
        for path, body in ALL:
            whole = client.post(path, body)
            assert (whole.status, "longer than 0.2 s" in whole.raw.decode()) == (504, True)
            for _ in range(2):
                streamed = client.post(path, {**body, "stream": True})
                assert "longer than 0.2 s" in streamed.raw.decode().splitlines()[-2]
                assert client.calls()[-1]["ended_at"] is not None
        assert set(found.service.metrics.requests) == {("messages", 504), ("chat", 504), ("responses", 504)}


def test_a_body_that_does_not_arrive_is_refused() -> None:
    with serving.running(Limits(body_s=0.2)) as found:
        place = urlsplit(found.url)
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as late:
            late.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
            reply = http.client.HTTPResponse(late)
            reply.begin()
            assert reply.status == 400 and b"did not arrive within 0.2 s" in reply.read()


def test_a_path_below_messages_is_refused_in_its_dialect(client: Client) -> None:
    for method, path, status in (("PATCH", "/v1/messages", 405), ("GET", "/v1/messages/batches", 404)):
        reply = client.send(method, path)
        assert (reply.status, reply.json["type"]) == (status, "error")
    assert "code" in client.get("/v1/files").json["error"]


def test_either_header_may_hold_the_key() -> None:
    """Claude Code sends both where both of its variables are set; one of them may be for somebody else."""
    with serving.running(api_keys=["right"]) as found:
        client = Client(found.url)
        for one, two, status in (("right", "wrong", 200), ("wrong", "right", 200), ("wrong", "wrong", 401)):
            headers = {"x-api-key": one, "authorization": f"Bearer {two}"}
            assert client.post("/v1/messages", message("Hi."), headers).status == status
        assert len(found.client("right").calls()) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--api-key", "\udcff"], "--api-key: its value is no UTF-8 text"),
        (["--rules", "x\udcff"], "--rules: its value is no UTF-8 text"),
        (["--kv-gib", "nan"], "--kv-gib: "),
        (["--host", "a..b", "--api-key", "k"], "choose another host"),
        (["--set", "min_tokens=1\nx"], "--set min_tokens=1 x: value is"),
    ],
)
def test_a_value_that_no_option_can_have_is_told_in_one_line(
    cachewright: Callable[..., Done], options: list[str], words: str
) -> None:
    done = cachewright("serve", "--model", "scripted", "--port", "0", *options)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert words in done.stderr
