"""Measures what the proxy adds to a request, beside mitmdump and the LiteLLM proxy, in one run.

    python tests/bench/bench_proxy.py                            this proxy alone
    python tests/bench/bench_proxy.py --mitmdump PATH --litellm PATH

The upstream answers at once: a small JSON reply, or a stream whose first event comes at once and 20 more 5 ms apart.
Client and upstream are processes of their own. Times are medians (and 99th percentiles) of `--requests` requests, to
the last byte of a small reply and to the first body byte of a stream, after a tenth as many to warm up; the rows are
measured in turns of all proxies, so that a noisy moment hits each of them. The peak is the proxy's resident memory.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "from tui.cli import main; main(prog_name='cachewright')"
REPLY = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22},
}).encode()  # fmt: skip
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"') + b"data: [DONE]\n\n"
EVENTS, GAP_S = 20, 0.005
ROUNDS = 3
START_S = 60


def body_of(stream: bool, size: int) -> bytes:
    """A Chat request with a user text of `size` bytes."""
    text = {"role": "user", "content": "word " * (size // 5)}
    return json.dumps({"model": "m", "messages": [text], **({"stream": True} if stream else {})}).encode()


class Upstream(asyncio.Protocol):
    """Answers each request on a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        low = bytes(self.buffer[:head]).lower()
        at = low.find(b"content-length:")
        length = int(low[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self.buffer) < head + 4 + length:
            return
        stream = b'"stream":true' in self.buffer.replace(b" ", b"")
        del self.buffer[: head + 4 + length]
        if stream:
            self.task = asyncio.ensure_future(self.events())
        else:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY) + REPLY
            )

    async def events(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(head + b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
        for _ in range(EVENTS):
            await asyncio.sleep(GAP_S)
            self.transport.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
        self.transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST))


async def upstream(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def one(
    port: int, body: bytes, stream: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> float:
    """Milliseconds of one request on an open connection: to the first body byte of a stream, else to the last byte."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer sk-bench-0123456789\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    start = time.perf_counter()
    writer.write(head.encode() + body)
    told = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert b" 200 " in told.split(b"\r\n", 1)[0], told
    if b"chunked" not in told:
        length = int(told.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        return (time.perf_counter() - start) * 1000
    first = 0.0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
        first = first or (time.perf_counter() - start) * 1000
    await reader.readexactly(2)
    return first if stream else (time.perf_counter() - start) * 1000


async def load(port: int, stream: bool, concurrency: int, requests: int, size: int) -> list[float]:
    """Times of `requests` requests over `concurrency` connections."""
    body, left, times = body_of(stream, size), iter(range(requests)), list[float]()

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        for _ in left:
            times.append(await one(port, body, stream, reader, writer))
        writer.close()

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return times


@dataclass
class Proxy:
    """A way to the upstream, and the times measured over it by (stream, concurrency)."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    times: dict[tuple[bool, int], list[float]] = field(default_factory=dict)

    def peak_mb(self) -> float:
        """Largest resident memory so far, with that of its children."""
        if self.process is None:
            return 0.0
        status = Path(f"/proc/{self.process.pid}/status")
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def started(name: str, words: list[str], port: int, folder: Path) -> Iterator[Proxy]:
    """A proxy in a process of its own, once it listens."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{name}: does not listen; its log:\n{(folder / f'{name}.log').read_text()[-2000:]}")
                time.sleep(0.1)
        yield Proxy(name, port, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def commands(options: argparse.Namespace, target: int, folder: Path) -> Iterator[tuple[str, list[str], int]]:
    """Name, command and port of each proxy to measure."""
    port = free_port()
    own = ["proxy", "--listen", f"127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{target}"]
    yield "cachewright", [sys.executable, "-c", PROGRAM, *own, "--db", str(folder / "bench.db")], port
    if options.mitmdump:
        port = free_port()
        words = ["--mode", f"reverse:http://127.0.0.1:{target}", "--listen-port", str(port), "--set"]
        more = ["stream_large_bodies=1", "-q", "-w", str(folder / "flows")]
        yield "mitmdump", [options.mitmdump, *words, *more], port
    if options.litellm:
        port = free_port()
        parameters = {"model": "openai/m", "api_base": f"http://127.0.0.1:{target}/v1", "api_key": "x"}
        config = {"model_list": [{"model_name": "m", "litellm_params": parameters}]}
        (folder / "litellm.json").write_text(json.dumps(config))
        yield "litellm", [options.litellm, "--config", "litellm.json", "--host", "127.0.0.1", "--port", str(port)], port


def row(proxy: Proxy, direct: Proxy) -> str:
    """One line of the table: added medians, and the 99th percentile of the whole time."""
    cells = []
    for key, times in proxy.times.items():
        median = statistics.median(times)
        base = statistics.median(direct.times[key])
        p99 = statistics.quantiles(times, n=100)[98]
        cells.append(f"{median - base if proxy is not direct else median:7.2f} /{p99:7.1f}")
    peak = f"{proxy.peak_mb():6.0f}" if proxy.process else "     -"
    return f"{proxy.name:<12}" + "  ".join(cells) + f"  {peak}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--size", type=int, default=100, help="bytes of the user's text")
    parser.add_argument("--mitmdump", help="program to compare with")
    parser.add_argument("--litellm", help="program to compare with")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        asyncio.run(upstream(options.upstream))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = free_port()
        words = [sys.executable, __file__, "--upstream", str(target)]
        stack.enter_context(started("upstream", words, target, folder))
        direct = Proxy("direct", target)
        proxies = [direct]
        proxies += [stack.enter_context(started(*each, folder)) for each in commands(options, target, folder)]
        for stream in (False, True):
            for concurrency in (1, 16):
                measure(proxies, stream, concurrency, options)
        print(
            "added ms p50 / whole p99:  small C=1          small C=16         first byte C=1     first byte C=16   MB"
        )
        for proxy in proxies:
            print(row(proxy, direct))


def measure(proxies: list[Proxy], stream: bool, concurrency: int, options: argparse.Namespace) -> None:
    """Measure one column, in turns."""
    count = options.requests // (4 if stream and concurrency == 1 else 1)
    for proxy in proxies:
        asyncio.run(load(proxy.port, stream, concurrency, max(concurrency, count // 10), options.size))
        proxy.times[stream, concurrency] = []
    for _ in range(ROUNDS):
        for proxy in proxies:
            times = asyncio.run(load(proxy.port, stream, concurrency, max(concurrency, count // ROUNDS), options.size))
            proxy.times[stream, concurrency] += times


if __name__ == "__main__":
    main()
