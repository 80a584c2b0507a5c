"""The record survives what happens to proxies: kill -9, a full disk, a second proxy, crowds of slow streams."""

import asyncio
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from proxying import Connection, answer, chunks, post, proxied, read_reply, recorded, upstream

from tui.commands.recording import spool_of

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CROWD = int(os.environ.get("CACHEWRIGHT_STREAMS", "200"))
"""Slow streams at once; 2,000 by `CACHEWRIGHT_STREAMS=2000`."""


@contextmanager
def process(
    command: list[str], environment: dict[str, str], db: Path, url: str
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """`cachewright proxy` as a process of its own: its port, and it."""
    words = [*command, "proxy", "--listen", "127.0.0.1:0", "--upstream", url, "--db", str(db)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        line = found.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), found.communicate()
        try:
            yield int(line.split()[2].rpartition(":")[2]), found
        finally:
            found.kill()


def echo(connection: Connection) -> None:
    """Answer with the request's own number; a stream that is asked for never ends."""
    while True:
        _, body = connection.request()
        if b'"stream"' in body:
            connection.send(STREAM, chunks(b'data: {"id":"half"}\n\n')[0])
            time.sleep(60)
        connection.send(answer(b'{"id":"r","of":%s}' % body))


def test_kill_9_in_mid_stream(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    """Each call whose end a client saw is in the database, at whatever moment the proxy died."""
    db = tmp_path / "a.db"
    finished: list[int] = []
    half = b'{"model":"m","stream":true}'
    with upstream(echo) as url, process(command, environment, db, url) as (port, found):
        streaming = connected(port)
        streaming.sendall(post("/run/r/v1/chat/completions", half))
        while b"half" not in streaming.recv(2**16):
            pass

        def hammer() -> None:
            with connected(port) as client, suppress(OSError, EOFError):
                for number in range(100_000):
                    client.sendall(post("/run/r/v1/messages", b'{"n":%d}' % number))
                    read_reply(client)
                    finished.append(number)

        thread = threading.Thread(target=hammer)
        thread.start()
        while len(finished) < 60:
            time.sleep(0.005)
        found.send_signal(signal.SIGKILL)
        found.wait()
        thread.join()
        streaming.close()
        with process(command, environment, db, url) as (_, second):
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 0
    exchanges = recorded(db)
    whole = [json.loads(one.request or b"")["n"] for one in exchanges if one.outcome == "complete"]
    assert sorted(whole)[: len(finished)] == finished
    assert len(whole) == len(set(whole))
    (cut,) = [one for one in exchanges if one.request == half]
    assert (cut.outcome, cut.facts["result"], cut.response) == ("interrupted", "aborted", b'data: {"id":"half"}\n\n')
    assert sqlite3.connect(db).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not list(spool_of(db).glob("*"))


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def test_full_disk(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    """Traffic goes on, the gap is said, and what was recorded before is whole. The limit stands for the disk."""
    db = tmp_path / "a.db"
    limit = 400_000
    words = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); " + command[-1]
    small = [*command[:-1], "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); " + words]
    with upstream(echo) as url, process(small, environment, db, url) as (port, found):
        with connected(port) as client:
            for number in range(40):
                body = json.dumps({"n": number, "text": os.urandom(15_000).hex()}).encode()
                client.sendall(post("/run/r/v1/messages", body))
                _, reply = read_reply(client)
                assert json.loads(reply)["of"]["n"] == number
        found.send_signal(signal.SIGTERM)
        _, told = found.communicate(timeout=60)
    assert "was not recorded: the spool cannot be written" in told
    assert "went on" in told
    assert "Traceback" not in told
    assert len(told.splitlines()) < 10
    assert sqlite3.connect(db).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert all(one.outcome == "complete" for one in recorded(db))


def test_no_open_files_left(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    """A crowd beyond the limit is told so in one line, and the proxy goes on after it."""
    words = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)); {command[-1]}"
    with upstream(echo) as url, process([*command[:-1], words], environment, tmp_path / "a.db", url) as (port, found):
        crowd = [connected(port) for _ in range(80)]
        time.sleep(0.5)
        for each in crowd:
            each.close()
        with connected(port) as client:
            client.sendall(post("/run/r/v1/messages", b'{"n":1}'))
            assert json.loads(read_reply(client)[1])["of"] == {"n": 1}
        found.send_signal(signal.SIGTERM)
        _, told = found.communicate(timeout=60)
    assert "too many open files" in told
    assert "Traceback" not in told
    assert len(told.splitlines()) < 5
    assert [one.outcome for one in recorded(tmp_path / "a.db")] == ["complete"]


def test_two_proxies_on_one_database(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    db = tmp_path / "a.db"
    with (
        upstream(echo) as url,
        process(command, environment, db, url) as (one, first),
        process(command, environment, db, url) as (other, second),
    ):
        threads = [threading.Thread(target=send_many, args=(port, start)) for port, start in ((one, 0), (other, 1000))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for found in (first, second):
            found.send_signal(signal.SIGTERM)
        assert [first.wait(30), second.wait(30)] == [0, 0]
    numbers = sorted(json.loads(one.request or b"")["n"] for one in recorded(db))
    assert numbers == [*range(150), *range(1000, 1150)]
    assert len({one.call.key_fp for one in recorded(db) if one.call}) == 1
    assert sqlite3.connect(db).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def send_many(port: int, start: int) -> None:
    with connected(port) as client:
        for number in range(start, start + 150):
            client.sendall(post("/run/r/v1/messages", b'{"n":%d}' % number, "x-api-key: sk-ant-0123456789"))
            read_reply(client)


def test_a_crowd_of_slow_streams(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    """Each client gets its own events in its own time, all are recorded, and memory stays bounded."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 4 * CROWD + 200:
        pytest.skip(f"{CROWD} streams need {4 * CROWD + 200} open files, the limit is {limit[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 4 * CROWD + 200), limit[1]))
    db = tmp_path / "a.db"
    loop = asyncio.new_event_loop()

    async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.write(STREAM)
        for number in range(10):
            writer.write(chunks(b"data: %d %s\n\n" % (number, body[:12]))[0])
            await asyncio.sleep(0.3)
        writer.write(b"0\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async def ask(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"n":%06d,"model":"m","pad":"%s"}' % (number + 100_000, b"x" * 20_000)
        writer.write(post("/run/r/v1/chat/completions", body))
        got = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert got.count(body[:12]) == 10
        writer.close()
        await writer.wait_closed()

    async def all_of_them(port: int) -> None:
        await asyncio.gather(*(ask(port, number) for number in range(CROWD)))

    async def both() -> None:
        server = await asyncio.start_server(answer_slowly, "127.0.0.1", 0, backlog=2048)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with process(command, environment, db, url) as (port, found):
            await all_of_them(port)
            status = Path(f"/proc/{found.pid}/status")
            if status.exists():
                peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
                assert int(peak.split()[1]) < (60 + CROWD * 0.1) * 1024, peak
            found.send_signal(signal.SIGTERM)
            assert found.wait(60) == 0
        server.close()

    try:
        loop.run_until_complete(both())
        loop.run_until_complete(asyncio.sleep(0.2))
    finally:
        loop.close()
    exchanges = recorded(db)
    assert len(exchanges) == CROWD
    assert all(one.outcome == "complete" and one.facts["result"] != "error" for one in exchanges)
    assert all((one.response or b"").count(b"data: ") == 10 for one in exchanges)


def test_a_database_that_cannot_be_written_yet(tmp_path: Path) -> None:
    """Finished calls wait in the spool, and the next proxy stores them."""
    db = tmp_path / "a.db"
    with upstream(echo) as url:
        with proxied(db, url) as proxy, proxy.client() as client:
            db.chmod(0o600)
            for path in tmp_path.glob("a.db*"):
                if path.is_file():
                    path.unlink()
            db.mkdir()
            client.sendall(post("/v1/messages", b'{"n":1}'))
            assert json.loads(read_reply(client)[1])["of"] == {"n": 1}
        assert any("not stored yet" in line for line in proxy.said), proxy.said
        assert any("the next proxy on it stores them" in line for line in proxy.said)
        assert list(spool_of(db).glob("*.spool"))
        db.rmdir()
        with proxied(db, url):
            pass
    assert [one.request for one in recorded(db)] == [b'{"n":1}']
