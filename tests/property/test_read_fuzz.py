"""Whatever a file holds, reading raises only `UnreadableInput`, speaks in single lines, and loses no good row."""

import gzip
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput
from traces.io import Rejected, read, read_request

ROOT = Path(__file__).parents[2]
FAST = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

GOOD = {
    "schema": "cachewright.trace/1",
    "seq": 1,
    "kind": "main",
    "provider": "anthropic",
    "started_at": "2026-08-22T10:00:00.000Z",
    "ended_at": "2026-08-22T10:00:05.000Z",
    "status": 200,
    "request": {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}]},
    "response": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0}},
    "tokens": {"/messages/0/content/0": 1},
}
HEADERS = ["row,start,duration,total_input,write,read", "id,provider,input_tokens,cache_read,cache_write,cached_tokens"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", "x\ny", 10**25]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
usages = st.dictionaries(
    st.sampled_from(["input_tokens", "cache_read_input_tokens", "cache_creation", "prompt_tokens", "read_tokens"]),
    json_values,
)
changes = st.dictionaries(st.sampled_from([*GOOD, "id", "usage", "first_token_at", "betas", "clock"]), json_values)


def good(number: int) -> bytes:
    return json.dumps(GOOD | {"id": f"good-{number}"}).encode()


def check(path: Path) -> tuple[list[str], list[Rejected]]:
    """Read one file as a user would, holding every message to the rules; gives the ids read and what was rejected."""
    rejected: list[Rejected] = []
    ids: list[str] = []
    try:
        for call in read(path, on_reject=rejected.append):
            ids.append(call.id)
            assert call.started_at is None or call.started_at.tzinfo is UTC
            assert call.place is not None
            if call.request is not None:
                assert read_request(call.place) == call.request
    except UnreadableInput as error:
        assert not ids
        assert one_line(f"{error}")
    assert all(one_line(f"{part}") for part in rejected)
    return ids, rejected


def one_line(text: str) -> bool:
    text.encode()  # can be shown: no lone surrogate
    return len(text.splitlines()) == 1 and len(text) < 1000 and text.isprintable()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "run.jsonl"


@FAST
@given(data=st.binary(max_size=300))
def test_random_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    check(path)


@FAST
@given(data=st.binary(max_size=300).map(lambda data: data.replace(b"\n", b" ")))
def test_random_bytes_between_good_rows(path: Path, data: bytes) -> None:
    path.write_bytes(b"\n".join([good(1), data, good(2), b""]))
    ids, _ = check(path)
    assert ids == ["good-1", "good-2"]


@FAST
@given(data=st.binary(max_size=200), keep=st.integers(0, 100))
def test_damaged_gzip(path: Path, data: bytes, keep: int) -> None:
    packed = gzip.compress(b"\n".join([good(1), good(2), b""]))
    path.write_bytes(packed[: keep * len(packed) // 100] + data)
    check(path)


@FAST
@given(value=json_values)
def test_json_of_wrong_shapes(path: Path, value: Any) -> None:
    path.write_bytes(b"\n".join([good(1), json.dumps(value).encode(), good(2), b""]))
    ids, rejected = check(path)
    assert ids == ["good-1", "good-2"] and [part.place.line for part in rejected] == [2]


@FAST
@given(change=changes, usage=st.none() | usages)
def test_good_rows_with_wrong_fields(path: Path, change: dict[str, Any], usage: dict[str, Any] | None) -> None:
    bad = GOOD | change | ({} if usage is None else {"usage": usage})
    path.write_bytes(b"\n".join([good(1), json.dumps(bad).encode(), good(2), b""]))
    ids, rejected = check(path)
    assert [name for name in ids if name.startswith("good-")] == ["good-1", "good-2"]
    lost = [part for part in rejected if not part.kept]
    assert len(ids) + len(lost) == 3


@FAST
@given(at=st.integers(0, len(good(1)) - 1), new=st.binary(min_size=1, max_size=3))
def test_mutated_bytes(path: Path, at: int, new: bytes) -> None:
    row = good(1)
    path.write_bytes(b"\n".join([good(0), row[:at] + new + row[at + len(new) :], good(2), b""]))
    ids, _ = check(path)
    assert ids[0] == "good-0" and ids[-1] == "good-2"


@FAST
@given(cut=st.integers(1, 2 * len(good(1)) + 1))
def test_truncated_files_end_in_a_pending_line(path: Path, cut: int) -> None:
    path.write_bytes((good(1) + b"\n" + good(2))[:cut])
    ids, rejected = check(path)
    whole = (cut >= len(good(1))) + (cut == 2 * len(good(1)) + 1)
    assert len(ids) == whole
    torn = cut not in (len(good(1)), len(good(1)) + 1, 2 * len(good(1)) + 1)
    assert [part.pending for part in rejected] == [True] * torn


@FAST
@given(start=st.datetimes(timezones=st.none() | st.just(UTC)), end=st.datetimes(timezones=st.just(UTC)))
def test_missing_naive_and_backward_times(path: Path, start: datetime, end: datetime) -> None:
    rows = [
        GOOD | {"started_at": start.isoformat(), "ended_at": end.isoformat(), "first_token_at": end.isoformat()},
        {name: value for name, value in GOOD.items() if not name.endswith("_at")},
    ]
    path.write_bytes(b"\n".join(json.dumps(row).encode() for row in rows))
    calls = list(read(path))
    assert len(calls) == 2 and calls[1].started_at is None
    # What is in its calendar's first or last year stands for an unknown time, of which nothing can be too early.
    told = [1 < time.year < 9999 for time in (start, end)]
    assert (calls[0].started_at is None) == (not told[0])
    assert (calls[0].ended_at is None) == (not told[1] or (told[0] and end < start.replace(tzinfo=UTC)))


@FAST
@given(
    header=st.sampled_from(HEADERS),
    rows=st.lists(st.lists(st.text(max_size=6) | st.integers().map(str), max_size=8).map(",".join), max_size=4),
)
@example(header=HEADERS[0], rows=["{"])
def test_tables_with_wild_cells(path: Path, header: str, rows: list[str]) -> None:
    cells = "7,anthropic,5,1,0,0" if "provider" in header else "7,00:10,5,9,0,1"
    text = "\n".join([header, cells, *rows, cells, ""])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    ids, _ = check(path)
    assert ids[0] == ids[-1] == "7"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"provider":"x","request":{"a":'])
def test_deep_nesting(path: Path, opening: bytes) -> None:
    path.write_bytes(b"\n".join([good(1), opening * 100_000, good(2), b""]))
    ids, rejected = check(path)
    assert ids == ["good-1", "good-2"] and "nested deeper than" in rejected[0].reason


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_and_utf32(path: Path, encoding: str) -> None:
    path.write_bytes(good(1).decode().encode(encoding))
    assert check(path)[0] == []


MEASURED = """
import re, sys
from pathlib import Path
from traces.io import read
rejected = []
print([call.id for call in read(Path(sys.argv[1]), on_reject=rejected.append)], *rejected, sep="|")
print(re.search("VmHWM:[^0-9]*([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""


# VmHWM, because Linux hands ru_maxrss of the process that forks on to its child, where it would measure pytest.
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("start", "megabytes", "ids", "reason"),
    [
        (b'{"provider":"x","request":{"t":"', 100, ["good-1", "good-2"], "100000035 bytes, more than 67108864"),
        (b"", 100, ["good-1", "good-2"], "100000003 bytes"),
        (b'{"id":"long","provider":"x","usage":{},"t":"', 40, ["good-1", "long", "good-2"], ""),
    ],
)
def test_a_row_of_100_mb_is_skipped_without_being_loaded(
    path: Path, start: bytes, megabytes: int, ids: list[str], reason: str
) -> None:
    with path.open("wb") as file:
        file.write(good(1) + b"\n" + start)
        for _ in range(megabytes):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + good(2) + b"\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, f"{path}"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    path.unlink()
    said, kilobytes = done.stdout.splitlines()
    assert said.startswith(f"{ids}") and reason in said
    assert int(kilobytes) < 200 * 1024
