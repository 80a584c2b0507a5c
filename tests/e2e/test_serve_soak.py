"""Many mixed requests, with aborts, resets and hostile bodies: nothing leaks, nothing grows, nothing breaks.

The bounded run is for each commit; `-m slow` has the one of 10,000 requests.
"""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

from localmodel.engine.threads import wait_briefly
from localmodel.server.settings import Limits

wait_briefly()
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
KEYS = ("one", "two", "three")
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/nowhere")
HOSTILE = (
    b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe{}", b"[" * 5000, b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'{"model":"m","max_tokens":1e999,"messages":[]}', b'{"model":"m","max_tokens":NaN,"messages":[]}',
    b'{"model":"\\ud800","max_tokens":1,"messages":[{"role":"user","content":"\\udfff"}]}',
    b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[[[{"type":"text"}]]]}]}',
    b'{"model":"m","max_tokens":-1,"messages":"x","tools":{"a":1}}',
    b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":{}}]}],"tools":[{}]}',
    b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"tool","name":{}}}',
    b'{"model":"m","input":[{"type":"function_call_output"},{"role":7}],"tools":[null]}',
)  # fmt: skip


def secret(key: str) -> str:
    """A word that only this key's requests hold."""
    return f"secret-of-{key}"


def request(draw: random.Random, key: str) -> tuple[str, bytes]:
    """(path, body) of a good request, of one with a field spoilt, or of a hostile one."""
    path = draw.choice(PATHS)
    if draw.random() < 0.25:
        return path, draw.choice(HOSTILE)
    body = good(draw, path, f"{secret(key)} {'word ' * draw.randrange(60)}")
    if draw.random() < 0.2:
        body[draw.choice(list(body))] = draw.choice([None, 0, -1, "x", [], {}, [[]], {"type": []}, 1e308, True])
    return path, json.dumps(body).encode()


def good(draw: random.Random, path: str, text: str) -> Json:
    talk: list[Json] = [{"role": "user", "content": text}]
    if draw.random() < 0.5:
        talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"more {draw.randrange(9)}"}]
    made: Json = {"model": draw.choice("mn"), "stream": draw.random() < 0.5}
    if path == "/v1/responses":
        return {**made, "input": talk, "max_output_tokens": 4}
    if path.startswith("/v1/messages"):
        made["cache_control"] = {"type": "ephemeral"}
    return {**made, "messages": talk, "max_tokens": draw.randrange(5)}


def send(url: str, key: str, draw: random.Random) -> tuple[str, bytes]:
    """Send a request in one of several manners: (manner, what came back)."""
    path, body = request(draw, key)
    manner = draw.choices(["whole", "half", "reset", "leave"], [6, 1, 1, 1])[0]
    place = urlsplit(url)
    head = (f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode()  # fmt: skip
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as connection:
        if manner == "half":
            connection.sendall(head + body[: len(body) // 2])
            return manner, b""
        connection.sendall(head + body)
        if manner == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return manner, b""
        if manner == "leave":
            return manner, connection.recv(draw.randrange(1, 400))
        chunks = []
        while chunk := connection.recv(65536):
            chunks.append(chunk)
        return manner, b"".join(chunks)


def storm(url: str, count: int, seed: int) -> Counter[str]:
    """Send `count` requests under the three keys; how often each status came. Fails on what no server may say."""
    found: Counter[str] = Counter()
    draw = random.Random(seed)
    for _ in range(count):
        key = draw.choice(KEYS)
        manner, reply = send(url, key, draw)
        for other in KEYS:
            assert other == key or secret(other).encode() not in reply, "a reply holds another key's words"
        assert b"Traceback" not in reply
        status = reply.split(b" ", 2)[1].decode() if manner == "whole" else manner
        assert status in ("200", "400", "404", "413", "415", "529", "503", "half", "reset", "leave"), reply[:500]
        found[status] += 1
    return found


def storms(url: str, count: int, seed: int) -> Counter[str]:
    """The same from four clients at once."""
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(lambda number: storm(url, count // 4, seed + number), range(4)), Counter[str]())


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@contextmanager
def command(errors: Path) -> Iterator[tuple[str, int]]:
    """(URL, process) of the scripted server as a user starts it; its stderr goes into a file."""
    program = [sys.executable, "-c", "from tui.cli import main; main(prog_name='cachewright')"]
    kept = ["--kv", str(errors.parent / "kv")]
    options = ["serve", "--port", "0", "--model", "scripted", "--set", "min_tokens=8", *kept]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        errors.open("wb") as words,
        subprocess.Popen(
            [*program, *options], stdout=subprocess.PIPE, stderr=words, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield next(word for word in line.split() if word.startswith("http://")), process.pid
        finally:
            process.terminate()
            process.wait(20)
        assert process.returncode == 0


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(true())


def soak(folder: Path, count: int) -> None:
    errors = folder / "stderr"
    with command(errors) as (url, pid):
        storms(url, count // 4, 1)  # caches and pools fill up
        before = resident(pid)
        found = storms(url, count - count // 4, 100)
        client = serving.Client(url, "one")
        assert until(lambda: b"cachewright_running_requests 0" in client.get("/metrics").raw)
        assert client.post("/v1/messages", serving.message("still there?")).status == 200
        grown = resident(pid) - before
        calls = [call for key in KEYS for call in serving.Client(url, key).calls()]
    assert found["200"] > count // 10
    assert found["400"] > count // 20
    assert grown < 24, f"{grown:.1f} MiB more after {count} requests: {found}"
    assert all(call["ended_at"] for call in calls)
    assert errors.read_text() == ""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_a_thousand_mixed_requests(tmp_path: Path) -> None:
    soak(tmp_path, 1000)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_ten_thousand_mixed_requests(tmp_path: Path) -> None:
    soak(tmp_path, 10_000)


def test_the_engine_loses_no_page(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    import tinymodel

    from localmodel.engine.cache.disk import DiskTier
    from localmodel.engine.engine import Engine, Sizes
    from localmodel.engine.errors import MissingModel
    from localmodel.server.local import LocalBackend

    try:
        parts = tinymodel.parts()
    except MissingModel as error:
        pytest.skip(str(error))
    page_bytes = parts.model.new_kv(1).page_bytes
    disk = DiskTier(tmp_path, 400 * page_bytes)
    engine = Engine(parts, Sizes(200, host_bytes=100 * page_bytes), disk)
    with serving.running(Limits(), LocalBackend(engine), sets=["min_tokens=8"]) as server:
        found = storms(server.url, 400, 7)
        assert found["200"] > 40
        assert until(lambda: server.service.gate.running == 0 and engine.scheduler.idle)
        assert until(lambda: engine.counts.in_use == 0)
        engine.scheduler.cache.check()
        counts = engine.counts
        assert counts.free + counts.cached == counts.total == 200
        assert engine.scheduler.cache.refused == {}
    held = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0 < held == disk.used_bytes <= 400 * page_bytes
