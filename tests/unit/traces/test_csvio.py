"""Usage tables, and the cases of the bug reports in both formats."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from traces import csvio
from traces.io import Rejected, read, read_request
from traces.schema import Call, Usage

SHARED = Path(__file__).parents[4] / "shared"

Read = tuple[list[Call], list[Rejected]]


def collect(path: Path) -> Read:
    rejected: list[Rejected] = []
    return list(read(path, on_reject=rejected.append)), rejected


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Read]:
    def go(text: str) -> Read:
        path = tmp_path / "usage.csv"
        path.write_bytes(text.encode())
        return collect(path)

    return go


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout")
    return path


def test_the_relative_table(table: Callable[[str], Read]) -> None:
    text = "row,start,duration,total_input,write,read\n1,00:00,20,8500,8500,0\n2,1:02:03,0:15,10000,1500,8500\n"
    calls, rejected = table(text + "3,90.5,,10,,\n")
    assert not rejected
    assert [call.usage for call in calls] == [Usage(8500, 0, 8500), Usage(10000, 8500, 1500), Usage(10)]
    assert [call.clock for call in calls] == ["relative"] * 3
    assert calls[1].started_at == csvio.EPOCH + timedelta(hours=1, minutes=2, seconds=3)
    assert calls[1].ended_at == csvio.EPOCH + timedelta(hours=1, minutes=2, seconds=18)
    assert calls[2].started_at == csvio.EPOCH + timedelta(seconds=90.5) and calls[2].ended_at is None
    assert (calls[1].id, calls[1].seq, calls[1].provider, calls[1].trace) == ("2", 2, "anthropic", "usage")


def test_bom_quotes_crlf_semicolons_blank_and_short_rows_survive(table: Callable[[str], Read]) -> None:
    text = '\ufeff"Row";"Total_Input";"read";"write"\r\n"1";"5";"2";"1"\r\n\r\n2;7\r\n3;9;1;0;;\r\n"4;8;1;0\r\n5;6;0;0'
    calls, rejected = table(text)
    assert [(call.seq, call.usage.input_tokens, call.usage.read_tokens) for call in calls] == [
        (1, 5, 2),
        (2, 7, None),
        (3, 9, 1),
        (5, 6, 0),
    ]
    assert len(rejected) == 1 and rejected[0].place.line == 6, "a quote left open costs its own row only"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("1,00:75,1,5,0,0", "start: want mm:ss, hh:mm:ss or seconds, got '00:75'"),
        ("1,9999999999,1,5,0,0", "start: want mm:ss"),
        ("1,999999:00:00,1,5,0,0", "start is '999999:00:00', more than 1000000000 seconds"),
        ("1,0,-3,5,0,0", "duration: want mm:ss, hh:mm:ss or seconds, got '-3'"),
        ("1,0,1,abc,0,0", "total_input: want a whole number, got 'abc'"),
        ("1,0,1,-5,0,0", "total_input is -5, a count is 0 or more"),
        ("1,0,1,9007199254740993,0,0", "total_input is 9007199254740993, more than"),
        ("1,0,1,5,2,4", "usage: read 4 + write 2 is more than the whole input, 5"),
        ("1,0,1,32,800,0,0", "7 cells under a header of 6"),
        ("total,,,592180,280420,311760", "row: want a whole number, got 'total'"),
        (",,,,,", "all cells are empty"),
        ("1,0,1,\0,0,0", "binary"),
    ],
)
def test_a_bad_cell_costs_its_row(table: Callable[[str], Read], cells: str, reason: str) -> None:
    calls, rejected = table(f"row,start,duration,total_input,write,read\n{cells}\n2,5,1,5,0,0\n")
    assert [call.seq for call in calls] == [2]
    assert len(rejected) == 1 and reason in rejected[0].reason and rejected[0].place.line == 2


def test_optional_columns_and_iso_times(table: Callable[[str], Read]) -> None:
    text = "id,provider,model,input_tokens,cached_tokens,output_tokens,started_at,trace,agent,duration\n"
    calls, rejected = table(text + "a,openai,m,10,4,3,2026-01-01T00:00:00,t,w,5\nb,,m,1,,,,,,\n")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    want = Call("a", "t", "openai", start, 2, "w", model="m", ended_at=start + timedelta(seconds=5))
    assert replace(calls[0], place=None) == replace(want, usage=Usage(10, 4, None, output_tokens=3))
    assert rejected[0].kept and "provider is empty" in rejected[1].reason


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, 1, 2, 3, 500_000, UTC)
    end = start + timedelta(seconds=2.5)
    calls = [
        Call('a,"b', "t", "openai", start, 1, "w", model="m", ended_at=end, usage=Usage(10, 4, None, output_tokens=3)),
        Call("b", "t", "anthropic", csvio.EPOCH + timedelta(seconds=90), 2, usage=Usage(9, 0, 9), clock="relative"),
        Call("c", "t", "anthropic", None, 3, usage=Usage()),
    ]
    path = tmp_path / "out.csv"
    with path.open("wb") as file:
        csvio.write_table(calls, file)
        assert not file.closed
    back, rejected = collect(path)
    assert not rejected and [replace(call, place=None) for call in back] == calls


# cases of the public bug reports, and the fourteen-row trace


def test_b29_absent_null_and_zero_stay_apart() -> None:
    calls, rejected = collect(shared("cases/B29/calls.jsonl"))
    assert not rejected and {call.trace for call in calls} == {"s"}
    assert [call.usage.read_tokens for call in calls] == [None, 0, 58_368, None, 0, None]
    assert calls[5].usage == Usage()


def test_b31_the_denominator_is_each_providers_own() -> None:
    calls, rejected = collect(shared("cases/B31/usage.csv"))
    known = [call.usage for call in calls if call.usage.read_tokens is not None]
    assert not rejected and len(calls) - len(known) == 1
    assert (sum(u.read_tokens or 0 for u in known), sum(u.input_tokens or 0 for u in known)) == (25_000, 31_504)


def test_a43_first_byte_and_default_names() -> None:
    calls, rejected = collect(shared("cases/A43/calls.jsonl"))
    assert not rejected and len(calls) == 5 and calls[0].id == "calls:1"
    assert calls[0].first_token_at == datetime(2026, 8, 17, 16, 0, 2, 100_000, UTC)
    assert [call.usage.write_5m_tokens for call in calls[:4]] == [20_000] * 4


@pytest.mark.parametrize("name", ["calls.jsonl", "usage.csv"])
def test_the_fourteen_rows_add_up_in_both_formats(name: str) -> None:
    folder = shared("traces/fourteen")
    totals = json.loads((folder / "expected.json").read_text())["totals"]
    calls, rejected = collect(folder / name)
    assert not rejected and len(calls) == totals["calls"]
    for field in ("input_tokens", "read_tokens", "write_tokens"):
        assert sum(getattr(call.usage, field) for call in calls) == totals[field]
    for call in calls:
        assert call.place and (call.request is None or read_request(call.place) == call.request)
