"""An API server with a cache of chosen habits and faults on demand, over real sockets: what probes meet in the wild."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from habits import Asked, Json, Refused


@dataclass
class Fault:
    """What goes wrong with one request.

    status    HTTP status instead of an answer; `message` what it says ("{key}" is the key that was sent)
    cut       the connection breaks off after so many events
    error     an error event comes after so many events
    no_usage  the answer says nothing about tokens
    usage     what it says instead
    first_s   silence before the response begins; `stall_s` silence after its first two events
    """

    status: int = 0
    message: str = "no"
    cut: int | None = None
    error: int | None = None
    no_usage: bool = False
    usage: Json | None = None
    first_s: float = 0.0
    stall_s: float = 0.0


class Cache(Protocol):
    def ask(self, key: str, body: Json, now: float) -> Asked: ...

    def begun(self, asked: Asked, now: float) -> None: ...

    def ended(self, asked: Asked, now: float) -> None: ...


@dataclass
class Hosted:
    """The server's state. `faults` by number of the request, from 1; `first_s` and `long_s` slow all answers down.

    Long answers are those to questions that ask to count.
    """

    cache: Cache
    faults: dict[int, Fault] = field(default_factory=dict)
    first_s: float = 0.0
    long_s: float = 0.0
    bodies: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def hosted(cache: Cache, **rest: Any) -> Iterator[Hosted]:
    """A running server."""
    state = Hosted(cache, **rest)

    class Handler(_Handler):
        hosted = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hosted: Hosted
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_POST(self) -> None:
        now = time.monotonic()
        state = self.hosted
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key: str = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        with state.lock:
            state.bodies.append(body)
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = state.faults.get(len(state.bodies), Fault())
        if fault.status:
            self._refuse(fault.status, fault.message.replace("{key}", key.removeprefix("Bearer ")))
            return
        try:
            asked = state.cache.ask(key, body, now)
        except Refused as error:
            self._refuse(400, str(error))
            return
        time.sleep(max(state.first_s, fault.first_s))
        usage = {} if fault.no_usage else fault.usage if fault.usage is not None else asked.usage
        state.cache.begun(asked, time.monotonic())
        if not body.get("stream"):
            self._whole(body, usage)
        else:
            self._stream(self._events(body, usage), fault, state.long_s if "Count" in json.dumps(body) else 0)
        state.cache.ended(asked, time.monotonic())

    def _events(self, body: Json, usage: Json) -> list[tuple[str, Json]]:
        if self.path.endswith("/chat/completions"):
            return _chat(body, usage)
        return _responses(body, usage) if self.path.endswith("/responses") else _messages(body, usage)

    def _refuse(self, status: int, message: str) -> None:
        error = {"type": "error", "error": {"type": "some_error", "message": message}}
        self._send(status, json.dumps(error).encode())

    def _whole(self, body: Json, usage: Json) -> None:
        made = {"id": "msg_0", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        self._send(200, json.dumps({**made, "stop_reason": "max_tokens", "usage": usage}).encode())

    def _send(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events: list[tuple[str, Json]], fault: Fault, long_s: float) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if fault.cut == number:
                self.close_connection = True  # no last chunk: the peer sees a torn stream
                return
            if fault.error == number:
                name = "error"
                data = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            self._chunk((f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n")
            if fault.error == number:
                break
            if number == 1:
                time.sleep(max(long_s, fault.stall_s))
        if self.path.endswith("/chat/completions"):
            self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, raw: bytes) -> None:
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()


def _messages(body: Json, usage: Json) -> list[tuple[str, Json]]:
    message = {"id": "msg_0", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    start = {**message, "stop_reason": None, **({"usage": {**usage, "output_tokens": 0}} if usage else {})}
    output = {"usage": {"output_tokens": usage["output_tokens"]}} if "output_tokens" in usage else {}
    rows: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "OK"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, **output},
        {"type": "message_stop"},
    ]
    return [(row["type"], row) for row in rows]


def _chat(body: Json, usage: Json) -> list[tuple[str, Json]]:
    head: Json = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    say: Json = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "OK"}, "finish_reason": None}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    last = [{"choices": [], "usage": usage}] if usage else []
    return [("", {**head, **row}) for row in (say, end, *last)]


def _responses(body: Json, usage: Json) -> list[tuple[str, Json]]:
    head: Json = {"id": "resp_0", "object": "response", "model": body["model"], "output": []}
    told = {
        "input_tokens": usage.get("prompt_tokens"),
        "input_tokens_details": usage.get("prompt_tokens_details"),
        "output_tokens": 1,
    }
    rows: list[Json] = [
        {"type": "response.created", "response": {**head, "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "OK", "item_id": "m", "output_index": 0, "content_index": 0},
        {"type": "response.completed", "response": {**head, "status": "completed", "usage": told if usage else None}},
    ]
    return [(row["type"], row) for row in rows]
