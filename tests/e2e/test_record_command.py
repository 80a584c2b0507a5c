"""`cachewright record -- COMMAND`: the command sees its own world, with its calls recorded."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from proxying import Connection, answer, recorded, upstream

Done = subprocess.CompletedProcess[str]
ASK = """
import json, os, sys, urllib.request
base = os.environ["ANTHROPIC_BASE_URL"]
for text in sys.argv[1:]:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": [
        {"type": "text", "text": text * 3000, "cache_control": {"type": "ephemeral"}}]}]}
    request = urllib.request.Request(base + "/v1/messages", json.dumps(body).encode(),
        {"content-type": "application/json", "x-api-key": "sk-ant-child-0123456789"})
    print(json.load(urllib.request.urlopen(request))["usage"]["cache_read_input_tokens"])
"""


def test_records_and_watches(tmp_path: Path, cachewright: Callable[..., Done]) -> None:
    with serving.running() as server:
        done = cachewright(
            *("record", "--upstream", server.url, "--db", "a.db", "--watch", "--"),
            *(sys.executable, "-c", ASK, "hello ", "hello ", "other "),
        )
    assert done.returncode == 0, done.stderr
    reads = [int(line) for line in done.stdout.split()]
    assert reads[0] == reads[2] == 0 < reads[1]
    lines = [line for line in done.stderr.splitlines() if ":" in line and " main " in line]
    assert len(lines) == 3, done.stderr
    assert "cold write" in lines[0]
    assert f"input {reads[1]:,} | read 100.0 % | written 0" in lines[1]
    assert "| hit | expires in " in lines[1]
    assert "$0.00" in lines[1]
    assert "sk-ant-child" not in done.stderr + done.stdout
    assert "recorded 3 attempts as run-" in done.stderr
    report = cachewright("audit", "--db", "a.db", "--json")
    found = json.loads(report.stdout)
    assert [call["verdict"] for call in found["calls"]][:2] == ["cold_write", "hit"]


def test_exit_status_and_environment(tmp_path: Path, cachewright: Callable[..., Done]) -> None:
    show = "import os, sys, json; print(json.dumps({k: v for k, v in os.environ.items() if 'BASE' in k})); sys.exit(7)"
    done = cachewright("record", "--db", "a.db", "--", sys.executable, "-c", show)
    assert done.returncode == 7
    urls = json.loads(done.stdout)
    assert urls["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert urls["ANTHROPIC_BASE_URL"].endswith("/to/anthropic")
    assert urls["OPENAI_BASE_URL"].endswith("/to/openai/v1")
    done = cachewright("record", "--db", "a.db", "--", "no-such-program")
    assert done.returncode == 2
    assert "no-such-program: cannot be run (no such file or directory)" in done.stderr
    done = cachewright("record", "--db", "a.db", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + signal.SIGKILL


def test_a_base_url_that_is_set_already_is_the_upstream(
    tmp_path: Path, command: list[str], environment: dict[str, str]
) -> None:
    paths: list[bytes] = []

    def handle(connection: Connection) -> None:
        head, _ = connection.request()
        paths.append(head.split(b" ")[1])
        connection.send(answer(json.dumps({"usage": {"cache_read_input_tokens": 5}}).encode()))

    with upstream(handle) as url:
        words = [*command, "record", "--db", "a.db", "--", sys.executable, "-c", ASK, "x"]
        own = environment | {"ANTHROPIC_BASE_URL": f"{url}/gateway"}
        done = subprocess.run(words, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert paths == [b"/gateway/v1/messages"]
    (exchange,) = recorded(tmp_path / "a.db")
    assert exchange.path == "/gateway/v1/messages"
    assert exchange.call is not None
    assert exchange.call.provider == "anthropic"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_signals_reach_the_command(tmp_path: Path, command: list[str], environment: dict[str, str]) -> None:
    child = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True); time.sleep(30)"
    )
    words = [*command, "record", "--db", str(tmp_path / "a.db"), "--", sys.executable, "-c", child]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        assert found.stdout.readline() == "ready\n"
        found.send_signal(signal.SIGTERM)
        out, err = found.communicate(timeout=30)
    assert out == "told\n"
    assert found.returncode == 5
    assert "Traceback" not in err


def test_known_clients() -> None:
    from tui.commands.clients import prepared

    with prepared(("/bin/codex", "exec", "hi"), {"HOME": "/nowhere"}, "http://p/run/r", None) as (words, environment):
        assert words == ["/bin/codex", "-c", 'openai_base_url="http://p/run/r/to/openai/v1"', "exec", "hi"]
        assert environment["NO_PROXY"] == "127.0.0.1,localhost"
    mine = {"OPENCODE_CONFIG_CONTENT": '{"theme":"x","provider":{"anthropic":{"options":{"timeout":5}}}}'}
    with prepared(("opencode", "run"), mine, "http://p", None) as (_, environment):
        config = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
        assert config["theme"] == "x"
        assert config["provider"]["anthropic"]["options"] == {"timeout": 5, "baseURL": "http://p/to/anthropic/v1"}
    with prepared(("aider",), {}, "http://p", None) as (_, environment):
        assert environment["ANTHROPIC_API_BASE"] == environment["ANTHROPIC_BASE_URL"] == "http://p/to/anthropic"


def test_pi_gets_a_folder_of_links(tmp_path: Path) -> None:
    from tui.commands.clients import prepared

    own = tmp_path / ".pi" / "agent"
    own.mkdir(parents=True)
    (own / "auth.json").write_text("{}")
    (own / "models.json").write_text('{"providers":{"mine":{"baseUrl":"u"}}}')
    with prepared(("pi", "-p"), {"HOME": str(tmp_path)}, "http://p", None) as (_, environment):
        folder = Path(environment["PI_CODING_AGENT_DIR"])
        models = json.loads((folder / "models.json").read_text())
        assert models["providers"]["mine"] == {"baseUrl": "u"}
        assert models["providers"]["anthropic"] == {"baseUrl": "http://p/to/anthropic"}
        assert (folder / "auth.json").read_text() == "{}"
        (folder / "sessions" / "new").write_text("kept")
    assert not folder.exists()
    assert (own / "sessions" / "new").read_text() == "kept"
    assert json.loads((own / "models.json").read_text()) == {"providers": {"mine": {"baseUrl": "u"}}}


def test_bad_options(cachewright: Callable[..., Done]) -> None:
    for words, told in (
        (("proxy", "--listen", "8378"), "want HOST:PORT"),
        (("proxy", "--upstream", "ftp://x"), "want http(s)://HOST[:PORT][/PATH]"),
        (("proxy", "--upstream", "http://me:secret@x"), "holds a user name or password"),
        (("record", "--upstream", "nonsense", "--", "true"), "no such URL"),
        (("purge",), "say which calls"),
        (("purge", "--before", "yesterday"), "want a day"),
    ):
        done = cachewright(*words)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
        assert "secret" not in done.stderr


def test_purge_command(tmp_path: Path, cachewright: Callable[..., Done]) -> None:
    calls = tmp_path / "calls.jsonl"
    row = {
        "provider": "anthropic",
        "started_at": "2026-11-01T00:00:00Z",
        "request": {"messages": [], "model": "PURGEMARK"},
    }
    calls.write_text(json.dumps(row) + "\n")
    cachewright("audit", calls, "--db", "a.db")
    assert b"PURGEMARK" in (tmp_path / "a.db").read_bytes()
    assert cachewright("purge", "--db", "a.db", "--before", "2026-10-01").stdout == "0 calls deleted\n"
    assert cachewright("purge", "--db", "a.db", "--all").stdout == "1 calls deleted\n"
    assert b"PURGEMARK" not in (tmp_path / "a.db").read_bytes()
    assert cachewright("purge", "--db", "none.db", "--all").returncode == 3


def test_expiry_is_told_in_time() -> None:
    from datetime import UTC, datetime, timedelta

    from auditor.live import Live
    from auditor.pricing import open_prices
    from localmodel.rules.book import Rulebook
    from traces.schema import Call, Usage

    start = datetime(2026, 11, 20, tzinfo=UTC)
    live = Live(Rulebook(), open_prices())
    block = {"type": "text", "text": "word " * 5000, "cache_control": {"type": "ephemeral"}}
    call = Call(
        "c", "run", "anthropic", start, api="messages", model="claude-sonnet-5-5", host="api.anthropic.com",
        request={"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": [block]}]},
        usage=Usage(5010, 0, 5007, 5007, 0, 3), status=200,
    )  # fmt: skip
    line = live.take(call, "conversation")
    assert line.expires_at == start + timedelta(seconds=300)
    assert not list(live.warnings(start + timedelta(seconds=260)))
    (told,) = live.warnings(start + timedelta(seconds=275))
    assert told == "run: 5,007 cached tokens of main expire in 25 s, $0.0125 to write again"
    assert not list(live.warnings(start + timedelta(seconds=280)))
    assert not list(live.warnings(start + timedelta(seconds=301)))
