"""Seeded traces in the native form whose usage is true by the naive oracle.

`random_trace` looks for trouble: gaps around the lifetimes, distances around the lookback limit, calls in flight
together, moved markers, changed tools and parameters, forks. `healthy_trace` only ever appends, so that every call of
an agent reads all that its call before left. All requests are legal: at most 4 markers, longer lifetimes first, no
marker on a block that cannot carry one. What the provider's pages leave open is avoided: a message never changes
between string and list, calls in flight together use one plan of lifetimes, "high" effort is never explicit.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from changes import CHANGES, GROWTH, without_empty_tail
from talk import MIN_TOKENS, Maker, Row, Talk, body, can_mark, fill_usage, in_array, markable, row_of

STARTS = (
    "2026-02-18T23:40:00Z",  # before automatic caching, often across its first day
    "2026-03-02T09:00:00Z",
    "2026-08-31T23:40:00Z",  # before runs of tool blocks count as one position, often across that day
    "2026-10-05T08:00:00Z",
)
STYLES = ("all5m", "all5m", "all1h", "prefix1h", "tools1h", "history1h")
MAX_MARKS = 4
TTLS_S = (300, 3600)


@dataclass
class Recorder:
    """The trace so far, and the time now; entries of call n can be read from `readable[n]`."""

    rng: Random
    trace: str
    now: datetime
    rows: list[Row] = field(default_factory=list)
    starts: list[datetime] = field(default_factory=list)
    readable: list[datetime] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        return any(moment > self.now for moment in self.readable)

    def send(self, talk: Talk, marks: dict[str, str], automatic: str | None, slow: bool = False) -> Row:
        """Record one call now; `slow` calls take up to 140 s until the response begins."""
        first = self.now + timedelta(
            milliseconds=self.rng.randint(100_000, 140_000) if slow else self.rng.randint(300, 9_000)
        )
        end = first + timedelta(milliseconds=0 if slow else self.rng.randint(0, 10_000))
        known_first, known_end = self.rng.random() < 0.6, self.rng.random() < 0.7
        times = self.now, first if known_first else None, end if known_end else None
        row = row_of(talk, len(self.rows) + 1, self.trace, body(talk, marks, automatic, self.rng), times)
        self.rows.append(row)
        self.starts.append(self.now)
        self.readable.append(times[1] or times[2] or self.now + timedelta(seconds=5))
        return row


# The oracle's troubles -----------------------------------------------------------------------------------------------


def random_trace(rng: Random, n_calls: int) -> list[Row]:
    """`n_calls` native rows of several conversations that provoke hits and misses at every border of the rules."""
    maker = Maker(rng, rng.choice((20, 150, 900)))
    record = Recorder(rng, f"random-{rng.randrange(10**9)}", datetime.fromisoformat(rng.choice(STARTS)))
    sent = [start_talk(maker, "main")]
    tails: dict[str, str] = {}
    style = rng.choice(STYLES)
    for number in range(n_calls):
        talk = next_talk(maker, sent, number)
        if number:
            record.now = next_start(rng, record)
        if record.in_flight and style == "history1h":
            record.now = max(record.readable)
        if not record.in_flight:
            style = rng.choice(STYLES)
        marks, automatic = choose_marks(rng, talk, style, tails.get(talk.agent))
        row = record.send(talk, marks, automatic, slow=rng.random() < 0.1)
        row["status"] = 529 if rng.random() < 0.04 else 200
        tails[talk.agent] = in_array(talk)[-1][0]
        sent.append(talk)
    if rng.random() < 0.2:  # a recorder that writes a call down when it ends
        record.rows.sort(key=lambda row: row["ended_at"] or row["started_at"])
    return fill_usage(record.rows)


def start_talk(maker: Maker, agent: str) -> Talk:
    """A conversation's first prompt; every other one ends a level at the model's minimum, or one token beside it."""
    rng = maker.rng
    model = rng.choice(list(MIN_TOKENS))
    tools = tuple(maker.tool() for _ in range(rng.randint(0, 4)))
    system = tuple(maker.text() for _ in range(rng.randint(1, 2)))
    if len(system) == 1 and rng.random() < 0.3:
        system = (replace(system[0], plain=True),)
    prompt = maker.text(plain=rng.random() < 0.3)
    if rng.random() < 0.5:
        others = sum(piece.tokens for piece in (*tools, *system[:-1])) + rng.choice((0, prompt.tokens))
        missing = MIN_TOKENS[model] + rng.choice((-1, 0, 1)) - others
        system = (*system[:-1], replace(system[-1], tokens=max(1, missing)))
    return Talk(agent, None, "main", model, "key-1", "api.anthropic.com", tools, system, (("user", (prompt,)),))


def next_talk(maker: Maker, sent: list[Talk], number: int) -> Talk:
    """What is sent next: mostly the last conversation grown or changed, sometimes an older one, a fork or a new one."""
    rng = maker.rng
    draw = rng.random()
    if draw < 0.05:
        return start_talk(maker, f"agent-{number}")
    talk = sent[-1] if draw < 0.7 else rng.choice(sent[-6:])
    if draw > 0.85:
        talk = replace(talk, agent=f"sub-{number}", parent=talk.agent, kind="subagent")
    if rng.random() < 0.6:
        talk = without_empty_tail(talk)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        change = rng.choice(GROWTH) if rng.random() < 0.65 else rng.choice(CHANGES)
        talk = change(maker, talk)
    return talk


def next_start(rng: Random, record: Recorder) -> datetime:
    """A start no earlier than now: at once, as an entry becomes readable, as a lifetime ends, or just later."""
    beside = timedelta(milliseconds=rng.choice((-1000, -1, 0, 0, 1, 1000)))
    draw = rng.random()
    if draw < 0.12:
        return record.now
    if draw < 0.24:
        moment = record.readable[-1] + beside
    elif draw < 0.5:
        moment = rng.choice(record.starts[-5:]) + timedelta(seconds=rng.choice((300, 300, 3600))) + beside
    else:
        moment = record.now + timedelta(
            milliseconds=rng.choice((20_000, 90_000, 280_000, 2_000_000)) + rng.randint(0, 9_999)
        )
    return moment if moment >= record.now else record.now + timedelta(seconds=11)


def choose_marks(rng: Random, talk: Talk, style: str, last_tail: str | None) -> tuple[dict[str, str], str | None]:
    """Up to 4 pointers with their lifetimes, and the lifetime of an automatic marker if there is one."""
    places = markable(talk)
    automatic = rng.random() < 0.25
    wanted = places[-1:] if rng.random() < 0.85 else []
    if last_tail and rng.random() < 0.35:
        wanted.append(last_tail)
    for level, chance in (("/system", 0.5), ("/tools", 0.35), ("/", 0.2)):
        found = [place for place in places if place.startswith(level)]
        if found and rng.random() < chance:
            wanted.append(rng.choice(found) if level == "/" else found[-1])
    picks = [place for place in places if place in wanted[: MAX_MARKS - automatic]]
    marks = {place: lifetime(style, place, place == picks[-1]) for place in picks}
    target = [pointer for pointer, piece in in_array(talk) if can_mark(piece)][-1]
    tail_ttl = marks.get(target, lifetime(style, target, last=True))
    return marks, tail_ttl if automatic else None


def lifetime(style: str, pointer: str, last: bool) -> str:
    """The lifetime that a plan gives to a marker; "history1h" keeps all but the last marker for an hour."""
    hour = {
        "all5m": False,
        "all1h": True,
        "prefix1h": not pointer.startswith("/messages"),
        "tools1h": pointer.startswith("/tools"),
        "history1h": not last,
    }
    return "1h" if hour[style] else "5m"


# Nothing to find -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where a healthy client marks, the same in all its calls."""

    style: str
    automatic: bool
    keep_last_tail: bool

    @property
    def tail_ttl_s(self) -> int:
        return TTLS_S[self.style == "all1h"]

    def marks(self, talk: Talk, last_tail: str | None) -> tuple[dict[str, str], str | None]:
        places = markable(talk)
        # The tools are marked too: sub-agents share them with the main agent, but not its system prompt.
        picks = [place for place in places if place.startswith("/tools")][-1:]
        picks += [place for place in places if place.startswith("/system")][-1:]
        picks += [last_tail] if self.keep_last_tail and last_tail else []
        picks += [] if self.automatic else places[-1:]
        marks = {place: lifetime(self.style, place, last=True) for place in picks}
        return marks, lifetime(self.style, places[-1], last=True) if self.automatic else None


def healthy_trace(rng: Random, n_calls: int) -> list[Row]:
    """`n_calls` native rows without one avoidable miss: append-only, tail marked, gaps below the lifetime, one key.

    Each agent's call reads exactly what its call before read and wrote. There are sub-agents with their own system
    prompt, side calls, prompts below the minimum, large tool results and pauses just below the lifetime.
    """
    maker = Maker(rng, rng.choice((15, 150, 900)))
    record = Recorder(rng, f"healthy-{rng.randrange(10**9)}", datetime.fromisoformat(rng.choice(STARTS[1:])))
    layout = Layout(rng.choice(("all5m", "all1h", "prefix1h")), rng.random() < 0.3, rng.random() < 0.4)
    main = healthy_start(maker, "main", "main")
    last_tail = None
    while True:
        last_tail = send_healthy(record, layout, main, last_tail)
        start = record.starts[-1]
        if rng.random() < 0.3:
            helpers(maker, record, layout, main)
        if len(record.rows) >= n_calls:
            return fill_usage(record.rows[:n_calls])
        pause = layout.tail_ttl_s - 1 if rng.random() < 0.15 else 1
        record.now = max(record.readable[-1] + timedelta(seconds=1), start + timedelta(seconds=pause))
        main = grow(maker, main)


def send_healthy(record: Recorder, layout: Layout, talk: Talk, last_tail: str | None) -> str:
    """Send and return the pointer of the tail, for the next call to keep marked."""
    record.send(talk, *layout.marks(talk, last_tail))
    return markable(talk)[-1]


def healthy_start(maker: Maker, agent: str, kind: str, parent: Talk | None = None) -> Talk:
    rng = maker.rng
    tools = parent.tools if parent else tuple(maker.tool() for _ in range(rng.randint(1, 4)))
    model = parent.model if parent else rng.choice(list(MIN_TOKENS))
    first = (maker.text(), maker.image()) if rng.random() < 0.2 else (maker.text(),)
    params = (("thinking", {"type": "enabled", "budget_tokens": 1024}),) if rng.random() < 0.3 else ()
    name = parent.agent if parent else None
    system = (maker.role(maker.size() * 3),)
    return Talk(agent, name, kind, model, "key-1", "api.anthropic.com", tools, system, (("user", first),), params)


def grow(maker: Maker, talk: Talk) -> Talk:
    """Append at most 17 positions, however runs are counted."""
    rng = maker.rng
    thinks = bool(talk.params)
    draw = rng.random()
    if draw < 0.2:
        return talk.with_turns(
            ("assistant", (maker.text(),)), ("user", tuple(maker.text() for _ in range(rng.randint(1, 15))))
        )
    if draw < 0.3:
        return talk.with_turns(*maker.tool_round(rng.randint(2, 7), thinking=thinks))
    for _ in range(rng.randint(1, 4)):
        talk = talk.with_turns(*maker.tool_round(1, thinking=thinks))
    if draw > 0.9:
        _, (result,) = talk.turns[-1]
        talk = talk.with_piece(len(talk.turns) - 1, 0, replace(result, tokens=21_000))
    return talk


def helpers(maker: Maker, record: Recorder, layout: Layout, main: Talk) -> None:
    """A sub-agent of up to 4 calls or one small side call, after the parent's response began."""
    rng = maker.rng
    number = len(record.rows)
    record.now = record.readable[-1] + timedelta(seconds=1)
    if rng.random() < 0.4:
        side = replace(healthy_start(maker, f"side-{number}", "side"), tools=(), model=main.model, parent=main.agent)
        send_healthy(record, layout, side, None)
        return
    sub = healthy_start(maker, f"sub-{number}", "subagent", main)
    last_tail = send_healthy(record, layout, sub, None)
    for _ in range(rng.randint(0, 3)):
        record.now = record.readable[-1] + timedelta(seconds=rng.randint(1, 20))
        sub = grow(maker, sub)
        last_tail = send_healthy(record, layout, sub, last_tail)
