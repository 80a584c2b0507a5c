"""Credentials reach the upstream and nothing else: no file, no message, no page."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from proxying import Connection, answer, chunks, post, proxied, read_reply, recorded, upstream

from auditor.audit import audit
from auditor.store import Store
from harness.recorder.secrets import Masker
from localmodel.rules.load import load
from traces.io import write
from tui.commands.recording import spool_of

KEY = "sk-ant-FAKE-header-0000000000"


def everything(folder: Path) -> bytes:
    """All bytes of all files below a folder, and all bodies in them."""
    raw = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    for exchange in recorded(folder / "a.db"):
        raw += repr(exchange).encode()
    return raw


def test_every_corner(tmp_path: Path, shared: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = shared / "cases" / "F08"
    capture, secrets = (json.loads((case / f"{name}.json").read_text()) for name in ("capture", "secrets"))
    expected = json.loads((case / "expected.json").read_text())
    got: list[bytes] = []
    path = "/" + capture["url"].split("/", 3)[3]
    body = json.dumps({**capture["body"], "metadata": capture["metadata"]}).encode()
    fields = [f"{name}: {value}" for name, value in capture["headers"].items()]
    error = json.dumps(
        {"error": {"message": capture["error"]["traceback"], "echo": f"bad key {secrets['A']}"}}
    ).encode()

    def handle(connection: Connection) -> None:
        got.append(b"".join(connection.request()))
        connection.send(answer(error, f"Set-Cookie: sid={secrets['E']}", status="400 Bad Request"))
        got.append(b"".join(connection.request()))
        connection.send(answer(gzip.compress(error), "Content-Encoding: gzip"))
        got.append(b"".join(connection.request()))
        event = b"data: " + error.replace(b"bad key", b"bad\\nkey") + b"\n\n"
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in chunks(event[:60], event[60:75], event[75:]):
            connection.send(byte)

    with upstream(handle) as url, proxied(tmp_path / "a.db", url) as proxy, proxy.client() as client:
        for name in (path, "/v1/messages", "/v1/chat/completions"):
            client.sendall(post(name, body, *fields))
            _, reply = read_reply(client)
            assert capture["error"]["traceback"].encode() in (
                gzip.decompress(reply) if name == "/v1/messages" else reply
            )
            spooled = b"".join(file.read_bytes() for file in spool_of(tmp_path / "a.db").glob("*"))
            assert not [mark for mark in expected["must_not_appear"] if secrets[mark].encode() in spooled]
        with proxy.client() as another:
            another.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            _, page = read_reply(another)
    for mark in ("A", "B", "C", "D", "E", "G"):
        assert secrets[mark].encode() in got[0], "the upstream gets the real values"
    with (tmp_path / "export.jsonl").open("wb") as file, Store.open(tmp_path / "a.db") as store:
        write(store.calls(), file)
    seen = everything(tmp_path) + page + "\n".join([*proxy.said, *capfd.readouterr()]).encode()
    for mark in expected["must_not_appear"]:
        assert secrets[mark].encode() not in seen, mark
    assert secrets["G"].encode() in seen, "the conversation is what the user asked to record"
    exchanges = recorded(tmp_path / "a.db")
    assert all(one.facts["request"]["masked"] for one in exchanges)
    prints = {one.call.key_fp for one in exchanges if one.call}
    assert len(prints) == 1
    assert None not in prints


def test_fingerprints_are_salted_and_rotating_tokens_have_none() -> None:
    one, other = Masker(b"a" * 16), Masker(b"b" * 16)
    header = [(b"x-api-key", KEY.encode())]
    assert one.learn(header, b"/") == one.learn([(b"Authorization", b"Bearer " + KEY.encode())], b"/")
    assert one.learn(header, b"/") != other.learn(header, b"/")
    assert one.learn([(b"authorization", b"Bearer sk-ant-oat01-abcdefgh")], b"/") is None
    assert one.learn([], b"/v1?key=0123456789") == one.fingerprint(b"0123456789")


def test_a_secret_cut_by_the_network_is_still_found() -> None:
    masker = Masker(b"s" * 16)
    masker.learn([(b"x-api-key", KEY.encode())], b"/")
    for cut in range(1, len(KEY)):
        assert masker.held_back(b"text " + KEY[:cut].encode()) == cut
    assert masker.held_back(b"text") == 0
    assert KEY.encode() not in masker.body(b'{"a":"%s"}' % KEY.encode())


def test_short_keys_mask_no_innocent_text() -> None:
    masker = Masker(b"s" * 16)
    masker.learn([(b"x-api-key", b"x")], b"/")
    assert masker.body(b'{"x":"extra"}') == b'{"x":"extra"}'


def test_plain_conversation_is_not_touched() -> None:
    masker = Masker(b"s" * 16)
    text = json.dumps({"tools": [{"input_schema": {"properties": {"authorization": {"type": "string"}}}}]}).encode()
    assert masker.body(text) == text
    nested = json.dumps({"text": json.dumps({"X-Api-Key": "sk-other-key-000"})}).encode()
    assert b"sk-other-key-000" not in masker.body(nested)


def conversation(turns: int, changed: int | None = None) -> list[dict[str, Any]]:
    """Messages bodies of one agent; from turn `changed` on the system text is another."""
    bodies = []
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        system = "SECRETWORD rules " * 1500 + ("x" if changed is not None and turn >= changed else "")
        plain = {"type": "text", "text": f"ask {turn} " * 200}
        marked = {**plain, "cache_control": {"type": "ephemeral"}}
        asked = [*messages, {"role": "user", "content": [marked]}]
        block = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        bodies.append({"model": "claude-sonnet-5-5", "max_tokens": 9, "system": [block], "messages": asked})
        messages += [{"role": "user", "content": [plain]}, {"role": "assistant", "content": "answer"}]
    return bodies


@pytest.mark.parametrize("redact", [False, True])
def test_redacted_bodies_still_diagnose(tmp_path: Path, redact: bool) -> None:
    """Verdict and cause of a changed system text, with and without bodies."""
    reads = [0, 6000, 0, 6200]

    def handle(connection: Connection) -> None:
        for read in reads:
            connection.request()
            usage = {"input_tokens": 3, "cache_read_input_tokens": read, "output_tokens": 4}
            usage["cache_creation_input_tokens"] = 300 if read else 6000
            reply = {"id": "m", "type": "message", "content": [{"type": "text", "text": "SECRETWORD"}], "usage": usage}
            connection.send(answer(json.dumps(reply).encode()))

    with upstream(handle) as url, proxied(tmp_path / "a.db", url, redact=redact) as proxy, proxy.client() as client:
        for body in conversation(4, changed=2):
            client.sendall(post("/run/r/v1/messages", json.dumps(body).encode(), f"x-api-key: {KEY}"))
            read_reply(client)
    with Store.open(tmp_path / "a.db") as store:
        result = audit(store.calls(), load("anthropic"), lambda call: store.request(call.call.key or b""))
    found = [(one.verdict, one.diagnosis.primary.cause if one.diagnosis else None) for one in result.calls]
    assert found[0][0] == "cold_write"
    assert found[1][0] == "hit"
    assert found[2] == ("miss", "system_changed")
    raw = everything(tmp_path)
    assert (b"SECRETWORD" in raw) is not redact
    if redact:
        exchanges = recorded(tmp_path / "a.db")
        assert all(one.request is None and one.response is None for one in exchanges)
        assert all(
            one.facts["request"]["size"] > 1000 and len(one.facts["request"]["digest"]) == 32 for one in exchanges
        )


def test_purge_leaves_nothing(tmp_path: Path) -> None:
    db = tmp_path / "a.db"

    def handle(connection: Connection) -> None:
        while True:
            connection.request()
            connection.send(answer(json.dumps({"id": "m", "text": "REPLYMARK" * 500}).encode()))

    with upstream(handle) as url, proxied(db, url) as proxy, proxy.client() as client:
        for run in ("keep", "drop"):
            for turn in range(20):
                text = {"role": "user", "content": f"{run.upper()}MARK {turn} shared" + "z" * turn}
                client.sendall(post(f"/run/{run}/v1/messages", json.dumps({"messages": [text]}).encode()))
                read_reply(client)
        client.sendall(post("/run/drop/other?DROPMARK", b"DROPMARK"))
        read_reply(client)
    with Store.open(db) as store:
        salt = store.salt()
        assert store.purge(trace="drop") == 20
        assert store.purge(trace="drop") == 0
        assert {call.trace for call in store.calls()} == {"keep"}
        assert store.salt() == salt
        raw = b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))
        assert b"DROPMARK 1" not in raw
        assert b"KEEPMARK 1" in raw
        assert store.purge() == 21
        assert store.salt() != salt
        raw = b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))
    for mark in (b"KEEPMARK", b"DROPMARK", b"REPLYMARK"):
        assert mark not in raw
