"""Volatile text is found where it stands, and what only looks like it is left alone."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.volatile import SCAN_LIMIT, classify, find

DATES = [
    "Wed Jun 17 2026",
    "Wed Jun 17",
    "Wed Jun 17 23:59:40 CEST 2026",
    "Wednesday, June 17, 2026",
    "Wed, 17 Jun 2026 23:59:40 GMT",
    "June 17th, 2026",
    "17 June 2026",
    "2026-06-17",
    "2026-06-17T23:59:40+02:00",
    "2026-06-17T23:59:40.123456Z",
    "2026-06-17 23:59 UTC",
    "2026-06-17_23-59-40",
    "20260617T235940Z",
    "2026/06/17",
    "06/17/2026",
    "17.06.2026",
    "23:59:40",
    "T23:59:40",
    "23:59:40.5",
    "10:05 AM",
    "10:05pm",
    "1781733580",
    "1781733580123",
]
AGES = ["9m ago", "3 hours ago", "an hour ago", "2h 5m ago", "1 day and 3 hours ago", "just now", "15 sec ago"]
IDS = [
    "123e4567-e89b-12d3-a456-426614174000",
    "123E4567-E89B-12D3-A456-426614174000",
    "356a192b7913b04c54574d18c28d46e6395428ab",
    "d41d8cd98f00b204e9800998ecf8427e",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "msg_01ABC",
    "msg_01XFDUDYJgAACzvnptvVoYEL",
    "toolu_01A09q90qw90lq917835lq9",
    "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "session-8f3a2b1c",
    "session_id=8f3a2b1c",
    "Request ID: 8f3a2b1c",
    "run-1781733580",
]
LOOKALIKES = [
    "version 1.2.3 or 10.0.19045",
    "claude-sonnet-4-5-20250929",
    "claude-sonnet-4@20250514",
    "gpt-4o-2024-08-06",
    "web_search_20250305",
    "lines 10-25, L10-L25 and 100:120",
    "app.py:10:20 and src/app.py:12:34:56",
    "mac 00:11:22:33:44:55",
    "meet at 10:30",
    "a ratio of 16:9",
    "session-based, task-oriented, request_timeout, user-agent, run-python3, file_20250101",
    "May 10 items be listed? Sun and Mon are names too; I second that",
    "call 555 or item 12345678901234567890",
    "port 8080, 65536 bytes, 2147483647, 0xdeadbeef",
    "long ago, not 3 agoraphobics",
    "https://json-schema.org/draft/2020-12/schema",
    "user: content of the message",
]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("date_or_clock", t) for t in DATES] + [("relative_time", t) for t in AGES] + [("identifier", t) for t in IDS],
)
def test_found_whole_alone_and_in_a_sentence(kind: str, text: str) -> None:
    assert find(text) == [(kind, 0, len(text))]
    assert classify(text) == kind
    inside = f'It says "{text}", here.'
    assert find(inside) == [(kind, 9, 9 + len(text))]


@pytest.mark.parametrize("text", LOOKALIKES)
def test_lookalikes_are_left_alone(text: str) -> None:
    assert [text[start:end] for _, start, end in find(text)] == []
    assert classify(text) is None


def test_a_refused_label_hides_nothing() -> None:
    text = "user: 2026-06-17, task_list 23:59:40"
    assert [text[start:end] for _, start, end in find(text)] == ["2026-06-17", "23:59:40"]


def test_ellipsis_after_an_id() -> None:
    assert find("msg_01ABC...") == [("identifier", 0, 9)]


def test_classify_wants_a_share_and_takes_the_larger_kind() -> None:
    assert classify("Today's date: Wed Jun 17 2026") == "date_or_clock"
    assert classify("The release of 2026-06-17 " + "was a long story " * 10) is None
    assert classify("9m ago 123e4567-e89b-12d3-a456-426614174000") == "identifier"
    assert classify("") is None
    assert classify("plain words") is None


def test_only_the_first_characters_are_looked_at() -> None:
    assert find("x " * (SCAN_LIMIT // 2) + "23:59:40") == []


@pytest.mark.parametrize(
    "piece",
    ["1", "1 ", "1:", "a-", "12:", "2026-", "Wed Jun ", "1h ", "session-", "0123456789abcdef-", "an ", " ", "T"],
)
def test_linear_on_hostile_text(piece: str) -> None:
    text = piece * (SCAN_LIMIT // len(piece))
    start = time.process_time()
    find(text)
    assert time.process_time() - start < 5


@given(st.text(alphabet="0123456789abcdefT:-/. WedJunagomsh_", max_size=200))
def test_spans_are_ordered_and_inside(text: str) -> None:
    spans = find(text)
    assert all(0 <= start < end <= len(text) for _, start, end in spans)
    assert all(before[2] <= after[1] for before, after in pairwise(spans))
