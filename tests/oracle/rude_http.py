"""An HTTP server that answers POSTs by a plan: bytes as they are, whatever they break."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SSE = {"content-type": "text/event-stream"}
Step = tuple[int, dict[str, str], bytes, bool]
"""Status, headers, body, and whether the connection ends in the middle of it."""


def events(*rows: dict[str, Any]) -> bytes:
    return b"".join(f"event: {row.get('type', 'x')}\ndata: {json.dumps(row)}\n\n".encode() for row in rows)


USAGE = {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 1000, "output_tokens": 1}
START = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
         "model": "claude-opus-5", "stop_reason": None, "usage": USAGE}}  # fmt: skip
OPEN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "fine"}}
CLOSE = {"type": "content_block_stop", "index": 0}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
STOP = {"type": "message_stop"}
GOOD: Step = (200, SSE, events(START, OPEN, TEXT, CLOSE, END, STOP), False)


def refusal(status: int, kind: str, words: str, **headers: str) -> Step:
    body = {"type": "error", "error": {"type": kind, "message": words}}
    return (status, {"content-type": "application/json", **headers}, json.dumps(body).encode(), False)


@contextmanager
def serving(*plan: Step) -> Iterator[tuple[str, list[bytes]]]:
    """(URL, bodies received) of a server that follows `plan` and then answers well."""
    steps, received = list(plan), list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            status, headers, body, cut = steps.pop(0) if steps else GOOD
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if cut:
                self.send_header("content-length", str(len(body) + 1000))
            elif "content-length" not in headers:
                self.send_header("connection", "close")  # the end of the connection is the end of the body
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
