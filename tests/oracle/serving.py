"""The local server for tests: run in a thread on a free loopback port, and a plain HTTP client for it."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from localmodel.server.model import Backend
from localmodel.server.serve import build, listen, server, url_of
from localmodel.server.service import Service
from localmodel.server.settings import Limits, Settings

Json: TypeAlias = dict[str, Any]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.raw)
        return found

    @property
    def events(self) -> list[tuple[str, Json]]:
        """(name, data) of each server-sent event; "" where it has no name; the end mark of Chat is left out."""
        found = []
        for part in self.raw.decode().replace("\r\n", "\n").split("\n\n"):
            lines = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
            if lines.get("data", "[DONE]") != "[DONE]":
                found.append((lines.get("event", ""), json.loads(lines["data"])))
        return found


@dataclass
class Client:
    url: str
    key: str | None = None

    def send(self, method: str, path: str, body: bytes | None = None, headers: Json | None = None) -> Reply:
        with self.open(method, path, body, headers) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    @contextmanager
    def open(
        self, method: str, path: str, body: bytes | None = None, headers: Json | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        try:
            own = {"x-api-key": self.key} if self.key else {}
            connection.request(method, path, body, {**own, **(headers or {})})
            yield connection.getresponse()
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Json | None = None) -> Reply:
        return self.send("POST", path, json.dumps(body).encode(), headers)

    def get(self, path: str, headers: Json | None = None) -> Reply:
        return self.send("GET", path, None, headers)

    def calls(self) -> list[Json]:
        found: list[Json] = self.get("/cachewright/calls").json["calls"]
        return found


@dataclass
class Running:
    service: Service
    url: str

    def client(self, key: str | None = None) -> Client:
        return Client(self.url, key)


@contextmanager
def running(limits: Limits | None = None, backend: Backend | None = None, **options: Any) -> Iterator[Running]:
    """A server with these `Settings`, and with this model if one is given; stopped at the end."""
    settings = Settings(**{"port": 0, **options})
    service = build(settings, limits, backend)
    socket = listen("127.0.0.1", 0)
    ready = threading.Event()
    run = server(service, ready.set)
    thread = threading.Thread(target=run.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield Running(service, url_of(socket))
    finally:
        run.should_exit = True
        thread.join(15)
        socket.close()


def script(folder: Path, *replies: Json, **rest: Any) -> Path:
    """A script file with these replies."""
    path = folder / "script.json"
    path.write_text(json.dumps({**rest, "reply": list(replies)}))
    return path


def message(text: str, **rest: Any) -> Json:
    """A Messages body with one marked user text."""
    block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": [block]}], **rest}
