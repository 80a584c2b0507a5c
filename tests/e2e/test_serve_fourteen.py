"""The 14-row trace sent for real over HTTP to the command: to the scripted model, a tiny one, and the default one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving
from fourteen import ROOT, Scale, checked, expected, recorded, send_all, tail_text

from localmodel.engine.errors import MissingModel
from localmodel.engine.fetch import default_model
from localmodel.engine.threads import wait_briefly
from localmodel.server.blocks import text_of
from localmodel.server.pieces import tokenise

wait_briefly()
Json = dict[str, Any]


@contextmanager
def command(folder: Path, scale: Scale, **options: object) -> Iterator[tuple[serving.Client, Path, Path]]:
    """`cachewright serve` as a user starts it, its rule file and its record."""
    rules, record = folder / "fast.toml", folder / "calls.jsonl"
    rules.write_text(scale.rules)
    given = {"port": 0, "rules": rules, "record": record, **options}
    arguments = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    program = [sys.executable, "-c", "from tui.cli import main; main(prog_name='cachewright')", "serve", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        try:
            yield serving.Client(url), rules, record
        finally:
            process.terminate()
            process.wait(10)
        assert process.returncode == 0
        assert process.stdout.read() == ""


def test_every_row_has_the_same_verdict(tmp_path: Path) -> None:
    scale = Scale(tokens=5, speed=100, ttl_s=3)
    script = serving.script(tmp_path, {"match": "Block tail", "text": "Done.", "delay_ms": 400}, {"text": "Done."})
    rows = recorded()
    tail_text(rows)
    with command(tmp_path, scale, model="scripted", script=script) as (client, rules, record):
        replies = send_all(client, rows, scale, lambda part: len(tokenise(text_of(part))))
        calls = checked(replies, client, record, rules)
        by_row = [next(call for call in calls if call["id"] == reply.json["id"]) for reply in replies]
        assert [(c["input_tokens"], c["write_tokens"], c["read_tokens"]) for c in by_row] == expected(scale)
        audited(record, rules, calls, tmp_path)


def test_every_row_on_the_engine(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    import tinymodel

    from localmodel.engine.engine import Engine, Sizes
    from localmodel.server.local import LocalBackend

    scale = Scale(tokens=12, speed=30, ttl_s=10)
    try:
        backend = LocalBackend(Engine(tinymodel.parts(), Sizes(8000)))
    except MissingModel as error:
        pytest.skip(str(error))
    rules, record = tmp_path / "fast.toml", tmp_path / "calls.jsonl"
    rules.write_text(scale.rules)
    with serving.running(None, backend, rules=str(rules), record=record) as server:
        client = server.client()
        replies = send_all(client, short(), scale, lambda part: len(backend.block(part)))
        calls = checked(replies, client, record, rules)
    audited(record, rules, calls, tmp_path)


@pytest.mark.slow
def test_every_row_on_the_default_model(tmp_path: Path) -> None:
    """Its window has 8,192 tokens, so the trace shrinks to a 25th; takes two minutes, on few cores five.

    To a thirtieth it would fit too, but then rows 13 and 14 lose 1,017 tokens, too few to be called a loss.
    """
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    from localmodel.engine.gguf import open_gguf
    from localmodel.engine.template import for_model
    from localmodel.engine.tokenizer import from_gguf
    from localmodel.server.segments import segment_of

    try:
        file = open_gguf(default_model())
    except MissingModel as error:
        pytest.skip(str(error))
    tokenizer = from_gguf(file.metadata, place="default")
    template = for_model(file.metadata.get("tokenizer.chat_template"), tokenizer, place="default")
    speed = 8 if (os.cpu_count() or 1) >= 4 else 3
    scale = Scale(tokens=25, speed=speed, ttl_s=round(300 / speed) + 1)
    with command(tmp_path, scale, model="default") as (client, rules, record):
        replies = send_all(client, short(), scale, lambda part: len(segment_of(part, template).tokens(tokenizer)))
        calls = checked(replies, client, record, rules)
    audited(record, rules, calls, tmp_path)


def short() -> list[Json]:
    """The rows, each to be answered in four tokens."""
    rows = recorded()
    for row in rows:
        row["request"]["max_tokens"] = 4
    return rows


def audited(record: Path, rules: Path, calls: list[Json], home: Path) -> None:
    """`cachewright audit` of the record says the same, but for the leader of a group, which it alone points at."""
    program = [sys.executable, "-c", "from tui.cli import main; main(prog_name='cachewright')", "audit", str(record)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    options = ["--json", "--no-store", "--what-if", "none", "--rules", str(rules)]
    done = subprocess.run([*program, *options], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert [call["agrees"] for call in report["calls"]] == [True] * 14
    assert {call["id"]: call["verdict"] for call in report["calls"]} == {call["id"]: call["verdict"] for call in calls}
    causes = {call["id"]: call["diagnosis"]["cause"] for call in report["calls"] if call["diagnosis"]}
    lossy = [call for call in calls if call["lost_tokens"]]
    assert {call["id"]: causes[call["id"]] for call in lossy} == {call["id"]: call["cause"] for call in lossy}
    lost = {call["id"]: call["diagnosis"]["lost_tokens"] for call in report["calls"] if call["diagnosis"]}
    assert {call["id"]: lost[call["id"]] for call in lossy} == {call["id"]: call["lost_tokens"] for call in lossy}
