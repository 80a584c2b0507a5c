"""schemathesis against the server's own OpenAPI description: no 5xx, no reply that the description does not know.

Good and spoilt bodies of every shape are sent to every path. Bounded for each commit; longer with
`CACHEWRIGHT_FUZZ_S=600`.

Two checks are left out: the description is stricter than the server, which passes what it does not know, and it cannot
say what depends on two members at once (a `tool_choice` without tools, a stream with `max_tokens` 0).
"""

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving

from localmodel.engine.threads import wait_briefly

wait_briefly()
if find_spec("schemathesis") is None:
    pytest.skip("schemathesis is not installed (extra `dev`)", allow_module_level=True)

SECONDS = int(os.environ.get("CACHEWRIGHT_FUZZ_S", "10"))
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,ignored_auth"
)


def fuzz(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis for a while; without a seed each run is another one, and failures say how to repeat them."""
    words = ["run", f"{url}/openapi.json", "--checks", CHECKS, "--max-time", str(SECONDS), "--max-examples", "100000"]
    words += ["--request-timeout", "60"]  # an answer may be as long as the model's window
    return subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *words, "--continue-on-failure", "--no-color", *options],
        capture_output=True, text=True, cwd=folder, timeout=SECONDS * 3 + 120,
    )  # fmt: skip


def figure(page: str, name: str) -> float:
    return float(next(line.split()[-1] for line in page.splitlines() if line.startswith(name)))


def test_no_request_of_any_shape_breaks_the_server(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    errors = tmp_path / "stderr"
    words = [*command, "serve", "--port", "0", "--model", "scripted", "--set", "min_tokens=8"]
    with (
        errors.open("w") as into,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=into, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "http://" in line, errors.read_text()
            url = next(word for word in line.split() if word.startswith("http://"))
            found = fuzz(url, tmp_path)
            client = serving.Client(url, "after")
            assert client.post("/v1/messages", serving.message("still there?")).status == 200
            page = settled(client)
        finally:
            process.terminate()
            process.wait(30)
    assert passed(found) > SECONDS
    said = [line for line in errors.read_text().splitlines() if "Invalid HTTP request received" not in line]
    assert (process.returncode, said) == (0, [])
    assert figure(page, "cachewright_running_requests") == figure(page, "cachewright_queue_requests") == 0


def test_no_request_of_any_shape_breaks_the_engine(tmp_path: Path) -> None:
    """The same with weights, though tiny ones in a small window, so that answers end."""
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    import tinymodel

    from localmodel.engine.cache.disk import DiskTier
    from localmodel.engine.engine import Engine, Sizes
    from localmodel.engine.errors import MissingModel
    from localmodel.server.local import LocalBackend

    try:
        parts = tinymodel.parts(400)
    except MissingModel as error:
        pytest.skip(str(error))
    engine = Engine(parts, Sizes(60, host_bytes=2**20), DiskTier(tmp_path / "pages", 2**24))
    with serving.running(backend=LocalBackend(engine), sets=["min_tokens=8"]) as server:
        assert passed(fuzz(server.url, tmp_path)) > SECONDS
        settled(server.client())
        engine.scheduler.cache.check()
    counts = engine.counts
    assert (counts.free + counts.cached, counts.in_use) == (counts.total, 0)
    assert engine.scheduler.cache.refused == {}


def passed(found: subprocess.CompletedProcess[str]) -> int:
    """How many requests were made, all of them well answered."""
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
    made = re.search(r"(\d+) generated", found.stdout)
    assert made is not None, found.stdout[-2000:]
    return int(made[1])


def settled(client: serving.Client) -> str:
    """The metrics once no request is open any more."""
    end = time.monotonic() + 30
    page = client.get("/metrics").raw.decode()
    while figure(page, "cachewright_running_requests") and time.monotonic() < end:
        time.sleep(0.1)
        page = client.get("/metrics").raw.decode()
    return page
