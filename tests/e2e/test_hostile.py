"""Hostile surroundings and input: no traceback, one line a problem, the good rows audited, nothing recorded lost."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]

ROOT = Path(__file__).parents[2]
FOURTEEN = ROOT / "traces/recorded/fourteen/calls.jsonl"
LARGEST = 2**53


def row(minute: int, **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 3_000, "cache_read_input_tokens": 0, "output_tokens": 1}
    request = {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Hello."}],
    }
    base = {"provider": "anthropic", "started_at": f"2026-05-01T10:{minute:02}:00Z", "request": request}
    return base | {"id": f"good-{minute}", "status": 200, "response": {"usage": usage}} | fields


def save(path: Path, *rows: dict[str, Any] | str) -> None:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows))


def ids(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [call["id"] for call in json.loads(done.stdout)["calls"]]


def deep(levels: int) -> str:
    """A row whose first tool is nested that deep: more than Python can write as JSON, less than orjson refuses."""
    text = json.dumps(row(2, request={**row(2)["request"], "tools": [{"name": "t", "input_schema": "@"}]}))
    return text.replace('"@"', '{"a":' * levels + "1" + "}" * levels)


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["tools", "text"])
def test_lone_surrogates_are_reported_in_json_too(cachewright: Run, tmp_path: Path, where: str) -> None:
    odd: dict[str, Any] = json.loads(json.dumps(row(2)["request"]))
    if where == "tools":
        odd["tools"] = [{"name": "a\ud800", "description": "\udfff", "input_schema": {"\ud800": 1}}]
    else:
        odd["system"][0]["text"] = "Be \ud800 brief."
    save(tmp_path / "odd.jsonl", row(1), row(2, request=odd), row(3, request=odd | {"tools": []}))
    assert ids(cachewright("audit", "odd.jsonl", "--json", "--no-store")) == ["good-1", "good-2", "good-3"]
    for more in (["audit", "odd.jsonl", "--no-store"], ["lint", "odd.jsonl", "--json"]):
        done = cachewright(*more)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("complete", [True, False])
def test_token_counts_beyond_64_bits_in_sum(cachewright: Run, tmp_path: Path, complete: bool) -> None:
    parts = [{"type": "text", "text": f"{number}"} for number in range(1_100)]
    request = row(2)["request"] | {"messages": [{"role": "user", "content": parts}]}
    tokens = {f"/messages/0/content/{number}": LARGEST for number in range(1_100)} | {"/nowhere": 1, "no pointer": 2}
    tokens |= {"/system/0": 5} if complete else {}
    bad = row(2, request=request, tokens=tokens, response={"id": "no usage"})
    save(tmp_path / "huge.jsonl", row(1), bad, row(3))
    done = cachewright("audit", "huge.jsonl", "--json", "--no-store")
    assert ids(done) == ["good-1", "good-2", "good-3"]
    assert done.stderr.startswith("huge.jsonl:2: token counts add up to more than 2**63" if complete else "")
    assert len(done.stderr.splitlines()) == complete


def test_calls_at_both_ends_of_the_calendar(cachewright: Run, tmp_path: Path) -> None:
    moments = ["0001-01-01T00:00:00Z", *["9999-12-31T23:59:59.999999Z"] * 3]
    rows = [row(number, started_at=moment) for number, moment in enumerate(moments)]
    save(tmp_path / "ends.jsonl", *rows, row(9))
    assert len(ids(cachewright("audit", "ends.jsonl", "--json", "--db", "a.db"))) == 5
    assert len(ids(cachewright("audit", "--json", "--db", "a.db"))) == 5


def test_what_no_store_can_hold_costs_one_row(cachewright: Run, tmp_path: Path) -> None:
    save(tmp_path / "deep.jsonl", row(1), deep(1_000), row(3))
    first = cachewright("audit", "deep.jsonl", "--json", "--db", "a.db")
    assert ids(first) == ["good-1", "good-2", "good-3"]
    assert [line.partition(" nested")[0] for line in first.stderr.splitlines()] == [
        "not stored: deep.jsonl:2:",
        "deep.jsonl:2: body is",
    ]
    assert ids(cachewright("audit", "--json", "--db", "a.db")) == ["good-1", "good-3"]


def test_lint_goes_on_after_a_bad_row(cachewright: Run, tmp_path: Path) -> None:
    save(tmp_path / "mixed.jsonl", row(1), "{oops}", deep(100_000), row(4, request={"messages": 7}), row(5))
    done = cachewright("lint", "mixed.jsonl", "--json")
    assert done.returncode == 0
    assert [found["file"] for found in json.loads(done.stdout)] == ["mixed.jsonl:1", "mixed.jsonl:5"]
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [f"mixed.jsonl:{n}" for n in (2, 3, 4)]


def test_usage_alone_costs_the_same_for_each_call(cachewright: Run, tmp_path: Path) -> None:
    """Each miss looks back at what its thread did before; 8,000 of them took ten seconds when that was a search."""
    rows = []
    for number in range(8_000):
        read = 4_000 if number % 3 else 0
        usage = {"input_tokens": 5_000 + number, "read_tokens": read, "write_tokens": 5_000 + number - read}
        moment = f"2026-05-{1 + number // 2_880:02}T{number // 120 % 24:02}:{number // 2 % 60:02}:{number % 2 * 30:02}Z"
        rows.append({"provider": "anthropic", "id": f"{number}", "started_at": moment, "usage": usage})
    save(tmp_path / "usage.jsonl", *rows)
    before = os.times().children_user
    assert len(ids(cachewright("audit", "usage.jsonl", "--json", "--no-store"))) == 8_000
    assert os.times().children_user - before < 6


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--rules", "--prices"])
@pytest.mark.parametrize("ending", ["toml", "json"])
def test_deep_rule_and_price_files_are_refused(cachewright: Run, tmp_path: Path, option: str, ending: str) -> None:
    name = f"./deep.{ending}"
    (tmp_path / name).write_text(("a = " if ending == "toml" else "") + "[" * 100_000)
    done = cachewright("audit", FOURTEEN, "--no-store", option, name)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cachewright: deep.{ending}: ") or "no built-in ruleset" in line


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs the endless device of a Unix system")
def test_a_device_is_not_read_for_ever(cachewright: Run) -> None:
    done = cachewright("audit", "/dev/zero", "--no-store")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "cachewright: /dev/zero: a device, which may never end; name a file\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_diff_reads_a_pipe_once(cachewright: Run, tmp_path: Path) -> None:
    body = json.dumps(row(1)["request"])
    (tmp_path / "body.json").write_text(body)
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", "cat body.json > pipe"], cwd=tmp_path):
        assert cachewright("diff", "pipe", "body.json", "--json").returncode == 0


def test_names_of_files_do_not_act_on_a_terminal(cachewright: Run, tmp_path: Path) -> None:
    save(tmp_path / "\x1b[2J\u202e.jsonl", row(1), "{oops}", row(3, request={"messages": [7]}))
    done = cachewright("audit", "\x1b[2J\u202e.jsonl", "--no-store")
    missing = cachewright("rules", "show", "\x1b[2J")
    assert (done.returncode, missing.returncode) == (0, 3)
    assert not set(done.stdout + done.stderr + missing.stderr) & set("\x1b\u202e")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE calls SET started_at = 'junk'",
        "UPDATE calls SET seq = x'00'",
        "UPDATE calls SET betas = 7",
        "UPDATE calls SET request = x'7b'",
        "UPDATE blocks SET content = x'789c00'",
        "UPDATE calls SET blocks = x'00'",
        "DROP TABLE calls",
    ],
)
def test_a_damaged_store_is_one_line(cachewright: Run, tmp_path: Path, change: str) -> None:
    save(tmp_path / "two.jsonl", row(1), row(2))
    assert len(ids(cachewright("audit", "two.jsonl", "--json", "--what-if", "none", "--db", "a.db"))) == 2
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute(change)
    connection.commit()
    connection.close()
    done = cachewright("audit", "--json", "--db", "a.db")
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("cachewright: a.db: ") and "import the traces again" in line


# Words of the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["rules", "show", "anthropic", "--at", "9999-12-31T23:59:59-14:00"], 2),
        (["prices", "show", "claude-opus-5", "--at", "0001-01-01T00:00:00+14:00"], 2),
        (["audit", f"{FOURTEEN}", "--no-store", "--fail-under-hit-ratio", "nan"], 2),
        (["diff", f"{FOURTEEN}:1", f"{FOURTEEN}:²"], 3),
    ],
)
def test_odd_words_are_refused(cachewright: Run, arguments: list[str], code: int) -> None:
    done = cachewright(*arguments)
    assert (done.returncode, done.stdout) == (code, "")


# Streams and signals -------------------------------------------------------------------------------------------------


def shell(command: list[str], environment: dict[str, str], folder: Path, words: str) -> Done:
    """`"$@" WORDS` of a shell, `"$@"` being the command."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {words}', "sh", *command],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("audit - --no-store <&-", 3, "cachewright: -: standard input is closed; name a file\n"),
        ("audit none.jsonl --no-store 2>&-", 3, ""),
        ("audit none.jsonl --no-store 2>/dev/full", 3, ""),
        (f"audit '{FOURTEEN}' --no-store 2>&- >/dev/null", 0, ""),
        (f"audit '{FOURTEEN}' --no-store --json >&-", 0, ""),
        (f"audit '{FOURTEEN}' --no-store >/dev/full", 3, "cachewright: output: No space left on device; "),
        (f"audit '{FOURTEEN}' --no-store --json >/dev/full", 3, "cachewright: output: No space left on device; "),
    ],
)
def test_closed_and_full_streams(
    command: list[str], environment: dict[str, str], tmp_path: Path, words: str, code: int, line: str
) -> None:
    if "/dev/full" in words and not Path("/dev/full").exists():
        pytest.skip("needs the full device of Linux")
    done = shell(command, environment, tmp_path, words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(line) and done.stderr.count("\n") == bool(line)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_audit_leaves_a_sound_store(
    command: list[str], environment: dict[str, str], cachewright: Run, tmp_path: Path, sign: signal.Signals
) -> None:
    save(tmp_path / "long.jsonl", *[row(number % 60, id=f"{number}") for number in range(2_000)])
    with subprocess.Popen(
        [*command, "audit", "long.jsonl", "--json", "--db", "a.db"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
    ) as process:  # fmt: skip
        while process.poll() is None and not stored(tmp_path / "a.db"):
            time.sleep(0.02)
        process.send_signal(sign)
        out, err = process.communicate()
    expected = (130, "", "cachewright: stopped\n") if sign is signal.SIGINT else (-sign, "", "")
    assert (process.returncode, out, err) == expected
    assert stored(tmp_path / "a.db") % 500 == 0, "whole batches only"
    assert len(ids(cachewright("audit", "long.jsonl", "--json", "--what-if", "none", "--db", "a.db"))) == 2_000
    assert stored(tmp_path / "a.db") == 2_000


def stored(db: Path) -> int:
    """Calls in a store that another process may be writing; 0 where there is none yet."""
    if not db.exists():
        return 0
    connection = sqlite3.connect(db, timeout=5)
    try:
        (count,) = connection.execute("SELECT count(*) FROM calls").fetchone()
        return int(count)
    except sqlite3.Error:
        return 0
    finally:
        connection.close()
