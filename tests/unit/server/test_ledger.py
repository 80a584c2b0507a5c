"""The ledger settles what `step` could not know yet: its books equal `step` folded with the true moments."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")

from hypothesis import given, settings
from hypothesis import strategies as st

from localmodel.rules.step import step
from localmodel.rules.types import CacheState
from localmodel.server.ledger import KEEP_ROWS, Ledger, Ticket
from localmodel.server.render import Rendered, caller, render
from localmodel.server.ruleset import ServedRules, ruleset
from localmodel.server.scripted import ScriptedBackend

Json = dict[str, Any]
BACKEND = ScriptedBackend()
WHO = caller("key")
TTL_S = 20


@dataclass
class Clock:
    now: datetime = datetime(2026, 11, 29, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def rules() -> ServedRules:
    return ruleset("anthropic", [f"ttl.5m={TTL_S}", "ttl.1h=40", "min_tokens=8", "lookback.positions=3"])


@dataclass
class Books:
    clock: Clock = field(default_factory=Clock)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(rules(), self.clock)

    def begin(self, words: str, ident: str = "m", marked: tuple[int, ...] = (-1,), ttl: str = "5m", key: str = "key",
              **rest: Any) -> Ticket:  # fmt: skip
        return self.ledger.begin(ident, "messages", prompt(words, marked, ttl, key, **rest).prompt, caller(key), "t")


def prompt(words: str, marked: tuple[int, ...], ttl: str = "5m", key: str = "key", **rest: Any) -> Rendered:
    """One block of eight tokens or so a letter."""
    blocks: list[Json] = [{"type": "text", "text": f"{letter} " * 8} for letter in words]
    for index in marked:
        blocks[index] |= {"cache_control": {"type": "ephemeral", "ttl": ttl}}
    body = {"model": "m", "messages": [{"role": "user", "content": blocks}], **rest}
    return render(body, BACKEND, caller(key))


def test_an_entry_is_readable_from_the_moment_its_response_begins() -> None:
    books = Books()
    first = books.begin("ab")
    books.clock.pass_by(3)
    assert books.begin("ab").outcome.read_tokens == 0
    books.ledger.started(first)
    third = books.begin("ab")
    assert third.outcome.read_tokens == third.counts.input_tokens
    assert (third.verdict.word, third.verdict.cause) == ("hit", "hit")


def test_a_late_first_token_does_not_open_an_entry_written_anew() -> None:
    books = Books()
    slow = books.begin("ab")
    books.clock.pass_by(TTL_S + 1)
    books.begin("ab")
    books.ledger.started(slow)
    assert books.begin("ab").verdict.cause != "hit"


def test_a_call_that_breaks_off_first_leaves_nothing_but_spares_who_waits() -> None:
    books = Books()
    gone = books.begin("ab")
    books.ledger.ended(gone, 499, 0)
    assert books.ledger.entries == 0
    assert books.begin("ab").verdict.cause == "cold_write"
    long = "".join(chr(98 + number) for number in range(200))
    books.ledger.ended(books.begin(f"a{long}"), 499, 0)
    assert books.begin(f"a{long}z").verdict.cause == "cold_write"
    books = Books()
    gone = books.begin("ab")
    books.clock.pass_by(1)
    waits = books.begin("ab")
    books.ledger.ended(gone, 499, 0)
    books.ledger.started(waits)
    assert books.begin("ab").verdict.cause == "hit"


@pytest.mark.parametrize(
    ("first", "second", "seconds", "cause"),
    [
        ({"words": "abcdefgh"}, {"words": "abcdefgh"}, TTL_S, "ttl_expired"),
        ({"words": "abcdefgh"}, {"words": "abcdefgh", "temperature": 1}, 1, "hit"),
        ({"words": "abcdefgh"}, {"words": "abcdefgh", "tool_choice": {"type": "none"}}, 1, "parameter_changed"),
        ({"words": "ab"}, {"words": "abcdef"}, 1, "beyond_lookback"),
        ({"words": "abc"}, {"words": "abcd", "marked": (0,)}, 1, "no_breakpoint"),
        ({"words": "abcd", "key": "one"}, {"words": "abcd", "key": "two"}, 1, "cold_write"),
        ({"words": "abcd", "system": "Old."}, {"words": "abcd", "system": "New."}, 1, "system_changed"),
        ({"words": "a", "marked": ()}, {"words": "a", "marked": ()}, 1, "no_breakpoint"),
        ({"words": "a", "system": "x"}, {"words": ""}, 1, "no_breakpoint"),
    ],
)
def test_causes(first: Json, second: Json, seconds: float, cause: str) -> None:
    books = Books()
    books.ledger.started(books.begin(**first))
    books.clock.pass_by(seconds)
    if not second["words"]:
        second = {**second, "marked": ()}
    ticket = books.begin(**second)
    assert ticket.verdict.cause == cause, ticket.verdict
    lost = cause not in ("hit", "cold_write") and ticket.verdict.word != "not_engaged"
    assert (ticket.verdict.lost_tokens > 0) is lost


def test_a_rewritten_history_is_told_from_a_new_one() -> None:
    def talk(*texts: str) -> Json:
        messages: list[Json] = [
            {"role": ("user", "assistant")[n % 2], "content": text * 12} for n, text in enumerate(texts)
        ]
        return {"messages": messages, "cache_control": {"type": "ephemeral"}}

    books = Books()

    def send(body: Json) -> Ticket:
        found = render({"model": "m", **body}, BACKEND, WHO).prompt
        ticket = books.ledger.begin("m", "messages", found, WHO, "t")
        books.ledger.started(ticket)
        return ticket

    send(talk("one ", "two ", "three "))
    assert send(talk("one ", "2 two ", "three ", "four ", "five ")).verdict.cause == "history_rewritten"
    assert send(talk("quite ", "another ", "one ", "and ", "no more ", "of ", "it ")).verdict.cause == "cold_write"


def test_rows_are_of_one_key_and_bounded() -> None:
    books = Books()
    books.begin("ab", key="other")
    for number in range(KEEP_ROWS + 5):
        books.begin("ab", ident=f"m{number}")
    rows = books.ledger.rows(WHO.key)
    assert len(rows) == KEEP_ROWS
    assert rows[-1]["id"] == f"m{KEEP_ROWS + 4}"
    assert books.ledger.find(WHO.key, "m0") is None
    assert books.ledger.find(caller("other").key, rows[-1]["id"]) is None


def test_dead_entries_are_forgotten_after_an_hour() -> None:
    books = Books()
    for number in range(200):
        books.begin("a" * 1 + chr(98 + number))
    held = books.ledger.entries
    books.clock.pass_by(2 * 3600)
    for _ in range(256):
        books.begin("zz")
    assert held == 200 and books.ledger.entries == 1


Action = tuple[str, int, str, float]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "start"]),
        st.integers(0, 5),
        st.sampled_from(["5m", "1h"]),
        st.sampled_from([0.0, 0.5, 1.0, 9.0, 15.0, float(TTL_S), 40.0]),
    ),
    max_size=30,
)
WORDS = [("ab", (-1,)), ("abcd", (-1,)), ("abcd", (1, -1)), ("abcdefgh", (-1,)), ("abcdefgh", (1, 4, -1)), ("xb", (0,))]


@given(ACTIONS)
@settings(max_examples=150, deadline=None)
def test_the_books_equal_step_that_knew_the_moments(actions: list[Action]) -> None:
    books = Books()
    open_calls: list[Ticket] = []
    done: list[Ticket] = []
    for kind, number, ttl, pause in actions:
        books.clock.pass_by(pause)
        if kind == "begin":
            words, marked = WORDS[number]
            ticket = books.begin(words, marked=marked, ttl=ttl)
            open_calls.append(ticket)
            done.append(ticket)
        elif open_calls:
            books.ledger.started(open_calls.pop(number % len(open_calls)))
    state, ruled = CacheState(), rules()
    never = datetime.max.replace(tzinfo=UTC)
    for ticket in done:
        first = ticket.first_token_at or never
        state, outcome = step(state, ticket.prompt, ruled, at=ticket.at, first_token_at=first)
        told = ticket.outcome
        assert (told.read_tokens, told.write_5m_tokens, told.write_1h_tokens) == (
            outcome.read_tokens, outcome.write_5m_tokens, outcome.write_1h_tokens)  # fmt: skip
    assert dict(books.ledger.state.entries.items()) == dict(state.entries.items())
