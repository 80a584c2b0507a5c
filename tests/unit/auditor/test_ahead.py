"""Reading in another process gives what reading in this one gives, and ends with it."""

import os
import subprocess
from pathlib import Path

import pytest

from auditor.ahead import Listeners, ahead
from auditor.audit import audit, judge
from auditor.errors import AuditError, StoreError
from auditor.gather import gather
from auditor.store import Store
from localmodel.rules.load import load
from traces import io
from traces.errors import UnreadableInput
from traces.schema import Call

FOURTEEN = Path(__file__).parents[3] / "traces" / "recorded" / "fourteen" / "calls.jsonl"


class Heard:
    """What a reading told."""

    def __init__(self) -> None:
        self.rejected: list[io.Rejected] = []
        self.unstored: list[StoreError] = []
        self.warned: list[str] = []

    @property
    def listeners(self) -> Listeners:
        return Listeners(self.rejected.append, self.unstored.append, self.warned.append)


def many(path: Path, copies: int) -> Path:
    """The fourteen calls again and again, with a torn row and a broken body among them."""
    rows = FOURTEEN.read_bytes()
    broken = rows.splitlines()[0].replace(b'"tools":', b'"tools":7,"was":', 1)
    path.write_bytes(rows * copies + b'{"torn\n' + broken + b"\n")
    return path


def test_the_other_process_yields_the_same_calls_and_remarks(tmp_path: Path) -> None:
    trace = many(tmp_path / "calls.jsonl", 400)  # more calls than both sides remember at a time
    here, there = Heard(), Heard()
    expected = list(gather(io.read(trace, on_reject=here.rejected.append), here.warned.append))
    assert list(ahead(trace, None, there.listeners)) == expected
    assert len(expected) == 400 * 14 + 1
    assert there.rejected == here.rejected
    assert there.warned == here.warned
    assert len(here.rejected) == len(here.warned) == 1


def test_the_other_process_stores_what_it_reads(tmp_path: Path) -> None:
    db = tmp_path / "calls.db"
    with Store.open(db):
        pass
    keys = [call.key for call, _ in ahead(FOURTEEN, db, Heard().listeners)]
    with Store.open(db) as store:
        assert [call.key for call in store.calls()] == keys
        assert None not in keys


def test_an_unreadable_file_is_told_as_if_read_here(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"\0\1\2")
    with pytest.raises(UnreadableInput, match=r"bad\.jsonl: no call in 1 lines"):
        list(ahead(tmp_path / "bad.jsonl", None, Heard().listeners))


def readers() -> list[str]:
    """Processes that this one started to read ahead, by number."""
    started = subprocess.run(["ps", "--ppid", f"{os.getpid()}", "-o", "pid=,args="], capture_output=True, text=True)
    return [line.split()[0] for line in started.stdout.splitlines() if "-m auditor.ahead" in line]


def test_nobody_is_left_reading_when_the_calls_are_wanted_no_more(tmp_path: Path) -> None:
    calls = ahead(many(tmp_path / "calls.jsonl", 400), None, Heard().listeners)
    next(calls)
    assert len(readers()) == 1
    calls.close()
    assert readers() == []


def test_a_reader_that_dies_is_said_so(tmp_path: Path) -> None:
    calls = ahead(many(tmp_path / "calls.jsonl", 2000), None, Heard().listeners)
    next(calls)
    (pid,) = readers()
    subprocess.run(["kill", "-9", pid], check=True)
    with pytest.raises(AuditError, match=r"calls\.jsonl: the process that read it ended with -9"):
        list(calls)


def verdicts(calls: list[Call]) -> list[tuple[str, str, int]]:
    result = judge(gather(calls, lambda text: None), load("anthropic"), lambda audited: None, [])
    return [(one.call.id, one.verdict, one.index) for one in result.calls]


def test_calls_that_come_in_time_order_are_judged_like_those_that_do_not() -> None:
    calls = list(io.read(FOURTEEN))
    ordered = verdicts(calls)
    assert verdicts(calls[7:] + calls[:7]) == ordered
    assert [one[1] for one in ordered] == [one.verdict for one in audit(calls, load("anthropic"), lambda _: None).calls]
