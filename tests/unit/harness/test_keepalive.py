"""Keep-alive on a clock that is moved by hand: when it is due, when it pays, when it stops, what a ping must show."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import agents
import pytest

from harness.dialects.messages import Messages
from harness.keepalive import Decision, Entry, Mode, Warmer, decide, entry_of, ping_body, saving
from harness.opening import Opened
from harness.providers.base import Feed
from harness.report import cost_json, cost_text
from harness.scripted import Scripted
from localmodel.rules.load import load
from localmodel.rules.types import Rates

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
RATES = Rates(Decimal("1.25"), Decimal(2), Decimal("0.1"))
BASE = Decimal(5) / 1_000_000
FIVE = Entry(300, 100_000, START, START)
HOUR = replace(FIVE, ttl_s=3600)


def at(
    seconds: float, entry: Entry = FIVE, mode: Mode = "idle", running: bool = True, base: Decimal | None = BASE
) -> Decision:
    moment = START + timedelta(seconds=seconds)
    return decide(entry, moment, mode=mode, running=running, rates=RATES, base=base)


def test_due_at_nine_tenths_from_the_start_of_the_request() -> None:
    assert at(0) == Decision("wait", at=START + timedelta(seconds=270))
    assert at(269.9).what == "wait"
    assert at(270).what == "ping"
    assert HOUR.due == START + timedelta(seconds=3240)
    assert replace(FIVE, ttl_s=20).due == START + timedelta(seconds=10)
    assert at(0, replace(FIVE, ttl_s=10)).what == "stop"


def test_a_missed_window_ends_it() -> None:
    assert at(285).what == "ping"
    assert at(285.1) == Decision("stop", "the safe window was missed")
    assert HOUR.deadline == START + timedelta(seconds=3420)


def test_only_where_it_saves_five_cents() -> None:
    assert saving(FIVE, RATES, BASE, running=True) == Decimal("0.525")
    assert saving(FIVE, RATES, BASE, running=False) == Decimal("0.03625")
    assert at(270, running=False).reason == "would save 0.0362 USD, less than 0.05"
    assert at(270, replace(FIVE, tokens=200_000), running=False).what == "ping"
    assert at(270, replace(FIVE, tokens=9_000)).what == "stop"
    assert at(270, replace(FIVE, tokens=10_000)).what == "ping"
    assert at(270, base=None).reason == "the model has no price"
    assert saving(HOUR, RATES, BASE, running=True) == Decimal("0.9")  # an hour's write costs twice the input


def test_one_hour_while_running_half_an_hour_idle_and_more_for_hour_entries() -> None:
    big = replace(FIVE, tokens=300_000)
    late = START + timedelta(seconds=3400)
    assert decide(replace(big, used_at=late), late, mode="idle", running=True, rates=RATES, base=BASE).what == "stop"
    early = START + timedelta(seconds=1500)
    assert decide(replace(big, used_at=early), early, mode="idle", running=False, rates=RATES, base=BASE).what == "wait"
    idle = START + timedelta(seconds=1700)
    assert decide(replace(big, used_at=idle), idle, mode="idle", running=False, rates=RATES, base=BASE).what == "stop"
    hour = replace(HOUR, tokens=400_000, used_at=idle)
    assert decide(hour, idle, mode="idle", running=False, rates=RATES, base=BASE).what == "wait"


@pytest.mark.parametrize(
    ("mode", "running", "what"), [("off", True, "stop"), ("running", True, "ping"), ("running", False, "stop")]
)
def test_modes(mode: Mode, running: bool, what: str) -> None:
    assert at(270, replace(FIVE, tokens=500_000), mode, running).what == what


def test_a_ping_is_the_same_request_without_output() -> None:
    body = {"model": "m", "messages": [], "max_tokens": 8000, "stream": True}
    assert ping_body(body) == {"model": "m", "messages": [], "max_tokens": 0, "stream": False}
    assert ping_body({**body, "tool_choice": {"type": "any"}})["max_tokens"] == 1
    assert ping_body({**body, "thinking": {"type": "adaptive"}})["max_tokens"] == 0


def held(tmp_path: Path, use: Callable[[Opened, agents.ManualClock, Scripted], None]) -> None:
    clock = agents.ManualClock()
    provider = Scripted(load("anthropic"), clock)
    made = agents.options(tmp_path, "http://127.0.0.1:1")
    with agents.opened(made, provider=provider, dialect=Messages(), clock=clock) as run:
        run.agent.say("hello " * 3000)
        use(run, clock, provider)


def test_a_ping_keeps_the_entry_and_is_booked(tmp_path: Path) -> None:
    def use(run: Opened, clock: agents.ManualClock, provider: Scripted) -> None:
        warmer, session = Warmer("running", lambda *_: BASE), run.agent.session
        entry = entry_of(session)
        assert entry is not None
        for _ in range(3):
            clock.moment = entry.due
            entry = warmer.ping(session, entry)
            assert entry is not None
        clock.sleep(250)
        run.agent.say("still there?")
        kinds = [(row.call.kind, row.call.usage.read_tokens, row.call.usage.write_tokens) for row in run.ledger.rows]
        first = run.ledger.rows[0].call.usage.write_tokens
        assert kinds[1:4] == [("keepalive", first, 0)] * 3
        assert kinds[4][1] == first
        assert [turn.role for turn in session.turns] == ["user", "answer", "user", "answer"]
        warmer.follow(session)
        assert (warmer.pings, warmer.lost, warmer.hits_bought) == (3, 0, 1)
        assert first is not None and warmer.saved_usd == Decimal("1.15") * first * BASE
        warmer.pause()
        run.agent.warmer = warmer
        assert cost_json(run.agent)["keepalive"]["hits_bought"] == 1
        assert "kept warm 3 times for" in cost_text(run.agent)

    held(tmp_path, use)


def test_a_hit_that_no_ping_was_needed_for_is_no_saving(tmp_path: Path) -> None:
    def use(run: Opened, clock: agents.ManualClock, provider: Scripted) -> None:
        warmer, session = Warmer("running", lambda *_: BASE), run.agent.session
        entry = entry_of(session)
        assert entry is not None
        clock.moment = entry.due
        assert warmer.ping(session, entry) is not None
        clock.sleep(20)  # 290 s after the request, so its entry would still live
        run.agent.say("so soon")
        assert run.ledger.rows[-1].call.usage.read_tokens
        warmer.follow(session)
        warmer.pause()
        assert (warmer.pings, warmer.hits_bought, warmer.saved_usd) == (1, 0, Decimal(0))

    held(tmp_path, use)


def test_a_ping_that_writes_is_a_loss_and_the_last(tmp_path: Path) -> None:
    def use(run: Opened, clock: agents.ManualClock, provider: Scripted) -> None:
        warmer, session = Warmer("running", lambda *_: BASE), run.agent.session
        entry = entry_of(session)
        assert entry is not None
        provider.forget()  # evicted early, inside its lifetime
        clock.moment = entry.due
        assert warmer.ping(session, entry) is None
        assert (warmer.pings, warmer.lost, warmer.hits_bought) == (1, 1, 0)

    held(tmp_path, use)


def test_after_the_lifetime_nothing_is_kept(tmp_path: Path) -> None:
    def use(run: Opened, clock: agents.ManualClock, provider: Scripted) -> None:
        clock.sleep(301)
        assert entry_of(run.agent.session) is None

    held(tmp_path, use)


def test_the_thread_waits_pings_and_stops_on_the_clock(tmp_path: Path) -> None:
    """Idle with a large prompt: pings at 270, 540, … until half an hour is over, all on the hand-moved clock."""

    def use(run: Opened, clock: agents.ManualClock, provider: Scripted) -> None:
        warmer = Warmer("idle", lambda *_: Decimal("0.001"))
        heard = agents.Heard()
        run.agent.session.shared = replace(run.agent.session.shared, emit=heard)
        start = run.agent.session.last.started_at if run.agent.session.last else None
        warmer.idle(run.agent.session)
        while not heard.named("keepalive"):
            pass
        warmer.pause()
        pings = [row.call.started_at for row in run.ledger.rows if row.call.kind == "keepalive"]
        assert start is not None
        assert [(one - start).total_seconds() for one in pings if one] == [270.0 * n for n in range(1, 7)]
        assert heard.named("keepalive")[0]["reason"] == "kept for 30 min without a request"

    held(tmp_path, use)


def test_a_fixed_thinking_budget_has_no_cheap_replay(tmp_path: Path) -> None:
    for asked, kept in (("2048", False), ("adaptive", True)):
        clock = agents.ManualClock()
        made = agents.options(tmp_path, "http://127.0.0.1:1", thinking=asked)
        with agents.opened(made, provider=Scripted(load("anthropic"), clock), dialect=Messages(), clock=clock) as run:
            run.agent.say("hello " * 3000)
            assert (entry_of(run.agent.session) is not None) == kept


def test_an_api_without_lifetimes_is_never_pinged(tmp_path: Path) -> None:
    from harness.dialects.chat import Chat

    class Plain:
        name, host, key_fp = "openai", "api.openai.com", "k"

        def stream(self, body: bytes, feed: Feed) -> None:
            choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
            feed({"choices": [choice], "usage": {"prompt_tokens": 99_999, "completion_tokens": 1}})

        def whole(self, body: bytes) -> dict[str, object]:
            raise AssertionError

    made = agents.options(tmp_path, "http://127.0.0.1:1/chat/completions", model="gpt-6")
    with agents.opened(made, provider=Plain(), dialect=Chat(), clock=agents.ManualClock()) as run:
        run.agent.say("hello")
        assert entry_of(run.agent.session) is None
