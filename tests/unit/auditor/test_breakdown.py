"""Tables of calls: their sums are those of the whole audit however they are cut, and each form says the same."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from auditor import tables
from auditor.breakdown import BY, By, breakdown, causes
from auditor.digest_totals import totals_of
from auditor.digests import Seen
from auditor.price_rows import PriceRow, row_from
from auditor.pricing import PriceList
from auditor.tables import Column, Table
from auditor.warm import sessions, table, warmth
from localmodel.rules.book import Rulebook

START = datetime(2026, 10, 24, 20, tzinfo=UTC)
ROW = row_from(
    {"input": "10", "cache_read": "1", "cache_write_5m": "12.5", "cache_write_1h": "20", "output": "50"}, "test"
)


def prices(row: PriceRow = ROW) -> PriceList:
    return PriceList(lambda provider, model: (row,) if model != "unpriced" else ())


def seen(number: int, minutes: int = 0, **rest: Any) -> Seen:
    """A call that read 900 of 1,000 tokens and wrote 100, of which `lost` had been there."""
    fields: dict[str, Any] = {"id": bytes([number]), "at": (START + timedelta(minutes=minutes)).timestamp()}
    fields |= {"provider": "anthropic", "model": "m", "kind": "main", "input": 1_000, "read": 900, "write": 100}
    fields |= {"write_5m": 100, "write_1h": 0, "output": 10, "trace": f"t{number % 2}", "project": "p"}
    return Seen(**fields | rest)


CALLS = [
    seen(1),
    seen(2, 40, read=0, write=1_000, write_5m=1_000, cause="ttl_expired", lost=900),
    seen(3, 300, model="n", write_5m=0, write_1h=100, cause="unknown", lost=60),
    seen(4, 700, model="unpriced", kind="subagent", agent="a1", project=None),
    seen(5, 1500, read=None, write=None, write_5m=None, write_1h=None),
    seen(6, 1500, at=None, terms=["batch"]),
]


@pytest.mark.parametrize("by", [by for by in BY if by != "cause"])
def test_rows_add_up_to_the_whole(by: By) -> None:
    made, whole = breakdown(by, CALLS, prices(), ZoneInfo("Europe/Madrid")), totals_of(CALLS, prices()).whole
    assert made.total is not None
    total = dict(zip((column.name for column in made.columns), made.total, strict=True))
    assert (total["calls"], total["cost_usd"], total["hit_ratio"]) == (6, whole.usd, whole.hit_ratio)
    # 900 tokens at 12.50 and 60 at 20 instead of 1, per million
    assert (total["lost_tokens"], total["lost_usd"]) == (960, Decimal("0.01035") + Decimal("0.00114"))
    for column, cell in zip(made.columns, made.total, strict=True):
        if column.kind in ("count", "usd"):
            place = made.columns.index(column)
            parts = [row[place] for row in made.rows if row[place] is not None]
            assert sum(Decimal(str(part)) for part in parts) == Decimal(str(cell or 0)), column


def test_the_ceiling_is_the_ratio_without_losses() -> None:
    made = breakdown("session", CALLS[:2], prices(), UTC)
    found = {row[0]: (row[7], row[8]) for row in made.rows}
    assert found == {"t0": (0.0, 0.9), "t1": (0.9, 0.9)}


def test_causes_tell_what_was_paid_beyond_a_read() -> None:
    made = causes(totals_of(CALLS, prices()).by_cause)
    assert [(row[0], row[2], row[5]) for row in made.rows[:2]] == [
        ("ttl_expired", 900, Decimal("0.01035")),
        ("unknown", 60, Decimal("0.00114")),
    ]


def test_each_form_says_the_same() -> None:
    columns = (Column("what", "text"), Column("n_tokens", "count"), Column("cost_usd", "usd"), Column("r", "ratio"))
    made = Table("t", columns, [("a|b", 1_234, Decimal("0.50"), 0.5), ("c", 5, None, None)], None, ["a note"])
    assert tables.as_json(made)["rows"][0] == {"what": "a|b", "n_tokens": 1234, "cost_usd": "0.5", "r": 0.5}
    assert json.dumps(tables.as_json(made))
    assert list(csv.reader(io.StringIO(tables.as_csv(made))))[1:] == [["a|b", "1234", "0.5", "0.5"], ["c", "5", "", ""]]
    assert "| a\\|b | 1,234 | $0.5000 | 50.00 % |" in tables.as_markdown(made)
    assert tables.as_text(made).splitlines()[1] == "a|b   1,234   $0.5000  50.00 %"


def test_a_session_is_warm_until_its_lifetime_has_passed() -> None:
    calls = [seen(1, 0), seen(3, 4, write_5m=0, write_1h=100), seen(5, 8, write=0, write_5m=0, write_1h=0)]
    (one,) = sessions([*calls, seen(7, 20, kind="subagent", agent="x")])
    book, at = Rulebook(), START + timedelta(minutes=8)
    warm = warmth(one, book, prices(), at + timedelta(seconds=3599))
    assert (warm.state, warm.left, warm.resume_usd) == ("warm", 1, (900 * 1 + 100 * Decimal(10)) / 1_000_000)
    gone = warmth(one, book, prices(), at + timedelta(seconds=3600))
    assert (gone.state, gone.left) == ("expired", 0)
    # what had been cached is written again at the price of the longer lifetime
    assert gone.resume_usd == gone.cold_usd == Decimal(900 * 20 + 100 * 10) / 1_000_000


def test_what_was_written_for_an_hour_outlives_later_short_writes() -> None:
    short = {"write": 100, "write_5m": 100, "write_1h": 0}
    calls = [
        seen(1, 0, read=0, write=800, write_5m=0, write_1h=800),
        seen(3, 1, read=800, input=1_000, **short),
        seen(5, 3, read=900, input=1_100, **short),
    ]
    (one,), at = sessions(calls), START + timedelta(minutes=3)
    book = Rulebook()
    assert warmth(one, book, prices(), at + timedelta(seconds=299)).state == "warm"
    part = warmth(one, book, prices(), at + timedelta(seconds=300))
    assert (part.state, part.left, part.until) == ("partly", 3300, at + timedelta(hours=1))
    # of the 1,000 cached tokens 800 are read, 200 are written again, and 100 were never cached
    assert part.resume_usd == (800 * 1 + 200 * Decimal("12.5") + 100 * 10) / 1_000_000
    assert part.cold_usd == (1_000 * Decimal("12.5") + 100 * 10) / 1_000_000
    gone = warmth(one, book, prices(), at + timedelta(hours=1))
    assert (gone.state, gone.left, gone.resume_usd) == ("expired", 0, gone.cold_usd)
    # a later call that did not read that prefix shows that it is of no use any more
    (lost,) = sessions([*calls, seen(7, 4, read=300, input=1_100, **short)])
    assert warmth(lost, book, prices(), at + timedelta(minutes=20)).state == "expired"
    rows = table([part, gone], UTC, cold=None).rows
    assert [row[3] for row in rows] == ["partly", "expired"]


def test_one_call_that_writes_for_both_lifetimes_keeps_the_first_part_for_an_hour() -> None:
    (one,) = sessions([seen(1, 0, read=0, write=900, write_5m=300, write_1h=600)])
    part = warmth(one, Rulebook(), prices(), START + timedelta(minutes=6))
    assert (part.state, part.resume_usd) == ("partly", (600 + 300 * Decimal("12.5") + 100 * 10) / 1_000_000)


def test_the_list_names_the_warm_ones_first() -> None:
    calls = [seen(1, 0), seen(2, 58), seen(4, 59, trace="other"), seen(6, 10, trace="old", provider="vllm")]
    now = START + timedelta(minutes=60)
    found = [warmth(one, Rulebook(), prices(), now) for one in sessions(calls)]
    made = table(found, UTC, cold=1)
    assert [(row[0], row[3]) for row in made.rows] == [("t0", "warm"), ("other", "warm"), ("old", "unknown")]
    assert "1 more" in made.notes[1]
