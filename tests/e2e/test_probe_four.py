"""`cachewright probe four` as a person runs it: against the local server, and against a server with faults."""

import json
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="the SDK is not installed")

import inside
from habits import AutomaticCache, Habits, MessagesCache, UnitsCache
from hosted import Fault, Hosted, hosted

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
Json = dict[str, Any]
CASES = ["1_prepare", "2_confirm", "3_new_question", "4_changed_prefix"]
FIELDS = {
    "case", "requested_model", "response_model", "first_text_s", "request_s", "total_input_tokens", "usage",
    "stop_reason", "complete", "error", "cost_usd",
}  # fmt: skip
KEY = "a-key-that-must-not-be-seen-4711"


@pytest.fixture
def cachewright(tmp_path: Path, environment: dict[str, str]) -> Run:
    return partial(inside.cachewright, tmp_path, environment)


@pytest.fixture
def server() -> Iterator[Hosted]:
    with hosted(MessagesCache(Habits())) as state:
        yield state


def rows(done: Done) -> list[Json]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def probe(cachewright: Run, document: Path, url: str, *more: str) -> Done:
    return cachewright("probe", "four", document, "--target", url, "--model", "claude-opus-4-8", "--json", *more)


def test_hit_partial_reuse_and_loss_on_the_local_server(cachewright: Run, document: Path, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the server needs the extra `local`")
    import serving

    with serving.running() as server:
        done = probe(cachewright, document, server.url, "--out", "run.jsonl")
        served = server.client("local-probe-key").calls()
    assert done.returncode == 0, done.stderr
    *requests, verdict = rows(done)
    assert [row["case"] for row in requests] == CASES
    assert all(set(row) >= FIELDS and row["complete"] and row["error"] is None for row in requests)
    written = requests[0]["usage"]["cache_creation_input_tokens"]
    assert written > 1024
    assert [row["usage"]["cache_read_input_tokens"] for row in requests] == [0, written, written, 0]
    assert [call["verdict"] for call in served] == ["cold_write", "hit", "hit", "miss"]
    assert verdict["verdict"] == "confirmed" and verdict["as_the_rules_predict"] is True
    assert verdict["predicted_read_tokens"] == dict(zip(CASES, [0, written, written, 0], strict=True))
    assert [step["text"].split(":")[0].split()[0] for step in verdict["steps"]] == ["wrote", "hit", "partial", "loss"]
    assert verdict["cannot_establish"]
    assert (tmp_path / "run.jsonl").read_text() == done.stdout
    audit = json.loads(cachewright("audit", "run.jsonl.trace.jsonl", "--json", "--no-store").stdout)
    assert audit["totals"]["calls"] == 4 and all(call["agrees"] for call in audit["calls"])
    assert audit["calls"][3]["diagnosis"]["cause"] == "system_changed"
    for name in ("run.jsonl", "run.jsonl.trace.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_what_is_sent(cachewright: Run, document: Path, server: Hosted) -> None:
    probe(cachewright, document, server.url)
    one, two, three, four = server.bodies
    assert one == two and one["stream"] is True and one["max_tokens"] == 96
    assert [block["cache_control"] for block in one["system"]] == [{"type": "ephemeral"}]
    assert all(len(body["messages"]) == 1 for body in server.bodies)
    assert three["system"] == two["system"] and three["messages"] != two["messages"]
    assert four["messages"] == three["messages"]
    before, after = three["system"][0]["text"], four["system"][0]["text"]
    assert after == before.replace("Document version: A", "Document version: B", 1) != before
    probe(cachewright, document, server.url)
    assert server.bodies[4]["system"] != one["system"]  # a run id of its own


def test_the_plain_report(cachewright: Run, document: Path, server: Hosted) -> None:
    done = cachewright("probe", "four", document, "--target", server.url, "--model", "m")
    assert done.returncode == 0
    assert "partial reuse: the document's" in done.stdout and "verdict: confirmed" in done.stdout
    assert "counted as free" in done.stderr


@pytest.mark.parametrize(
    ("number", "fault", "part", "code"),
    [
        (2, Fault(cut=2), "broke off", 4),
        (3, Fault(error=3), "overloaded_error: Overloaded", 4),
        (1, Fault(cut=0), "no answer", 4),
        (2, Fault(status=529, message="Overloaded"), "http 529: some_error: Overloaded; the API is overloaded", 4),
        (1, Fault(status=401, message="no such key"), "401: some_error: no such key; the key is not accepted", 4),
        (1, Fault(status=404, message="no such model"), "there is no model 'claude-opus-4-8'", 4),
        (3, Fault(status=429, message="slow down"), "the rate limit is reached; nothing is retried", 4),
        (4, Fault(status=500, message="oops"), "http 500", 4),
        (1, Fault(status=302, message="elsewhere"), "302", 4),
        (2, Fault(usage={"input_tokens": 9, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}), "", 1),
        (2, Fault(no_usage=True), "", 1),
        (2, Fault(usage={"input_tokens": -1, "cache_read_input_tokens": "many"}), "", 1),
    ],
)
def test_faults_stop_the_run_and_leave_a_valid_record(
    cachewright: Run, document: Path, server: Hosted, tmp_path: Path, number: int, fault: Fault, part: str, code: int
) -> None:
    server.faults[number] = fault
    done = probe(cachewright, document, server.url, "--out", "run.jsonl")
    assert done.returncode == code
    assert part in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert len(server.bodies) == number  # nothing retried, nothing sent after it
    *requests, verdict = rows(done)
    assert [row["case"] for row in requests] == CASES[:number]
    assert verdict["verdict"] in ("incomplete", "unconfirmed", "unknown")
    assert requests[-1]["complete"] is (code == 1)
    if code == 4:
        assert requests[-1]["error"]
    assert (tmp_path / "run.jsonl").read_text() == done.stdout
    if number > 1:
        audited = cachewright("audit", "run.jsonl.trace.jsonl", "--json", "--no-store")
        assert audited.returncode == 0, audited.stderr


def test_partial_usage_is_kept(cachewright: Run, document: Path, server: Hosted) -> None:
    server.faults[2] = Fault(cut=3)
    *_, second, _ = rows(probe(cachewright, document, server.url))
    assert second["usage"]["cache_read_input_tokens"] > 1000
    assert second["first_text_s"] is not None and second["stop_reason"] is None
    assert second["complete"] is False


def test_missing_fields_are_unknown_not_zero(cachewright: Run, document: Path, server: Hosted) -> None:
    server.faults[1] = Fault(no_usage=True)
    first = rows(probe(cachewright, document, server.url))[0]
    assert first["usage"] == {}
    assert [first[name] for name in ("total_input_tokens", "read_tokens", "write_tokens")] == [None] * 3


def test_a_slow_first_byte_is_measured(cachewright: Run, document: Path, server: Hosted) -> None:
    server.faults[2] = Fault(first_s=0.6)
    done = probe(cachewright, document, server.url)
    waited = [row["first_text_s"] for row in rows(done)[:4]]
    assert done.returncode == 0 and waited[1] > 0.6 > waited[0]


def test_a_model_without_caching_exits_1(cachewright: Run, document: Path) -> None:
    with hosted(MessagesCache(Habits(caches=False))) as server:
        done = probe(cachewright, document, server.url)
    assert done.returncode == 1 and len(server.bodies) == 2
    verdict = rows(done)[-1]
    assert verdict["verdict"] == "unconfirmed"
    assert "the model does not cache" in verdict["steps"][0]["text"]


def test_a_server_that_is_not_there(cachewright: Run, document: Path) -> None:
    done = probe(cachewright, document, "http://127.0.0.1:9")
    assert done.returncode == 4
    assert "check that a server listens there" in done.stderr
    assert rows(done)[-1]["verdict"] == "incomplete"


@pytest.mark.parametrize(("kind", "api"), [("auto", "chat"), ("auto", "responses"), ("units", "chat")])
def test_other_apis(cachewright: Run, document: Path, kind: str, api: str) -> None:
    with hosted(AutomaticCache() if kind == "auto" else UnitsCache()) as server:
        arguments = ("--target", server.url, "--api", api, "--model", "some-model", "--json")
        done = cachewright("probe", "four", document, *arguments)
    requests = rows(done)[:-1]
    assert [row["case"] for row in requests] == CASES
    reads = [row["read_tokens"] for row in requests]
    assert reads[0] == 0 < reads[1] and reads[3] == 0
    # Common beginnings are units of DeepSeek only from the second time on, steps of 128 tokens at OpenAI at once.
    assert (reads[2] > 0) is (kind == "auto")


def test_ctrl_c_leaves_a_valid_record(
    command: list[str], environment: dict[str, str], document: Path, server: Hosted, tmp_path: Path
) -> None:
    server.faults[2] = Fault(stall_s=30)
    arguments = ["probe", "four", f"{document}", "--target", server.url, "--model", "m", "--json", "--out", "run.jsonl"]
    out = tmp_path / "run.jsonl"
    for number, name in enumerate((signal.SIGINT, signal.SIGTERM)):
        if number:
            out.rename(tmp_path / "first.jsonl")
            (tmp_path / "run.jsonl.trace.jsonl").unlink()
            server.faults[len(server.bodies) + 2] = Fault(stall_s=30)
        with subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
        ) as process:
            _until(lambda: out.exists() and out.read_bytes().count(b"\n") == 1)
            time.sleep(0.4)
            process.send_signal(name)
            said, words = process.communicate(timeout=20)
        assert process.returncode == 130 and b"Traceback" not in words
        *requests, verdict = [json.loads(line) for line in said.splitlines()]
        assert [row["complete"] for row in requests] == [True, False]
        assert requests[1]["error"] == "stopped by the user"
        assert requests[1]["usage"]["cache_read_input_tokens"] > 1000  # what had come by then
        assert verdict["verdict"] == "incomplete"
        assert out.read_bytes() == said
        assert len((tmp_path / "run.jsonl.trace.jsonl").read_text().splitlines()) == 2


def test_ctrl_c_at_a_server_that_never_answers(
    command: list[str], environment: dict[str, str], document: Path, server: Hosted, tmp_path: Path
) -> None:
    server.faults[1] = Fault(first_s=30)
    arguments = ["probe", "four", f"{document}", "--target", server.url, "--model", "m", "--json", "--out", "run.jsonl"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        _until(lambda: bool(server.bodies))
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        said, words = process.communicate(timeout=20)
    assert process.returncode == 130 and b"Traceback" not in words
    request, verdict = [json.loads(line) for line in said.splitlines()]
    assert (request["complete"], request["error"], request["usage"]) == (False, "stopped by the user", {})
    assert request["first_event_s"] is None and verdict["verdict"] == "incomplete"
    assert (tmp_path / "run.jsonl").read_bytes() == said


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "empty"), (b" \n", "empty"), (b"a\xff", "not UTF-8 (byte 1)"), (None, "is a directory")]
)
def test_documents_that_are_none(cachewright: Run, server: Hosted, tmp_path: Path, content: Any, part: str) -> None:
    path = tmp_path / "odd"
    path.mkdir() if content is None else path.write_bytes(content)
    done = probe(cachewright, path, server.url)
    assert (done.returncode, done.stdout, server.bodies) == (3, "", [])
    assert part in done.stderr


def test_an_output_that_cannot_be_written_is_found_before_anything_is_sent(
    cachewright: Run, document: Path, server: Hosted
) -> None:
    done = probe(cachewright, document, server.url, "--out", "no/such/folder/run.jsonl")
    assert done.returncode == 2 and "cannot be written" in done.stderr
    assert server.bodies == []


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# Keys -----------------------------------------------------------------------------------------------------------------


def test_a_key_is_never_seen(
    cachewright: Run, environment: dict[str, str], document: Path, server: Hosted, tmp_path: Path
) -> None:
    """Not even where the server repeats it in everything it says."""
    document.write_text(document.read_text() + KEY)
    leak = {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 5, "note": KEY}
    server.faults = {1: Fault(usage=leak), 2: Fault(status=401, message="key {key} is wrong; Bearer {key}")}
    environment |= {
        "CACHEWRIGHT_PROBE_KEY": KEY,
        "ANTHROPIC_API_KEY": "vendor-" + KEY,
        "ANTHROPIC_AUTH_TOKEN": "token-" + KEY,
        "ANTHROPIC_CUSTOM_HEADERS": f"x-secret: custom-{KEY}",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    for number, more in enumerate((["--json"], [])):
        name = f"run{number}.jsonl"
        done = cachewright("probe", "four", document, "--target", server.url, "--model", "m", "--out", name, *more)
        assert done.returncode == 4 and "[key]" in done.stderr
        assert len(server.bodies) == 2
        assert KEY not in done.stdout + done.stderr
        written = [path for path in tmp_path.rglob("*") if path.is_file() and path != document]
        assert {name, f"{name}.trace.jsonl"} <= {path.name for path in written}
        assert [path.name for path in written if KEY.encode() in path.read_bytes()] == []
        for headers in server.headers:
            assert [value.removeprefix("Bearer ") for value in headers.values() if KEY in value] == [KEY]
        server.bodies.clear()


def test_an_earlier_record_is_never_overwritten(
    cachewright: Run, document: Path, server: Hosted, tmp_path: Path
) -> None:
    (tmp_path / "run.jsonl").write_text("precious")
    done = probe(cachewright, document, server.url, "--out", "run.jsonl")
    assert done.returncode == 2 and "is there already" in done.stderr
    assert (tmp_path / "run.jsonl").read_text() == "precious" and server.bodies == []
