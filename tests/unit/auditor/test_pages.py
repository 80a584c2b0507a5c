"""The report's pages as functions of the JSON report: its numbers, its size, and nothing of a trace as markup."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import hostile
import pytest

from auditor import chart, html, markdown
from auditor.audit import audit
from auditor.context import BodyOf
from auditor.excerpt import Excerpt, excerpts
from auditor.money import Money
from auditor.policies import POLICIES
from auditor.pricing import open_prices
from auditor.report import lines
from auditor.totals import totals
from auditor.visible import visible
from auditor.whatif import Trial, table
from localmodel.rules.load import load
from traces import io

FOURTEEN = Path(__file__).parents[3] / "traces" / "recorded" / "fourteen" / "calls.jsonl"


def report_of(path: Path) -> tuple[dict[str, Any], dict[int, Excerpt]]:
    body_of: BodyOf = lambda one: io.read_request(one.call.place) if one.call.place else None  # noqa: E731
    result = audit(io.read(path), load("anthropic"), body_of)
    money = Money(result.calls, open_prices())
    rows = table(Trial(result, money), POLICIES, budget=10_000)
    text = b"".join(lines(result, totals(result.calls, money), rows, money))
    return json.loads(text), excerpts(result, body_of)


@pytest.fixture(scope="module")
def fourteen() -> dict[str, Any]:
    return report_of(FOURTEEN)[0]


class Seen(HTMLParser):
    """The text of a page, its elements, and the text of each element with an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_numbers_of_the_fourteen_rows(fourteen: dict[str, Any]) -> None:
    for page in (html.page(fourteen, "x", {}), markdown.page(fourteen, "x")):
        for figure in ("381,701", "158,018.5", "223,682.5", "52.65 %", "86.83 %", "592,180", "$1.21", "40,020"):
            assert figure in page


def test_nothing_of_a_trace_is_markup(tmp_path: Path) -> None:
    report, around = report_of(hostile.save(tmp_path / "hostile.jsonl"))
    page = html.page(report, hostile.STRINGS[17], around)
    seen = Seen(page)
    assert not {"script", "img", "iframe", "b"} & set(seen.tags)
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert seen.tags.count("h1") == 1
    for text in hostile.STRINGS[:-1]:  # of the last one the JSON report replaces the lone surrogate
        shown = visible(text, 40).removesuffix("…")
        assert shown in seen.text, text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    page.encode()


def test_markdown_keeps_words_of_a_trace_in_code(tmp_path: Path) -> None:
    page = markdown.page(report_of(hostile.save(tmp_path / "hostile.jsonl"))[0], "`t")
    assert page.startswith("# Prompt cache report: `` `t ``\n")
    outside = re.sub(r"(`+) ?.*? ?(?<!`)\1(?!`)", "", page)
    assert "<script>" not in outside and "<img" not in outside and "](https" not in outside
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", page)


def test_a_change_inside_a_text_is_shown_with_its_surroundings(tmp_path: Path) -> None:
    path = tmp_path / "edited.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in hostile.rows("Ada")))
    report, around = report_of(path)
    change = report["calls"][1]["diagnosis"]["first_change"]
    assert (change["before"], change["after"]) == ("before", "after")
    assert around == {1: Excerpt("You are Ada ", ", Ada")}
    assert "You are Ada </span><del>before</del> <ins>after</ins><span" in html.page(report, "x", around)


def test_a_thousand_calls_are_under_1500_kB(fourteen: dict[str, Any]) -> None:
    many = fourteen | {"calls": (fourteen["calls"] * 72)[:1000]}
    assert len(html.page(many, "x", {}).encode()) < 1_500_000


@pytest.mark.parametrize("odd", ['"', "漢", "🏳"])
def test_a_thousand_calls_full_of_long_texts_are_under_1500_kB(fourteen: dict[str, Any], odd: str) -> None:
    call, words = fourteen["calls"][4], odd * 400
    change = call["diagnosis"]["first_change"] | {"path": words, "before": words[:80], "after": words[:80]}
    diagnosis = call["diagnosis"] | {"first_change": change, "evidence": [words] * 3}
    calls = [call | {"trace": f"{n % 9}{words}", "agent": words, "diagnosis": diagnosis} for n in range(1000)]
    around = {n: Excerpt(words[:160], words[:160]) for n in range(1000)}
    page = html.page(fourteen | {"calls": calls}, words, around)
    assert len(page.encode()) < 1_500_000
    assert re.search(r"and \d\d\d smaller ones", Seen(page).text)


def test_what_could_not_be_replayed_is_unknown_and_not_zero(fourteen: dict[str, Any]) -> None:
    calls = [call | {"diagnosis": _unproved(call["diagnosis"])} for call in fourteen["calls"]]
    for page in (html.page(fourteen | {"calls": calls}, "x", {}), markdown.page(fourteen | {"calls": calls}, "x")):
        row, *_ = [line for line in re.split(r"<tr>|\n\|", page) if "ttl_expired" in line and "36,150" in line]
        assert "37,957.5" not in row and "0.0000" not in row
        assert re.search(r"–|- ?\|", row)
    assert "37,957.5" in html.page(fourteen, "x", {})


def _unproved(diagnosis: dict[str, Any] | None) -> dict[str, Any] | None:
    return diagnosis and diagnosis | {"avoidable_equivalents": None, "avoidable_usd": None, "policy": None}


def test_lengths_of_pauses_do_not_cover_each_other(fourteen: dict[str, Any]) -> None:
    call = fourteen["calls"][0]
    minutes = (0, 6, 20, 26, 120, 126, 133)
    calls = [call | {"started_at": f"2026-03-02T{at // 60:02}:{at % 60:02}:00Z"} for at in minutes * 20]
    drawn = chart.chart(sorted(calls, key=lambda one: str(one["started_at"])))
    labelled = [bar.x for bar in drawn.bars if bar.pause]
    assert [bar.label.split("after ")[1] for bar in drawn.bars if bar.paused] == [
        *("a pause of 6 min", "a pause of 14 min", "a pause of 6 min", "a pause of 94 min"),
        *("a pause of 6 min", "a pause of 7 min"),
    ]
    assert all(after - before >= chart.LABEL_WIDTH for before, after in pairwise(labelled))


def test_a_huge_trace_is_cut_and_says_so(fourteen: dict[str, Any]) -> None:
    many = fourteen | {"calls": fourteen["calls"] * 800}
    page = html.page(many, "x", {})
    assert len(page.encode()) < 1_500_000
    assert "of 11,200." in Seen(page).text
    assert "5,450 smaller ones" in Seen(page).text
    assert len(chart.chart(many["calls"]).bars) <= chart.MOST_BARS


def test_bars_stand_on_each_other_and_on_the_ground(fourteen: dict[str, Any]) -> None:
    drawn = chart.chart(fourteen["calls"])
    assert drawn.peak == 82_370
    for bar, call in zip(drawn.bars, fourteen["calls"], strict=True):
        height = sum(piece.height for piece in bar.pieces)
        assert height == pytest.approx(call["input_tokens"] / drawn.peak * chart.HEIGHT, abs=0.02)
        assert bar.pieces[0].y + bar.pieces[0].height == pytest.approx(chart.HEIGHT, abs=0.02)
    assert [bar.pause for bar in drawn.bars if bar.pause] == ["6 min"]
    assert [number for number, bar in enumerate(drawn.bars, 1) if bar.missed] == [5, 7, 9, 10, 11, 13, 14]


def test_a_trace_without_times_or_money_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "usage.csv"
    path.write_text("id,provider,input_tokens,cache_read,cache_write,cached_tokens\na,anthropic,4,0,3000,\n")
    report = report_of(path)[0]
    for page in (html.page(report, "x", {}), markdown.page(report, "x")):
        assert "unpriced" in page
        assert "no request with a body" in page
