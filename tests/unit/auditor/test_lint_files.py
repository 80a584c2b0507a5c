"""What the linter reads and prints: bodies bare, wrapped and in traces, reports, and bad files."""

import gzip
import json
from pathlib import Path

import pytest

from auditor.lint import MAX_BYTES, as_json, as_text, lint, lint_file, read_body, read_calls
from localmodel.rules.load import load
from traces.errors import MalformedRow, UnreadableInput
from traces.schema import JsonObject

RULES = load("anthropic")
MARKED = {"cache_control": {"type": "ephemeral"}}


def body(words: str, **marks: JsonObject) -> JsonObject:
    content = [{"type": "text", "text": words, **marks}]
    return {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": content}]}


BARE = body("Read the code with care. " * 400)
GOOD = BARE | MARKED


def test_text_report_is_one_line_a_finding() -> None:
    request = body("hi", **MARKED) | {"tools": [{"name": "x\n\x1b[31m", "defer_loading": True, **MARKED}]}
    lines = as_text("a b.json", lint(request, RULES, moment=None)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("a b.json:/tools/0: error defer_loading_with_cache_control: tool ")
    assert all(line.isprintable() for line in lines)
    assert as_text("a.json", []) == ""


def test_json_report() -> None:
    report = as_json("a.json", lint(body("hi", **MARKED), RULES, moment=None))
    (finding,) = json.loads(json.dumps(report))["findings"]
    assert report["file"] == "a.json"
    assert finding["code"] == "below_minimum"
    assert finding["paths"] == ["/messages/0/content/0"]
    assert finding["rule"] == {"id": "min_tokens", "status": "documented", "checked": "2026-10-08"}


def test_bodies_bare_and_wrapped(tmp_path: Path) -> None:
    for number, value in enumerate((GOOD, {"request": GOOD}, {"url": "x", "body": GOOD})):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(value))
        assert read_body(path) == GOOD
        assert lint_file(path, RULES, moment=None) == [(str(path), [])]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 5000 + b"]" * 5000, "not JSON"),
        (b"[]", "not an object"),
        (b"{}", 'no "messages"'),
        (b'{"request": []}', 'no "messages"'),
    ],
)
def test_bad_files_give_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(UnreadableInput, match=words) as caught:
        read_body(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing_file_folder_and_size(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"none\.json: no such file or directory"):
        read_body(tmp_path / "none.json")
    with pytest.raises(UnreadableInput, match="is a directory"):
        read_body(tmp_path)
    with pytest.raises(UnreadableInput, match="embedded null byte"):
        read_body(Path("a\0b"))
    large = tmp_path / "large.json"
    with large.open("wb") as handle:
        handle.truncate(MAX_BYTES + 1)
    with pytest.raises(UnreadableInput, match="larger than 64 MiB"):
        read_body(large)


def test_trace_is_linted_once_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    rows = [{"request": BARE}, {"request": BARE}, {"response": {}}, {"request": BARE, "api": "chat"}, {"request": GOOD}]
    path.write_text("\n".join(map(json.dumps, rows)) + '\n\n{"torn": ')
    results = lint_file(path, RULES, moment=None)
    assert [(place, [f.code for f in found]) for place, found in results] == [
        (f"{path}:1", ["no_breakpoint"]),
        (f"{path}:2", []),
        (f"{path}:5", []),
    ]


def test_trace_with_a_bad_line_or_without_bodies(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("{]\n")
    with pytest.raises(UnreadableInput, match=r"calls\.jsonl:1: not JSON"):
        list(read_calls(path))
    path.write_text('{"usage": {}}\n')
    with pytest.raises(UnreadableInput, match="no call has a Messages request"):
        list(read_calls(path))


def test_malformed_body_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"messages": [5]}')
    with pytest.raises(MalformedRow, match=r"a\.json: messages\[0\] is a number"):
        lint_file(path, RULES, moment=None)


FOURTEEN = Path(__file__).parents[3] / "traces" / "recorded" / "fourteen" / "calls.jsonl"


def test_tokens_that_a_trace_counted_are_not_estimated() -> None:
    found = [(place, f.code) for place, findings in lint_file(FOURTEEN, RULES, moment=None) for f in findings]
    assert found == [(f"{FOURTEEN}:11", "lookback_risk")], "its texts are short, but each call says what they counted"


def test_a_compressed_trace_is_linted_like_a_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "calls.jsonl.gz"
    packed.write_bytes(gzip.compress(FOURTEEN.read_bytes()))
    plain = [[f.code for f in findings] for _, findings in lint_file(FOURTEEN, RULES, moment=None)]
    assert [[f.code for f in findings] for _, findings in lint_file(packed, RULES, moment=None)] == plain
    assert len(plain) == 14
