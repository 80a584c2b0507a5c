"""The server on the engine: what it reports as read is what was not computed, to the token, in every dialect.

The model is tiny and random, with the default model's tokens: the cache does not care what a model knows.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from localmodel.engine.errors import MissingModel
from localmodel.engine.threads import wait_briefly

wait_briefly()
pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving  # noqa: E402
import tinymodel  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from serving import Client, Reply, Running  # noqa: E402

from localmodel.engine.engine import Engine, Sizes  # noqa: E402
from localmodel.server.local import LocalBackend  # noqa: E402
from localmodel.server.settings import Limits  # noqa: E402

Json = dict[str, Any]
MARK = {"type": "ephemeral"}
SETS = ["min_tokens=16", "lookback.positions=4"]
TOOL = {
    "name": "paint",
    "description": "Paints the wall.",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "twice": {"type": "boolean"}},
        "required": ["colour", "twice"],
        "additionalProperties": False,
    },
}


def engine(pages: int = 2000, **sizes: Any) -> Engine:
    try:
        return Engine(tinymodel.parts(), Sizes(pages, **{"paranoid": pages < 100, **sizes}))
    except MissingModel as error:
        pytest.skip(str(error))


class Big:
    """A server and its engine. No dataclass: hypothesis would print all that is in them."""

    def __init__(self, server: Running, engine: Engine) -> None:
        self.server, self.engine = server, engine


@pytest.fixture(scope="module")
def big() -> Iterator[Big]:
    """A server whose memory holds everything."""
    found = engine(host_bytes=2**26)
    with serving.running(Limits(), LocalBackend(found), sets=SETS) as server:
        yield Big(server, found)
    found.scheduler.cache.check()
    assert found.counts.in_use == 0


@pytest.fixture(scope="module")
def small() -> Iterator[Big]:
    """One whose memory holds a few prompts, with less beside it."""
    found = engine(40, host_bytes=20 * tinymodel.parts().model.new_kv(1).page_bytes)
    with serving.running(Limits(), LocalBackend(found), sets=SETS) as server:
        yield Big(server, found)


@pytest.fixture
def client(big: Big, request: pytest.FixtureRequest) -> Client:
    return big.server.client(request.node.name)


def body(*texts: str, marked: tuple[int, ...] = (-1,), **rest: Any) -> Json:
    """A Messages body of one user message a text, those in `marked` with a breakpoint."""
    blocks: list[Json] = [{"type": "text", "text": text} for text in texts]
    for index in marked:
        blocks[index]["cache_control"] = MARK
    talk = [{"role": "user", "content": [block]} for block in blocks]
    return {"model": "m", "max_tokens": 4, "messages": talk, **rest}


def words(seed: int, count: int = 40) -> str:
    return " ".join(f"w{seed * 7919 % 1000 + number}" for number in range(count))


def text(reply: Reply) -> str:
    assert reply.status == 200, reply.raw
    return "".join(block.get("text", "") for block in reply.json["content"])


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


def total(usage: Json) -> int:
    """The whole input, from the figures of whichever dialect."""
    if "cache_read_input_tokens" in usage:
        return sum(usage[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_"))
    return int(usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"])


def read(usage: Json) -> int:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        if name in usage:
            return int(usage[name]["cached_tokens"])
    return int(usage["cache_read_input_tokens"])


# Case D06_D07: cached tokens are hits, not what happened not to be computed, and each API says them in its own way.


def test_cached_tokens_are_hits_in_every_dialect(big: Big, client: Client) -> None:
    prompt = words(1)
    chat = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": prompt}]}
    more = {**chat, "messages": [{"role": "user", "content": f"{prompt} and five more words"}]}
    other = {**chat, "messages": [{"role": "user", "content": f"zebra {prompt}"}]}
    ways = {
        "/v1/chat/completions": chat,
        "/v1/responses": {"model": "m", "max_output_tokens": 2, "input": prompt},
        "/v1/messages": {**chat, "cache_control": MARK},
    }
    cold = client.post("/v1/chat/completions", chat).json["usage"]
    assert read(cold) == 0
    length = total(cold)
    for path, sent in ways.items():
        usage = client.post(path, sent).json["usage"]
        assert total(usage) == length
        assert 0 < read(usage) < length
        assert read(usage) == length - tail(big)
    assert read(client.post("/v1/chat/completions", more).json["usage"]) == 0, "another block: no entry at its end"
    assert read(client.post("/v1/chat/completions", other).json["usage"]) == 0
    calls = client.calls()
    assert [call["reused_tokens"] for call in calls] == [0, *[length - tail(big)] * 3, 0, 0]


def tail(big: Big) -> int:
    return len(big.server.service.backend.asking())


def test_what_is_reported_as_read_was_not_computed(big: Big, client: Client) -> None:
    engine = big.engine
    before = engine.computed
    talk: list[str] = []
    for turn in range(6):
        talk.append(words(turn))
        client.post("/v1/messages", body(*talk, stream=turn % 2 == 1))
    calls = client.calls()
    assert sum(call["input_tokens"] - call["reused_tokens"] for call in calls) == engine.computed - before
    assert all(call["reused_tokens"] == call["read_tokens"] == call["plan"]["read_tokens"] for call in calls)
    assert [call["verdict"] for call in calls] == ["cold_write", *["hit"] * 5]
    reads = [call["read_tokens"] for call in calls]
    assert reads == sorted(set(reads))


def test_headers_and_stream_and_calls_say_the_same(client: Client) -> None:
    sent = body(words(1), words(2), stream=True)
    for verdict in ("cold_write", "hit"):
        reply = client.post("/v1/messages", sent)
        events = dict(reply.events)
        call = client.calls()[-1]
        assert reply.headers["x-cachewright-verdict"] == call["verdict"] == verdict
        for name in ("read", "write"):
            assert reply.headers[f"x-cachewright-{name}"] == str(call[f"{name}_tokens"])
        for usage in (events["message_start"]["message"]["usage"], events["message_delta"]["usage"]):
            assert total(usage) == call["input_tokens"]
            assert read(usage) == call["read_tokens"]
        assert events["message_delta"]["usage"]["output_tokens"] == call["output_tokens"] <= 4


def test_another_key_or_cache_key_reads_nothing(big: Big, client: Client) -> None:
    sent = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": words(3)}]}
    path = "/v1/chat/completions"
    assert read(client.post(path, sent).json["usage"]) == 0
    assert read(big.server.client("somebody").post(path, sent).json["usage"]) == 0
    assert read(client.post(path, {**sent, "prompt_cache_key": "s"}).json["usage"]) == 0
    assert read(client.post(path, sent).json["usage"]) > 0
    assert [call["reused_tokens"] > 0 for call in client.calls()] == [False, False, True]


def test_a_parameter_that_invalidates_is_obeyed_by_the_engine(client: Client) -> None:
    sent = body(words(4), tools=[TOOL])
    client.post("/v1/messages", sent)
    reply = client.post("/v1/messages", {**sent, "tool_choice": {"type": "any"}})
    assert read(reply.json["usage"]) == 0
    assert client.calls()[-1]["cause"] == "parameter_changed"
    assert client.calls()[-1]["reused_tokens"] == 0


def test_cached_uncached_and_batched_answer_alike(client: Client) -> None:
    bodies = [body(words(5), words(number), max_tokens=12) for number in range(4)]
    alone = [text(client.post("/v1/messages", {**one, "model": f"cold-{number}"})) for number, one in enumerate(bodies)]
    client.post("/v1/messages", body(words(5)))
    with ThreadPoolExecutor(4) as pool:
        together = [text(reply) for reply in pool.map(lambda one: client.post("/v1/messages", one), bodies)]
    cached = [text(client.post("/v1/messages", one)) for one in bodies]
    assert alone == together == cached
    assert all(alone)
    assert client.calls()[-1]["verdict"] == "hit"


def test_switching_between_conversations_loses_neither(client: Client) -> None:
    """Reports D12 and D19: a repeat reads at once, and reading one conversation does not take away the other."""
    one, two = body(words(20), words(21), words(22)), body(words(20), words(23))
    whole = [total(client.post("/v1/messages", sent).json["usage"]) for sent in (one, two)]
    for sent, length in zip((one, two, one, one), (*whole, whole[0], whole[0]), strict=True):
        usage = client.post("/v1/messages", sent).json["usage"]
        assert read(usage) == length - usage["input_tokens"] > 0
    assert {call["verdict"] for call in client.calls()[2:]} == {"hit"}


def test_forced_tools_and_formats_are_followed(client: Client) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "paint"}):
        found = client.post("/v1/messages", body("Paint!", tools=[TOOL], tool_choice=choice, max_tokens=80)).json
        assert found["stop_reason"] == "tool_use"
        assert [block["type"] for block in found["content"]] == ["tool_use"]
        assert found["content"][0]["input"]["colour"] in ("red", "green")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}}}
    chat = {"model": "m", "messages": [{"role": "user", "content": "?"}], "response_format": form, "max_tokens": 40}
    reply = client.post("/v1/chat/completions", chat).json
    assert json.loads(reply["choices"][0]["message"]["content"])["ok"] in (True, False)
    bad = {**TOOL, "input_schema": {"type": "object", "properties": {"a": {"type": "strange"}}}}
    refused = client.post("/v1/messages", body("Paint!", tools=[bad], tool_choice={"type": "any"}))
    assert refused.status == 400
    assert "schema: cannot be followed" in refused.json["error"]["message"]


def test_sampling_stops_and_bounds(client: Client) -> None:
    first = text(client.post("/v1/messages", body("Say it.", max_tokens=30)))
    stop = first[len(first) // 2 :][:3]
    cut = client.post("/v1/messages", body("Say it.", max_tokens=30, stop_sequences=[stop])).json
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert "".join(block["text"] for block in cut["content"]) == first[: first.find(stop)]
    wild = [text(client.post("/v1/messages", body("Say it.", temperature=1, seed=seed))) for seed in (1, 1, 2)]
    assert wild[0] == wild[1] != wild[2]
    assert client.post("/v1/messages", body("Say it.", max_tokens=128_000, stop_sequences=[stop])).status == 200
    assert client.post("/v1/messages", body("Say it.", temperature="hot")).status == 400
    prewarm = client.post("/v1/messages", body(words(6), max_tokens=0)).json
    assert (prewarm["content"], prewarm["usage"]["output_tokens"]) == ([], 0)
    assert read(client.post("/v1/messages", body(words(6))).json["usage"]) > 16


# Eviction: the rules still promise the entry, the memory no longer has it.


@pytest.mark.parametrize("host_pages", [0, 400])
def test_what_was_evicted_is_not_reported_as_read(host_pages: int) -> None:
    page_bytes = tinymodel.parts().model.new_kv(1).page_bytes
    found = engine(40, host_bytes=host_pages * page_bytes)
    with serving.running(Limits(), LocalBackend(found), sets=SETS) as server:
        client = server.client("k")
        sent = body(words(1), words(2))
        first = client.post("/v1/messages", sent)
        for number in range(3, 9):
            client.post("/v1/messages", body(words(number), words(number + 10)))
        again = client.post("/v1/messages", sent)
        call = client.calls()[-1]
        lacking = call["plan"]["read_tokens"] - call["reused_tokens"]
        assert text(again) == text(first)
        assert read(again.json["usage"]) == call["reused_tokens"] == call["read_tokens"]
        assert (lacking == 0) == bool(host_pages), "what was evicted comes back from the host's memory, to the token"
        assert call["cause"] == ("evicted" if lacking else "hit")
        assert call["lost_tokens"] == lacking
        assert again.headers["x-cachewright-cause"] == call["cause"]
        assert again.headers["x-cachewright-read"] == str(call["read_tokens"])
        computed = sum(one["input_tokens"] - one["reused_tokens"] for one in client.calls())
        assert computed == found.computed
        pages = found.counts
        assert (pages.free + pages.cached, pages.total) == (40, 40)


# Random streams: the record folded through `step` predicts what was reported, and memory agrees.

Op = tuple[int, int, int, bool, str]
OPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3), st.booleans(), st.sampled_from(["m", "n"])),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(ops=OPS)
def test_random_requests_read_what_step_predicts(big: Big, ops: list[Op]) -> None:
    calls = sent_at_random(big, ops)
    assert all(call["plan"]["read_tokens"] == call["read_tokens"] for call in calls)


@settings(max_examples=15, deadline=None)
@given(ops=OPS)
def test_random_requests_in_little_memory_read_no_more_than_is_there(small: Big, ops: list[Op]) -> None:
    for call in sent_at_random(small, ops):
        assert call["read_tokens"] <= call["plan"]["read_tokens"]
        lacking = call["plan"]["read_tokens"] - call["read_tokens"]
        assert (call["cause"] == "evicted") <= (lacking > 0) <= (call["lost_tokens"] >= lacking)


def sent_at_random(big: Big, ops: list[Op]) -> list[Json]:
    """Each request: talk, its blocks, which of them is marked, whether it streams, model. The calls, checked."""
    client, engine, before = big.server.client(str(uuid4())), big.engine, big.engine.computed
    for talk, count, mark, stream, model in ops:
        texts = [words(talk * 100 + number * (number > 1), 10 + number) for number in range(count)]
        reply = client.post("/v1/messages", body(*texts, marked=(min(mark, count - 1),), stream=stream, model=model))
        assert reply.status == 200
    calls = client.calls()
    assert len(calls) == len(ops)
    for call in calls:
        assert call["read_tokens"] == call["reused_tokens"]
        assert call["read_tokens"] + call["write_tokens"] + call["uncached_tokens"] == call["input_tokens"]
    assert sum(call["input_tokens"] - call["reused_tokens"] for call in calls) == engine.computed - before
    assert until(lambda: engine.counts.in_use == 0)
    return calls


# Case D10: streams that are given up leave nothing behind.


@contextmanager
def opened(client: Client, sent: Json) -> Iterator[socket.socket]:
    """A connection on which a request was sent; it is closed at the end, whatever has come back."""
    raw, place = json.dumps(sent).encode(), urlsplit(client.url)
    with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {client.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        yield connection


def give_up(client: Client, sent: Json, after: int) -> None:
    """Send a streaming request and close the connection after so many events."""
    with opened(client, sent) as connection:
        seen = b""
        while seen.count(b"\n\n") < after and (more := connection.recv(4096)):
            seen += more


def test_cancelled_streams_leave_nothing_behind(client: Client, big: Big) -> None:
    server, engine = big.server, big.engine
    first = text(client.post("/v1/messages", {**body(words(1), words(2), max_tokens=12), "model": "cold"}))
    for number in range(200):
        sent = body(words(1), words(2), words(number, 200), stream=True, max_tokens=12)
        give_up(client, sent, after=(0, 1, 3, 14)[number % 4])
        counts = engine.counts
        assert counts.free + counts.cached + counts.in_use == counts.total
    assert until(lambda: server.service.gate.running == 0 and engine.counts.in_use == 0)
    assert engine.scheduler.idle
    assert text(client.post("/v1/messages", body(words(1), words(2), max_tokens=12))) == first


# Back-pressure and metrics.


def test_a_full_queue_is_an_overload_in_each_dialect() -> None:
    found = engine(queue=1, batch=1)
    with serving.running(Limits(slots=1, queue=2), LocalBackend(found), sets=SETS) as server:
        client = server.client("k")
        long = body("go on", max_tokens=20_000, stream=True)
        with opened(client, long), opened(client, long), opened(client, long):
            assert until(lambda: server.service.gate.waiting == 2)
            assert client.post("/v1/messages", body("hi")).status == 529
            chat = client.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            assert chat.status == 503
            assert chat.headers["retry-after"] == "1"
        assert until(lambda: found.scheduler.idle and found.counts.in_use == 0)
    with serving.running(None, LocalBackend(engine(queue=0)), sets=SETS) as server:
        client, paths = server.client("k"), ("/v1/messages", "/v1/chat/completions")
        told = [client.post(path, body("hi", stream=on)).status for on in (False, True) for path in paths]
        assert told == [call["status"] for call in client.calls()] == [529, 503, 529, 503], "recorded as answered"


def test_metrics_count_pages_by_state(big: Big, client: Client) -> None:
    client.post("/v1/messages", body(words(9)))
    page = client.get("/metrics").raw.decode()
    states = {line.split('"')[1]: int(line.split()[-1]) for line in page.splitlines() if "kv_pages{" in line}
    assert sum(states[name] for name in ("free", "cached", "in_use")) == big.engine.counts.total
    for name in ("ttft_seconds_count", "queue_requests", "hit_ratio"):
        assert f"cachewright_{name}" in page


def test_a_prompt_beyond_the_window_is_refused(client: Client) -> None:
    reply = client.post("/v1/messages", body("word " * 30_000))
    assert reply.status == 400
    assert "prompt is too long" in reply.json["error"]["message"]
