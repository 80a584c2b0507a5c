"""The user's price file and the cache file."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pytest

from auditor.errors import BadPriceFile
from auditor.price_cache import PriceCache, cache_name, extract
from auditor.price_rows import PriceRow, Window, at, load_prices, plain, row_from, row_to
from auditor.pricing import PriceList, open_prices

ROOT = Path(__file__).parents[3]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def amounts(row: PriceRow | None, tokens: int = 0) -> list[str]:
    assert row is not None
    kinds = (row.input, row.write_5m, row.write_1h, row.read, row.output)
    return ["?" if price is None else plain(price) for price in (at(kind, tokens) for kind in kinds)]


# --- the user's price file


def test_own_prices_come_first_and_keep_their_dates(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[["claude-opus-5"]]\nsince = 2026-10-01\ninput = 0.3\nper = 1000\n'
        '[["claude-opus-5"]]\nuntil = 2026-10-01\ninput = [[0, "7"], [1000, "9"]]\n'
    )
    prices = open_prices(path, tmp_path)
    assert amounts(prices.rate("anthropic", "claude-opus-5", moment("2026-09-30T23:59")), 1000)[0] == "7"
    assert amounts(prices.rate("anthropic", "claude-opus-5-20260801", moment("2026-09-30")), 1001)[0] == "9"
    assert amounts(prices.rate("anthropic", "claude-opus-5", moment("2026-10-01")))[0] == "300"
    assert amounts(prices.rate("anthropic", "claude-opus-5", None))[0] == "300"
    assert amounts(prices.rate("anthropic", "claude-opus-5-5", None))[0] == "4"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"m": {"currency": "€", "input": "3"}}', "model \"m\": currency is '€'; give a code"),
        ("a.json", '{"m": {"input": "-3"}}', "input is '-3'; give a number of 0 or more"),
        ("a.json", '{"m": {"input": "1e999999"}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": "NaN"}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": true}}', "give a number of 0 or more"),
        ("a.json", '{"m": {"input": "3", "per": 0}}', "per is 0"),
        ("a.json", '{"m": {"input": "3", "cached": "1"}}', "unknown key 'cached'"),
        ("a.json", '{"m": {"output": "3"}}', "no input price"),
        ("a.json", '{"m": {"input": [[5, "3"]]}}', "tiers start at [5] tokens"),
        ("a.json", '{"m": {"input": ["3"]}}', "tiers must be pairs"),
        ("a.json", '{"m": {"input": "3", "since": "soon"}}', "since is 'soon'"),
        ("a.json", '{"m": {"input": "3", "hours": "1-2", "except": 5}}', "give hours such as"),
        ("a.json", '{"m": {"input": "3", "unsplit": "2h"}}', "give 5m or 1h"),
        ("a.json", '{"m": {"input": "3", "cache_write": "1", "cache_write_5m": "1"}}', "keep one"),
        ("a.json", '{"m": 3}', "must be a table"),
        ("a.json", "[]", "holds a list"),
        ("a.json", "{", "not JSON"),
        ("a.toml", '[gpt-5.4]\ninput = "3"\n', "quote a model name that holds a dot"),
        ("a.toml", "x =", "not TOML"),
    ],
)
def test_a_bad_price_file_is_one_clear_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(BadPriceFile) as caught:
        load_prices(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_price_file(tmp_path: Path) -> None:
    with pytest.raises(BadPriceFile, match=r"none\.json: cannot be read \(No such file or directory\)"):
        load_prices(tmp_path / "none.json")


def test_the_written_form_keeps_a_row() -> None:
    row = PriceRow(
        input=((0, Decimal("0.15")), (1000, Decimal("0.30"))),
        read=Decimal("0.003"),
        output=Decimal("0.6"),
        since=moment("2026-09-10"),
        until=moment("2026-12-01T16:30"),
        window=Window(time(22), time(4), (1, 5), (date(2026, 10, 1),)),
        unsplit="5m",
        source="somewhere",
        checked=date(2026, 11, 29),
        note="why",
    )
    assert row_from(json.loads(json.dumps(row_to(row))), "test") == row


def test_a_span_ends_before_its_last_moment() -> None:
    row = PriceRow(since=moment("2026-10-01"), until=moment("2026-10-02"))
    days = ("2026-09-30T23:59:59", "2026-10-01", "2026-10-01T23:59:59", "2026-10-02")
    assert [row.active(moment(day)) for day in days] == [False, True, True, False]
    assert row.active(datetime.fromisoformat("2026-10-02T01:00:00+02:00"))
    assert row.active(datetime(2026, 10, 1, 12))


def test_rows_with_hours_overrule_plain_rows_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"m": [{"input": "2", "hours": "01:00-04:00"}, {"input": "1", "since": "2026-01-01"}]}))
    prices = PriceList(lambda provider, model: (), load_prices(path))
    assert amounts(prices.rate("any", "m", moment("2026-05-01T02:00")))[0] == "2"
    assert amounts(prices.rate("any", "m", moment("2026-05-01T05:00")))[0] == "1"


def test_a_window_over_midnight() -> None:
    window = Window(time(22), time(4))
    hours = [hour for hour in range(24) if window.active(datetime(2026, 10, 1, hour, tzinfo=UTC))]
    assert hours == [0, 1, 2, 3, 22, 23]


# --- the cache file

PROGRAM = """
import sys
from pathlib import Path
from auditor.price_cache import PriceCache
from auditor.pricing import PriceList
prices = PriceList(PriceCache(Path(sys.argv[1])).history)  # without the rows that ship with the program
for name in sys.argv[2:]:
    provider, model = name.split("/")
    row = prices.rate(provider, model, None)
    print(row and row.input)
print("genai_prices" in sys.modules)
"""


def run(folder: Path, *models: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *models]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_a_known_model_does_not_import_genai_prices(tmp_path: Path) -> None:
    models = ("anthropic/claude-opus-5", "anthropic/claude-opus-9-9")
    assert run(tmp_path, *models) == ["5", "None", "True"]
    assert run(tmp_path, *models) == ["5", "None", "False"]
    assert run(tmp_path, *models, "openai/gpt-5")[-1] == "True"


def test_the_cache_gives_the_same_rows(tmp_path: Path) -> None:
    for provider, model in [("openai", "gpt-5.6-sol"), ("deepseek", "deepseek-flash"), ("anthropic", "no-such")]:
        first = PriceCache(tmp_path).history(provider, model)
        assert PriceCache(tmp_path).history(provider, model) == first == extract(provider, model)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff",
        b"",
        b"[]",
        b'{"anthropic/claude-opus-5": 3}',
        b'{"anthropic/claude-opus-5": [{"input": "much"}]}',
        b'{"anthropic/claude-opus-5": [3]}',
    ],
)
def test_a_corrupt_cache_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / cache_name()
    path.write_bytes(content)
    rows = PriceCache(tmp_path).history("anthropic", "claude-opus-5")
    assert rows[0].input == Decimal(5)
    assert json.loads(path.read_bytes()).keys() == {"anthropic/claude-opus-5"}


def test_an_unwritable_cache_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", Path("/proc/none")):
        assert PriceCache(folder).history("anthropic", "claude-opus-5")[0].input == Decimal(5)


def test_two_processes_may_race(tmp_path: Path) -> None:
    models = [f"anthropic/claude-opus-4-{n}" for n in (1, 5, 6, 7, 8)]
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda order: run(tmp_path, *order), [models, models[::-1]])
    assert one[:-1] == two[-2::-1]
    written = json.loads((tmp_path / cache_name()).read_bytes())
    assert written.keys() <= set(models)
    assert written
    assert [path.name for path in tmp_path.iterdir()] == [cache_name()]
