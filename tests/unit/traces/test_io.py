"""Readers and writers of calls: defaults, aliases, rejections, re-reading, CSV, and the cases of the bug reports."""

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from traces.errors import MalformedRow, UnreadableInput
from traces.io import Rejected, find, parse, read, read_request, write
from traces.lines import spans_of
from traces.schema import Call, Place, Usage

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared"

Read = tuple[list[Call], list[Rejected]]


def collect(path: Path) -> Read:
    rejected: list[Rejected] = []
    return list(read(path, on_reject=rejected.append)), rejected


def row(**fields: Any) -> dict[str, Any]:
    base = {"provider": "anthropic", "started_at": "2026-08-22T10:00:00Z", "request": {"model": "m", "messages": []}}
    return {name: value for name, value in (base | fields).items() if value is not ...}


def test_the_rest_of_a_torn_line_is_no_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "grows.jsonl"
    path.write_bytes(b'{"a":1}\n{"b"')
    with path.open("rb") as file:
        spans = spans_of(file)
        assert [next(spans)[3], next(spans)[3]] == [b'{"a":1}\n', b'{"b"']
        with path.open("ab") as writer:
            writer.write(b':2}\n{"c":3}\n')
        assert list(spans) == []


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Read]:
    """Reads rows (objects or raw bytes) from a file "run.jsonl"."""

    def go(*rows: object, end: bytes = b"\n", name: str = "run.jsonl") -> Read:
        raw = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in rows]
        path = tmp_path / name
        path.write_bytes(b"\n".join(raw) + end)
        return collect(path)

    return go


# native rows


def test_defaults_come_from_the_file_and_the_line(lines: Callable[..., Read]) -> None:
    calls, rejected = lines(b"", row())
    assert not rejected
    call = calls[0]
    assert (call.id, call.trace, call.seq) == ("run:2", "run", 2)
    assert (call.agent, call.kind, call.attempt) == ("main", "main", 1)
    assert call.model == "m" and call.usage == Usage() and call.clock == "utc"
    assert call.started_at == datetime(2026, 8, 22, 10, tzinfo=UTC)
    assert call.place is not None and (call.place.line, call.place.offset) == (2, 1)


def test_aliases_unknown_keys_and_nulls(lines: Callable[..., Read]) -> None:
    given = row(session="s", first_byte_at="2026-08-22T10:00:02+00:00", betas=["b1"], whatever=[1], parent=None, id=7)
    calls, rejected = lines(given)
    assert not rejected
    assert (calls[0].trace, calls[0].betas, calls[0].id) == ("s", ("b1",), "7")
    assert calls[0].first_token_at == datetime(2026, 8, 22, 10, 0, 2, tzinfo=UTC)


def test_key_order_of_the_request_is_kept(lines: Callable[..., Read]) -> None:
    calls, _ = lines(row(request={"z": 1, "a": {"y": 1, "b": 2}}))
    assert json.dumps(calls[0].request) == '{"z": 1, "a": {"y": 1, "b": 2}}'


def test_top_level_usage_and_model_win_and_null_usage_is_unknown(lines: Callable[..., Read]) -> None:
    response = {"model": "r", "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}}
    calls, _ = lines(
        row(response=response, request=...),
        row(response=response, usage={"input_tokens": 9, "read_tokens": 3, "write_tokens": 0}, model="top"),
        row(response=response, usage=None),
    )
    assert [call.model for call in calls] == ["r", "top", "m"]
    assert [call.usage for call in calls] == [Usage(5, 1), Usage(9, 3, 0), Usage()]


def test_bom_crlf_and_a_last_line_without_newline_are_accepted(lines: Callable[..., Read]) -> None:
    text = json.dumps(row()).encode()
    calls, rejected = lines(b"\xef\xbb\xbf" + text + b"\r", text, end=b"")
    assert len(calls) == 2 and not rejected
    assert calls[0].place and read_request(calls[0].place) == calls[0].request


NESTED = b'{"provider":"x","request":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{oops}", "not JSON (column 2: expecting property name enclosed in double quotes)"),
        (b"[1]", "not an object but a list"),
        (b"7", "not an object but 7"),
        (b"\xff\xfe\xfd", "not UTF-8 (byte 0 of the row)"),
        (b'{"provider":"\xff"}', "not UTF-8 (byte 13 of the row)"),
        (b"\0\0\0\0", "binary (NUL byte at byte 0 of the row)"),
        (b'{"provider":"x","usage":{"prompt_tokens":NaN}}', "holds NaN, which JSON does not have"),
        (b'{"provider":"x","usage":{"prompt_tokens":1e400}}', "holds a number too large for a double"),
        (b'{"provider":"x","usage":{"prompt_tokens":' + b"1" * 5000 + b"}}", "more than 4300 digits"),
        (NESTED, "nested deeper than 1024 levels"),
        (b'{"provider":"x","id":"\\ud800","usage":{}}', "id: want text without lone surrogates, got '\\ud800'"),
        (row(provider=...), "provider is missing"),
        (row(provider=" "), "provider is missing"),
        (row(request=...), "none of request, response and usage is there"),
        (row(started_at=...), "started_at is missing"),
        (row(started_at="yesterday"), "started_at: want an ISO 8601 time, got 'yesterday'"),
        (row(started_at="0001-01-01T00:00:00+14:00"), "started_at: want an ISO 8601 time"),
        (row(started_at=17), "started_at: want text, got 17"),
        (row(seq=True), "seq: want a whole number, got true"),
        (row(seq=-1), "seq is -1, less than 0"),
        (row(seq=10**30), "seq: want a whole number, got 1e+30"),
        (row(id=1.5), "id: want text or a whole number, got 1.5"),
        (row(kind="odd"), "kind: want one of 'main', 'subagent'"),
        (row(request=[1]), "request: want an object, got a list"),
        (row(tokens={"/a\n": 1.5}), "tokens./a\\n: want a whole number, got 1.5"),
        (row(tokens={"/a": -2}), "tokens./a is -2, less than 0"),
        (row(betas=[1]), "betas.0: want text, got 1"),
        (row(schema="cachewright.trace/2"), "cachewright.trace/2 is newer than this program reads: /1"),
        (row(schema="other/1"), "schema: want cachewright.trace/1, got 'other/1'"),
        (row(usage={"input_tokens": 5, "read_tokens": -1}), "usage.read_tokens is -1, a count is 0 or more"),
        (row(usage={"prompt_tokens": 10**20}), "usage.prompt_tokens is 100000000000000000000, more than"),
    ],
)
def test_a_bad_row_is_rejected_by_file_and_line_and_the_others_are_read(
    lines: Callable[..., Read], tmp_path: Path, bad: object, reason: str
) -> None:
    calls, rejected = lines(row(id="a"), bad, row(id="b"))
    assert [call.id for call in calls] == ["a", "b"]
    assert len(rejected) == 1 and not rejected[0].pending and not rejected[0].kept
    assert f"{rejected[0]}".startswith(f"{tmp_path / 'run.jsonl'}:2: ")
    assert reason in rejected[0].reason
    assert len(f"{rejected[0]}".splitlines()) == 1


def test_lone_surrogates_in_a_body_and_numbers_beyond_64_bits_are_read(lines: Callable[..., Read]) -> None:
    calls, rejected = lines(b'{"provider":"x","started_at":"2026-01-01T00:00:00Z","request":{"t":"\\ud800","n":1e3}}')
    assert not rejected and calls[0].request == {"t": "\ud800", "n": 1000.0}


def test_the_torn_last_line_of_a_growing_file_is_pending(lines: Callable[..., Read]) -> None:
    whole = json.dumps(row(note="é"), ensure_ascii=False).encode()
    for cut in (1, 20, whole.index(b"\xc3") + 1, len(whole) - 1):
        calls, rejected = lines(row(), whole[:cut], end=b"")
        assert len(calls) == 1
        assert [(part.pending, part.place.line) for part in rejected] == [(True, 2)]
    _, rejected = lines(row(), whole[:20])
    assert not rejected[0].pending, "a broken line that is ended will not change"


def test_times_before_the_start_are_left_out_with_a_warning(lines: Callable[..., Read]) -> None:
    calls, rejected = lines(row(ended_at="2026-08-22T09:59:58.5Z", first_token_at="2026-08-22T10:00:00Z"))
    assert calls[0].ended_at is None and calls[0].first_token_at == calls[0].started_at
    assert rejected[0].kept and "ended_at is 1.500 s before started_at" in rejected[0].reason


def test_naive_times_are_utc_with_one_warning_a_file(lines: Callable[..., Read]) -> None:
    naive = row(started_at="2026-08-22T10:00:00", ended_at="2026-08-22T10:00:01")
    calls, rejected = lines(naive, naive)
    assert calls[1].started_at == datetime(2026, 8, 22, 10, tzinfo=UTC)
    assert len(rejected) == 1 and rejected[0].kept


def test_a_usage_or_response_row_needs_no_time(lines: Callable[..., Read]) -> None:
    calls, rejected = lines(
        {"provider": "openai", "usage": {"prompt_tokens": 5}}, {"provider": "openai", "response": {"id": "r"}}
    )
    assert [call.started_at for call in calls] == [None, None] and not rejected


# files


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty (0 bytes)"),
        (b"\n \r\n", "empty, no call in 2 lines"),
        (b"\xff\xfe{\0}\0", "UTF-16 text (byte order mark FF FE); convert it to UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", "no call in 3 lines; line 1: not UTF-8"),
        (b"hello\n", "no call in 1 lines; line 1: not JSON (column 1"),
        (b'{"provider":"x"', "no call in 1 lines; line 1: not JSON"),
        (b"row,begin,duration,total,write,read\n1,0,0,5,0,0\n", "nearest known is row,start,duration,total_input"),
        (b"id,provider,input,cache_read,cached\n", "nearest known is id,provider,input_tokens,cache_read"),
        (b"id,input_tokens\n1,2\n", "column provider is missing"),
        (b"total_input,input_tokens\n", "both total_input and input_tokens"),
        (b"total_input,read,read\n", "column read stands there 2 times"),
        (b"total_input,read\n", "no call in 1 lines"),
    ],
)
def test_a_file_without_any_call_is_unreadable_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput) as caught:
        list(read(path))
    assert reason in f"{caught.value}" and f"{caught.value}".startswith(f"{path}")
    assert len(f"{caught.value}".splitlines()) == 1


def test_missing_files_and_folders_are_unreadable(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "no", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(UnreadableInput, match=reason):
            list(read(path))


def test_a_damaged_first_line_with_commas_does_not_make_a_table(lines: Callable[..., Read]) -> None:
    calls, rejected = lines(b"id,provider", row())
    assert len(calls) == 1 and rejected[0].place.line == 1


def test_gzip_is_known_by_content_and_its_rows_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    texts = [json.dumps(row(request={"n": number})).encode() for number in range(3)]
    path.write_bytes(gzip.compress(b"\n".join(texts[:2]) + b"\n"))
    calls, rejected = collect(path)
    assert not rejected and calls[0].trace == "run"
    assert calls[1].place and calls[1].place.file == f"{path}" and read_request(calls[1].place) == {"n": 1}
    path.write_bytes(gzip.compress(b"\n".join(texts)))
    assert len(collect(path)[0]) == 3, "a changed file is unpacked anew"


def test_truncated_gzip_gives_the_rows_before_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    text = b"".join(json.dumps(row(request={"n": os.urandom(3000).hex()})).encode() + b"\n" for _ in range(20))
    packed = gzip.compress(text)
    path.write_bytes(packed[: len(packed) // 2])
    calls, rejected = collect(path)
    assert 0 < len(calls) < 20
    assert "compressed data is damaged or ends early" in rejected[-1].reason and not rejected[-1].kept


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_standard_input_is_spooled_so_that_rows_can_be_read_again(pack: Callable[[bytes], bytes]) -> None:
    code = (
        "from pathlib import Path; from traces.io import *;"
        "calls = list(read(Path('-'))); print(calls[1].id, calls[1].place, read_request(calls[1].place)['n'])"
    )
    text = b"".join(json.dumps(row(request={"n": number})).encode() + b"\n" for number in range(2))
    done = subprocess.run([sys.executable, "-c", code], input=pack(text), capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.split() == [b"stdin:2", b"-:2", b"1"]


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = json.dumps(row()).encode()
    writer = threading.Thread(target=path.write_bytes, args=(text,))
    writer.start()
    calls, _ = collect(path)
    writer.join()
    assert calls[0].place and read_request(calls[0].place) == calls[0].request


def test_copies_are_removed_when_the_process_ends(tmp_path: Path) -> None:
    code = "from pathlib import Path; from traces.io import *; list(read(Path('-'))); print(find([Path('.')]))"
    environment = dict(os.environ, TMPDIR=f"{tmp_path}", PYTHONPATH=f"{ROOT}")
    (tmp_path / "a.csv").touch()
    text = json.dumps(row()).encode()
    subprocess.run([sys.executable, "-c", code], input=text, cwd=tmp_path, env=environment, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_row_that_changed_since_it_was_read_is_refused(lines: Callable[..., Read]) -> None:
    place = lines(row(), row())[0][1].place
    assert place
    Path(place.file).write_bytes(b"x" * (place.offset + place.length))
    with pytest.raises(MalformedRow, match="has changed since it was read"):
        read_request(place)
    with pytest.raises(UnreadableInput, match="no such file"):
        read_request(Place("/no/such/file", 1, 0, 5))


def test_find_expands_folders_sorted_and_lists_a_file_once(tmp_path: Path) -> None:
    names = ["b.jsonl", "a.csv", "sub/c.jsonl.gz", "note.txt"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "none").mkdir()
    for name in names:
        (tmp_path / name).touch()
    found = find([tmp_path / "b.jsonl", tmp_path, Path("-")])
    assert found == [tmp_path / "b.jsonl", tmp_path / "a.csv", tmp_path / "sub/c.jsonl.gz", Path("-")]
    assert find([tmp_path / "note.txt"]) == [tmp_path / "note.txt"], "a file named is read whatever its ending"
    for bad in (tmp_path / "none", tmp_path / "gone"):
        with pytest.raises(UnreadableInput):
            find([bad])


# writing


FULL = Call(
    id="c1",
    trace="t",
    provider="anthropic",
    started_at=datetime(2026, 8, 22, 10, 0, 0, 1500, UTC),
    seq=4,
    agent="w",
    parent="p",
    kind="subagent",
    attempt=2,
    api="messages",
    host="h",
    key_fp="k",
    model="m",
    betas=("b",),
    first_token_at=datetime(2026, 8, 22, 10, 0, 2, tzinfo=UTC),
    ended_at=datetime(2026, 8, 22, 10, 0, 3, tzinfo=UTC),
    status=200,
    request={"z": 1, "a": [2**80 / 1, "é", "\ud800"]},
    response={"usage": {"input_tokens": 1, "cache_read_input_tokens": 2}},
    tokens={"/tools/0": 5},
    usage=Usage(3, 2),
)


@pytest.mark.parametrize(
    "call",
    [
        FULL,
        replace(FULL, usage=Usage(9, None, 4, 3, 1, 7), tokens={}),
        replace(FULL, usage=Usage()),
        replace(FULL, request=None, response=None, usage=Usage(5), started_at=None, first_token_at=None, ended_at=None),
        replace(FULL, request=None, response=None, usage=Usage()),
        replace(FULL, clock="relative", response={"id": "r"}, usage=Usage()),
        Call("i", "t", "openai", datetime(2026, 1, 1, tzinfo=UTC), request={"model": "m"}, model="m"),
    ],
)
def test_what_is_written_is_read_back(call: Call) -> None:
    file = io.BytesIO()
    write([call], file)
    assert file.getvalue().count(b"\n") == 1
    assert replace(parse(file.getvalue()), place=None) == call


def test_a_body_that_is_no_json_cannot_be_written() -> None:
    with pytest.raises(MalformedRow, match="call c1: cannot be written as JSON"):
        write([replace(FULL, request={"x": object()})], io.BytesIO())
