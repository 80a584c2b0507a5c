"""What the upstream gets and what the client gets are the bytes that were sent, whatever they are."""

import gzip
import hashlib
import json
import socket
import threading
from pathlib import Path

import pytest
from proxying import Connection, answer, chunks, post, proxied, read_all, read_reply, recorded, upstream

OK = answer(b'{"ok":true}', "Content-Type: application/json")
ODD = [
    b'{"b":1,"a":{"z":0,"y":[1,2]},"a ":null}',
    b'{ "model" : "m",\n\t"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude42 \xc3\xa9"}] }',
    b'{"messages":[{"content":"lone \\ud800"}],"n":1e400,"n":123456789012345678901234567890}',
    b"not json at all \x00\xff",
    b"",
]


@pytest.mark.parametrize("body", ODD)
@pytest.mark.parametrize("chunked", [False, True])
def test_request_bytes(tmp_path: Path, body: bytes, chunked: bool) -> None:
    got: list[tuple[bytes, bytes]] = []

    def handle(connection: Connection) -> None:
        got.append(connection.request())
        connection.send(OK)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        head = "POST /v1/messages?beta=true&x=%20A HTTP/1.1\r\nHost: h\r\nX-b: 1\r\nx-A:  two \r\nX-b: 3\r\n"
        if chunked:
            client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for piece in chunks(body[:3], body[3:]):
                client.sendall(piece)
        else:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert read_reply(client)[1] == b'{"ok":true}'
    ((sent, told),) = got
    assert told == body
    lines = sent.split(b"\r\n")
    assert lines[0] == b"POST /v1/messages?beta=true&x=%20A HTTP/1.1"
    assert lines[1] == b"Host: " + url.removeprefix("http://").encode()
    assert lines[2:5] == [b"X-b: 1", b"x-A: two ", b"X-b: 3"]
    (exchange,) = recorded(tmp_path / "a.db")
    assert (exchange.request or b"") == body


def test_hop_by_hop_fields_stay_and_all_others_pass(tmp_path: Path) -> None:
    got: list[bytes] = []

    def handle(connection: Connection) -> None:
        got.append(connection.request()[0])
        connection.send(
            answer(b"x", "Connection: x-own", "X-Own: 1", "Keep-Alive: timeout=5", "Set-Cookie: a", "Set-Cookie: b")
        )

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        fields = (
            "Connection: keep-alive, X-Mine",
            "X-Mine: 1",
            "Keep-Alive: 5",
            "TE: trailers",
            "Proxy-Authorization: Basic z",
        )
        client.sendall(post("/v1/messages", b"{}", *fields, "accept-encoding: br"))
        head, _ = read_reply(client)
    low = got[0].lower()
    assert b"x-mine" not in low
    assert b"keep-alive" not in low
    assert b"te:" not in low
    assert b"Proxy-Authorization: Basic z\r\naccept-encoding: br" in got[0]
    assert b"x-own" not in head.lower()
    assert head.count(b"Set-Cookie: ") == 2


def test_twenty_megabytes_both_ways(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "é" * (10 * 2**20)}]}, ensure_ascii=False).encode()

    def handle(connection: Connection) -> None:
        _, told = connection.request()
        connection.send(answer(hashlib.sha256(told).hexdigest().encode() + told))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        thread = threading.Thread(target=client.sendall, args=(post("/v1/messages", body),))
        thread.start()
        _, told = read_reply(client)
        thread.join()
    assert told[:64].decode() == hashlib.sha256(body).hexdigest()
    assert told[64:] == body
    (exchange,) = recorded(tmp_path / "a.db")
    assert exchange.request == body
    assert exchange.response == told


def test_expect_continue(tmp_path: Path) -> None:
    got: list[bytes] = []

    def handle(connection: Connection) -> None:
        assert b"Expect: 100-continue" in connection.head()
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        got.append(connection.body(5))
        connection.send(OK)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"12345", "Expect: 100-continue")[:-5])
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"12345")
        assert read_reply(client)[1] == b'{"ok":true}'
    assert got == [b"12345"]
    assert [one.status for one in recorded(tmp_path / "a.db")] == [200]


def test_keep_alive_both_ways_and_requests_sent_ahead(tmp_path: Path) -> None:
    connections: list[list[bytes]] = []

    def handle(connection: Connection) -> None:
        mine: list[bytes] = []
        connections.append(mine)
        while True:
            head = connection.head()
            connection.raw = connection.raw[len(head) :]
            mine.append(head.split(b" ")[1])
            connection.send(answer(mine[-1]))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        ahead = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(3))
        client.sendall(ahead)
        data = b""
        while data.count(b"HTTP/1.1 200") < 3 or not data.endswith(b"/2"):
            data += client.recv(1000)
        client.sendall(b"GET /run/r/3 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert read_reply(client)[1] == b"/3"
    assert connections == [[b"/0", b"/1", b"/2", b"/3"]]
    assert [one.path for one in recorded(tmp_path / "a.db")] == ["/0", "/1", "/2", "/3"]


def test_head_204_and_bodies_that_end_with_the_connection(tmp_path: Path) -> None:
    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n")
        connection.request()
        connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\nto the ", b"end")

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(b"HEAD /api/hello HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100")
        client.sendall(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 204 No Content\r\n")
        client.sendall(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        assert read_all(client).endswith(b"\r\n\r\nto the end")
    assert [(one.method, one.status, one.outcome) for one in recorded(tmp_path / "a.db")] == [
        ("HEAD", 404, "complete"),
        ("GET", 204, "complete"),
        ("GET", 200, "complete"),
    ]


def test_the_first_piece_is_not_held_back(tmp_path: Path) -> None:
    seen = threading.Event()

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(b"5\r\ndata:\r\n")
        assert seen.wait(10)
        connection.send(*chunks(b" {}\n\n"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        data = b""
        while b"data:" not in data:
            data += client.recv(1000)
        seen.set()
        while not data.endswith(b"0\r\n\r\n"):
            data += client.recv(1000)


def test_compression_passes_and_only_the_copy_is_decoded(tmp_path: Path) -> None:
    import brotli
    from backports import zstd

    plain = json.dumps({"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}, "text": "x" * 5000}).encode()
    packed = {
        "gzip": gzip.compress(plain),
        "br": brotli.compress(plain),
        "zstd": zstd.compress(plain),
        "": zstd.compress(plain),
    }
    packed["snappy"] = b"\xff\x06\x00\x00sNaPpY"
    names = iter(packed)

    def handle(connection: Connection) -> None:
        for name in names:
            connection.request()
            fields = [f"Content-Encoding: {name}"] if name else []
            connection.send(answer(packed[name], *fields))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        for name, body in packed.items():
            sent = zstd.compress(b'{"model":"m"}')
            client.sendall(post("/v1/messages", sent, "Content-Encoding: zstd"))
            assert read_reply(client)[1] == body, name
    exchanges = recorded(tmp_path / "a.db")
    assert [one.response for one in exchanges] == [plain] * 4 + [packed["snappy"]]
    assert {one.request for one in exchanges} == {b'{"model":"m"}'}
    assert "not known" in exchanges[-1].facts["response"]["note"]


def test_gzip_without_its_end_keeps_what_came(tmp_path: Path) -> None:
    stream = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":5,'
        b'"cache_read_input_tokens":7,"cache_creation_input_tokens":0,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":9}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    )

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(answer(gzip.compress(stream)[:-8], "Content-Type: text/event-stream", "Content-Encoding: gzip"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        read_reply(client)
    (exchange,) = recorded(tmp_path / "a.db")
    assert exchange.call is not None
    assert (exchange.call.usage.read_tokens, exchange.call.usage.output_tokens) == (7, 9)
    assert "incomplete" in exchange.facts["response"]["transport"]


def test_errors_of_the_upstream_pass_as_they_are(tmp_path: Path) -> None:
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}'

    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(answer(body, "Retry-After: 7", "x-should-retry: true", status="529 Site is overloaded"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        head, told = read_reply(client)
    assert head.startswith(b"HTTP/1.1 529 Site is overloaded\r\nRetry-After: 7\r\nx-should-retry: true")
    assert told == body


def test_nobody_upstream(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with proxied(tmp_path / "a.db", f"http://127.0.0.1:{port}") as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages?key=sk-SECRET-0123456789", b"{}"))
        told = read_all(client)
    assert told.startswith(b"HTTP/1.1 502 Bad Gateway")
    assert f"127.0.0.1:{port}: cannot be reached".encode() in told
    assert b"SECRET" not in told
    (exchange,) = recorded(tmp_path / "a.db")
    assert (exchange.outcome, exchange.status, exchange.facts["result"]) == ("unreachable", None, "error")
