"""The command line: exit codes, what goes to which stream, and the store."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tui.commands.reading import LARGE_BYTES

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]

ROOT = Path(__file__).parents[2]
FOURTEEN = ROOT / "traces/recorded/fourteen/calls.jsonl"
BODY = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}


def report(done: Done) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def said(done: Done, code: int) -> str:
    """The one line on stderr of a command that ended with `code` and printed nothing."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


# Exit codes ----------------------------------------------------------------------------------------------------------


def test_0_and_stdout_is_the_report_alone(cachewright: Run) -> None:
    found = report(cachewright("audit", FOURTEEN, "--json", "--no-store"))
    assert (found["schema"], len(found["calls"])) == ("cachewright.audit/1", 14)
    text = cachewright("audit", FOURTEEN, "--no-store")
    assert (text.returncode, text.stderr) == (0, "")
    assert "14 calls, 592,180 input tokens: 52.65 % read from" in text.stdout
    assert "\x1b" not in text.stdout


@pytest.mark.parametrize(
    ("option", "limit", "code", "line"),
    [
        ("--fail-under-hit-ratio", "0.52", 0, ""),
        ("--fail-under-hit-ratio", "0.53", 1, "hit ratio 0.526462 is under 0.53"),
        ("--fail-on-avoidable", "0.68", 0, ""),
        ("--fail-on-avoidable", "0.67", 1, "is over 0.67"),
    ],
)
def test_1_findings_beyond_the_limit_asked_for(cachewright: Run, option: str, limit: str, code: int, line: str) -> None:
    done = cachewright("audit", FOURTEEN, "--json", "--no-store", option, limit)
    assert done.returncode == code
    assert json.loads(done.stdout)["totals"]["calls"] == 14, "the report is printed all the same"
    assert line in done.stderr and len(done.stderr.splitlines()) == bool(line)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["audit", "--jsno"], "'--json'"),
        (["audit", "--what-if", "some"], "'none', 'all'"),
        (["audti"], "Did you mean 'audit'?"),
        (["lint"], "Missing argument"),
        (["diff", "one"], "Missing argument"),
        (["rules", "show", "anthropic", "--at", "soon"], "'soon' is no date"),
    ],
)
def test_2_wrong_usage_names_what_is_right(cachewright: Run, arguments: list[str], part: str) -> None:
    done = cachewright(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["audit", "none.jsonl"], "none.jsonl: no such file or folder"),
        (["audit", "."], "no *.jsonl"),
        (["audit", FOURTEEN, "--rules", "antropic"], "nearest is 'anthropic'"),
        (["audit", FOURTEEN, "--rules", "none.toml"], "none.toml"),
        (["audit", FOURTEEN, "--prices", "none.json"], "none.json: cannot be read"),
        (["audit", "--db", "fresh.db"], "no calls to audit"),
        (["diff", "none.json", "none.json"], "none.json"),
        (["diff", f"{FOURTEEN}:1", f"{FOURTEEN}:99"], "no call '99' in it"),
        (["lint", "none.json"], "none.json"),
        (["rules", "show", "antropic"], "nearest is 'anthropic'"),
    ],
)
def test_3_unreadable_input_is_one_line(cachewright: Run, arguments: list[str], part: str) -> None:
    assert part in said(cachewright(*arguments), 3)


def test_a_rule_file_with_an_unknown_key_names_the_nearest(cachewright: Run, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    value = 'value = 7\nstatus = "assumed"\nchecked = 2026-01-01\nsource = "me"\n'
    rules.write_text(f'schema = 1\ninherits = "anthropic"\n[sources]\nme = "I"\n[[min_token]]\n{value}')
    line = said(cachewright("audit", FOURTEEN, "--rules", rules), 3)
    assert "mine.toml" in line and "unknown key 'min_token'" in line and "'min_tokens'" in line


def test_what_if_none_leaves_the_replay_out(cachewright: Run) -> None:
    found = report(cachewright("audit", FOURTEEN, "--json", "--no-store", "--what-if", "none"))
    assert found["what_if"] == [] and found["totals"]["calls"] == 14


# Pipes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["audit", f"{FOURTEEN}", "--no-store"], ["rules", "show", "anthropic"]])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(
    command: list[str], environment: dict[str, str], arguments: list[str], option: list[str], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*command, *arguments, *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before anything is written, so that each write fails
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_standard_input_is_a_file_like_any_other(cachewright: Run) -> None:
    piped = report(cachewright("audit", "-", "--json", "--no-store", stdin=FOURTEEN.read_text()))
    assert piped == report(cachewright("audit", FOURTEEN, "--json", "--no-store"))


# The store -----------------------------------------------------------------------------------------------------------


def test_the_store_gives_the_audit_of_the_file(cachewright: Run, tmp_path: Path) -> None:
    from_file = report(cachewright("audit", FOURTEEN, "--json", "--db", "a.db"))
    again = report(cachewright("audit", FOURTEEN, "--json", "--db", "a.db"))
    assert report(cachewright("audit", "--json", "--db", "a.db")) == again == from_file
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == ["a.db"]


def test_the_default_store_lies_in_the_data_folder(cachewright: Run, tmp_path: Path) -> None:
    report(cachewright("audit", FOURTEEN, "--json"))
    (db,) = (tmp_path / "data").rglob("*.db")
    assert len(report(cachewright("audit", "--json", "--db", db))["calls"]) == 14


def test_no_store_writes_nothing(cachewright: Run, tmp_path: Path) -> None:
    report(cachewright("audit", FOURTEEN, "--json", "--no-store"))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_none_is_unreadable(cachewright: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to look like one\n" * 20)
    assert "text.db" in said(cachewright("audit", FOURTEEN, "--db", "text.db"), 3)


def test_two_audits_at_once_into_one_store(
    command: list[str], environment: dict[str, str], cachewright: Run, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        rows = [json.loads(line) | {"trace": name} for line in FOURTEEN.read_text().splitlines()]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    started = [
        subprocess.Popen(
            [*command, "audit", f"{name}.jsonl", "--json", "--db", "both.db"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
        )
        for name in ("one", "two", "one")
    ]  # fmt: skip
    outputs = [process.communicate() for process in started]
    assert [(process.returncode, err) for process, (_, err) in zip(started, outputs, strict=True)] == [(0, "")] * 3
    assert all(len(json.loads(out)["calls"]) == 14 for out, _ in outputs)
    assert len(report(cachewright("audit", "--json", "--db", "both.db"))["calls"]) == 28


# The other commands --------------------------------------------------------------------------------------------------


def test_diff_of_two_calls(cachewright: Run) -> None:
    found = report(cachewright("diff", f"{FOURTEEN}:4", f"{FOURTEEN}:call-5", "--json"))
    assert (found["cause"], found["change"]) == ("tools_changed", "inserted")
    assert found["first_change"]["path"] == "/tools/1"
    text = cachewright("diff", f"{FOURTEEN}:4", f"{FOURTEEN}:5")
    assert text.returncode == 0 and "/tools/1" in text.stdout


def test_diff_of_two_bodies(cachewright: Run, tmp_path: Path) -> None:
    for name, effort in (("a", "low"), ("b", "high")):
        (tmp_path / f"{name}.json").write_text(json.dumps(BODY | {"output_config": {"effort": effort}}))
    found = report(cachewright("diff", "a.json", "b.json", "--json"))
    assert [one["name"] for one in found["parameters"]] == ["effort"]


def test_lint_refuses_what_the_provider_refuses(cachewright: Run, tmp_path: Path) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": f"{n}", **mark} for n in range(5)]
    (tmp_path / "five.json").write_text(json.dumps(BODY | {"messages": [{"role": "user", "content": parts}]}))
    done = cachewright("lint", "five.json", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    (found,) = json.loads(done.stdout)
    assert "too_many_breakpoints" in [one["code"] for one in found["findings"]]
    text = cachewright("lint", "five.json")
    assert text.returncode == 1 and "five.json" in text.stdout
    mixed = cachewright("lint", "none.json", "five.json", "--json")
    assert mixed.returncode == 1 and len(mixed.stderr.splitlines()) == 1 and len(json.loads(mixed.stdout)) == 1


def test_lint_of_a_trace_checks_every_request(cachewright: Run) -> None:
    assert len(report(cachewright("lint", FOURTEEN, "--json"))) == 14


def test_rules_show(cachewright: Run) -> None:
    done = cachewright("rules", "show", "anthropic", "--json", "--model", "claude-opus-4-7", "--at", "2026-06-08")
    text = json.dumps(report(done))
    assert "min_tokens" in text and "4096" in text and "documented" in text and "checked" in text
    plain = cachewright("rules", "show", "anthropic", "--model", "claude-opus-4-7")
    assert plain.returncode == 0 and "min_tokens" in plain.stdout


def test_prices_show(cachewright: Run) -> None:
    (row,) = report(cachewright("prices", "show", "claude-opus-5", "--json"))
    assert (row["input"], row["cache_read"]) == ("5", "0.5")
    line = said(cachewright("prices", "show", "claude-opus-9-9"), 1)
    assert "claude-opus-9-9: unpriced" in line


# A large file is read by a second process ----------------------------------------------------------------------------


def test_a_large_file_is_judged_the_same_as_its_compressed_copy(cachewright: Run, tmp_path: Path) -> None:
    plain, zipped = tmp_path / "calls.jsonl", tmp_path / "calls.jsonl.gz"
    generate = [sys.executable, f"{ROOT}/tests/bench/generate.py", "--sessions", "50", "--out", f"{plain}"]
    subprocess.run(generate, check=True, capture_output=True)
    with plain.open("ab") as file:
        file.write(b'{"torn')
    assert plain.stat().st_size > LARGE_BYTES
    zipped.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=1))
    options = ("--json", "--what-if", "none", "--db", tmp_path / "db")
    both = [cachewright("audit", path, *options) for path in (plain, zipped)]
    assert [done.returncode for done in both] == [0, 0]
    reports = [json.loads(done.stdout) for done in both]
    assert [row["line"] for each in reports for row in each.pop("rejected")] == [701, 701]
    assert reports[0] == reports[1]
    assert len(reports[0]["calls"]) == 50 * 14
    assert "calls.jsonl:701: not JSON" in both[0].stderr
    stored = report(cachewright("audit", "--json", "--what-if", "none", "--db", tmp_path / "db"))
    assert stored["totals"] == json.loads(both[0].stdout)["totals"]
