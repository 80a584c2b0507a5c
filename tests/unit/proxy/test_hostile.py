"""Broken, greedy and spiteful peers: each costs itself only."""

import gzip
import json
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from proxying import Connection, answer, chunks, post, proxied, read_all, read_reply, recorded, upstream

from auditor.store import Store
from harness.proxy.heads import HEAD_BYTES
from harness.recorder.secrets import Masker
from tui.commands.recording import spool_of

OK = answer(b'{"ok":true}', "Content-Type: application/json")


def ok(connection: Connection) -> None:
    while True:
        connection.request()
        connection.send(OK)


MALFORMED = {
    "smuggled": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "bare CR in a field": b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nX: a\rEvil: 1\r\nContent-Length: 0\r\n\r\n",
    "bare LF in a field": b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nX: a\nEvil: 1\r\nContent-Length: 0\r\n\r\n",
    "folded field": b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nX: a\r\n Evil: 1\r\nContent-Length: 0\r\n\r\n",
    "NUL": b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello TLS",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_is_not_forwarded(tmp_path: Path, name: str) -> None:
    got: list[bytes] = []

    def handle(connection: Connection) -> None:
        got.append(connection.head())
        connection.send(OK)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(MALFORMED[name])
        told = read_all(client)
    assert not any(b"Evil" in head or b"HTTP/1.1" in head for head in got), got
    assert told.startswith(b"HTTP/1.1 400 ") or not told


def test_chunked_is_chunked_in_whichever_field(tmp_path: Path) -> None:
    got: list[bytes] = []

    def handle(connection: Connection) -> None:
        got.append(connection.request()[1])
        connection.send(OK)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        fields = b"Host: h\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(b"POST /v1/messages HTTP/1.1\r\n" + fields + b"".join(chunks(b"{}")))
        assert read_reply(client)[1] == b'{"ok":true}'
    assert got == [b"{}"]


def test_a_reply_that_splits_its_head_reaches_nobody(tmp_path: Path) -> None:
    def handle(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n")

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b"{}"))
        assert b"evil" not in read_all(client)
    assert [one.outcome for one in recorded(tmp_path / "a.db")] == ["upstream_closed"]


def test_heads_without_end_and_clients_that_stall(tmp_path: Path) -> None:
    """Neither fills the memory or keeps another client waiting."""

    def endless(connection: Connection) -> None:
        connection.request()
        for _ in range(3 * HEAD_BYTES // 1000):
            connection.send(b"X-%s: %s\r\n" % (b"a" * 10, b"b" * 990))

    with upstream(ok) as url, upstream(endless) as bad, proxied(tmp_path / "a.db", url, f"bad={bad}") as proxy:
        with proxy.client() as greedy:
            greedy.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: h\r\n")
            with suppress(OSError):
                for _ in range(3 * HEAD_BYTES // 1000):
                    greedy.sendall(b"X: %s\r\n" % (b"b" * 1000))
            with suppress(OSError):
                read_all(greedy)  # 431, if it is read before the reset
            assert not proxy.proxy.open_ones
        stalled = [proxy.client() for _ in range(50)]
        sockets = [one.__enter__() for one in stalled]
        for number, each in enumerate(sockets):
            each.sendall(post("/v1/messages", b'{"slow":true}')[: 10 + number])
        began = time.monotonic()
        with proxy.client() as client:
            client.sendall(post("/v1/messages", b"{}"))
            assert read_reply(client)[1] == b'{"ok":true}'
        assert time.monotonic() - began < 5
        for each in sockets:
            each.close()
        with proxy.client() as client:
            client.sendall(post("/to/bad/v1/messages", b"{}"))
            assert b"aaaaaaaaaa" not in read_all(client)
    assert sorted(one.outcome for one in recorded(tmp_path / "a.db")) == ["complete", "upstream_closed"]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate"])
@pytest.mark.parametrize("body", [b"", b"\x00\xff not packed", gzip.compress(b"{}" * 500, mtime=0)[:-9] + b"\x00" * 9])
def test_damaged_codings_pass_and_are_noted(tmp_path: Path, coding: str, body: bytes) -> None:
    got: list[bytes] = []

    def handle(connection: Connection) -> None:
        got.append(connection.request()[1])
        connection.send(answer(body, f"Content-Encoding: {coding}"))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", body, f"Content-Encoding: {coding}"))
        assert read_reply(client)[1] == body
    assert got == [body]
    (exchange,) = recorded(tmp_path / "a.db")
    assert exchange.outcome == "complete"
    assert not proxy.said


def test_a_locked_database_holds_up_nobody(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with upstream(ok) as url:
        with proxied(db, url) as proxy, proxy.client() as client:
            lock = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
            lock.execute("BEGIN EXCLUSIVE")
            began = time.monotonic()
            for number in range(20):
                client.sendall(post("/v1/messages", b'{"n":%d}' % number))
                read_reply(client)
            assert time.monotonic() - began < 5
            threading.Timer(1.0, lock.rollback).start()
        lock.close()
        with proxied(db, url):
            pass
    assert [json.loads(one.request or b"")["n"] for one in recorded(db)] == [*range(20)]


def test_long_requests_are_recorded_before_their_end_is_seen(tmp_path: Path) -> None:
    """They are masked beside the loop: at the end of a call the spool has all of it."""
    db, key = tmp_path / "a.db", "sk-ant-0123456789/abc+def="
    body = json.dumps({"model": "m", "text": "authorization: none " * 30_000, "copy": key}).encode()
    with upstream(ok) as url, proxied(db, url) as proxy, proxy.client() as client:
        lock = sqlite3.connect(db, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")  # so that the spool is what has it
        for _ in range(3):
            client.sendall(post("/v1/messages", body, f"x-api-key: {key}"))
            read_reply(client)
        spooled = b"".join(path.read_bytes() for path in spool_of(db).glob("*.spool"))
        assert spooled.count(b"authorization: none " * 30_000) == 3
        assert key.encode() not in spooled
        lock.rollback()
        lock.close()
    assert [len(one.request or b"") > 600_000 for one in recorded(db)] == [True] * 3


def test_what_is_stored_does_not_stay_in_the_spool(tmp_path: Path) -> None:
    """So a purge leaves nothing even while the proxy runs; and what a dead one left is purged with the rest."""
    db = tmp_path / "a.db"
    with upstream(ok) as url, proxied(db, url) as proxy, proxy.client() as client:
        client.sendall(post("/v1/messages", b'{"text":"PURGEMARK"}'))
        read_reply(client)
        until = time.monotonic() + 20
        while proxy.proxy.recorder.health.stored < 1 and time.monotonic() < until:
            time.sleep(0.02)
        with Store.open(db) as store:
            assert store.purge() == 1
        left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert b"PURGEMARK" not in left


SPELLINGS = {
    "raw": "sk/live+0123456789=",
    "in a URL": "sk%2Flive%2B0123456789%3D",
    "PHP": "sk\\/live+0123456789=",
    ".NET": "sk/live\\u002B0123456789=",
    "all escaped": "sk\\u002flive\\u002b0123456789\\u003d",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_of_a_credential(spelling: str) -> None:
    masker = Masker(b"s" * 16)
    masker.learn([(b"api-key", SPELLINGS["raw"].encode())], b"/")
    assert b"0123456789" not in masker.body(b'{"error":"bad key %s"}' % SPELLINGS[spelling].encode())


@pytest.mark.parametrize(
    "field",
    [
        "Ocp-Apim-Subscription-Key",
        "Helicone-Auth",
        "cf-aig-authorization",
        "X-Functions-Key",
        "Cf-Access-Jwt-Assertion",
    ],
)
def test_names_of_gateways(field: str) -> None:
    masker = Masker(b"s" * 16)
    fields = [(field.encode(), b"Bearer secret-0123456789-abc")]
    masker.learn(fields, b"/")
    assert "0123456789" not in repr(masker.headers(fields))
    assert b"0123456789" not in masker.body(b"it was secret-0123456789-abc")


def test_what_apis_themselves_call_credentials() -> None:
    masker = Masker(b"s" * 16)
    for name in ("authorization_token", "api_key", "apiKey", "Authorization"):
        assert b"SECRET" not in masker.body(json.dumps({"mcp_servers": [{name: "SECRET-1"}]}).encode()), name
    basic = [(b"Authorization", b"Basic dXNlcjpodW50ZXIyLXNlY3JldA==")]
    masker.learn(basic, b"/")
    assert b"hunter2" not in masker.body(b"login failed for user:hunter2-secret")
    assert masker.headers([(b"Idempotency-Key", b"stainless-1")]) == [["Idempotency-Key", "stainless-1"]]
    assert b"SECRET" not in masker.text(b'{"url":"https://h/p?a=1\\u0026api_key=SECRET-0123"}')


def test_a_call_outlasts_its_key(tmp_path: Path) -> None:
    """The reply's copy of a key is masked however many others were used in the meantime."""
    go = threading.Event()

    def handle(connection: Connection) -> None:
        head, _ = connection.request()
        if b"SLOWKEY" in head:
            assert go.wait(20)
        connection.send(answer(b'{"error":{"message":"no such key: sk-SLOWKEY-0123456789"}}'))

    db = tmp_path / "a.db"
    with upstream(handle) as url, proxied(db, url) as proxy, proxy.client() as slow:
        slow.sendall(post("/v1/messages", b"{}", "x-api-key: sk-SLOWKEY-0123456789"))
        for number in range(40):
            with proxy.client() as client:
                client.sendall(post("/v1/messages", b"{}", f"x-api-key: sk-other-key-{number:04d}"))
                read_reply(client)
        go.set()
        assert b"SLOWKEY" in read_reply(slow)[1]
    first = min(recorded(db), key=lambda one: one.started_at)
    assert b"SLOWKEY" not in (first.response or b"")
