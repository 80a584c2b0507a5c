"""Keep-alive: replay the last request with almost no output before its cache entry expires, where that pays.

Rules (lifetimes and prices are data; the constants are Pi 1.6's, see docs/run.md):

* due at 0.9 of the lifetime, at least 10 s before its end, counted from the START of the request that used the entry;
* not sent later than half of the time that is then left: a missed window would pay for a rebuild;
* only if `p * N * (write - read) - N * read` reaches $0.05; p is 1 while a tool runs, 0.15 while the user is away;
* at most one hour while running and 30 minutes while idle, for one-hour entries twelve times as long while idle;
* never with a fixed thinking budget: the output limit has to be larger than it, so there is no cheap replay;
* a ping must read and write nothing; else it is booked as a loss and no more are sent;
* a saving counts only when a real request hits after the entry would have expired without pings.

An API without a declared lifetime (OpenAI, DeepSeek) is never pinged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from threading import Event, Lock, Thread
from typing import Literal, TypeAlias

from harness.attempt import Answer
from harness.errors import HarnessError
from harness.session import Session
from harness.thinking import budget
from localmodel.rules.types import REFRESH_AT, Rates
from traces.schema import Call, JsonObject

Mode: TypeAlias = Literal["off", "running", "idle"]
BasePrice: TypeAlias = Callable[[str, str, datetime], Decimal | None]
"""(provider, model, moment) -> US dollars for one token of ordinary input; `None` where unknown."""

MARGIN_S = 10.0
LEAST_SAVING_USD = Decimal("0.05")
IDLE_PROBABILITY = Decimal("0.15")
LONGEST_RUNNING_S = 3600.0
LONGEST_IDLE_S = 1800.0
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept alive: lifetime, tokens, when it was last used, and since when it is kept without a real request."""

    ttl_s: int
    tokens: int
    used_at: datetime
    since: datetime

    @property
    def due(self) -> datetime:
        """When the next ping should go out."""
        return self.used_at + timedelta(seconds=min(self.ttl_s * REFRESH_AT, self.ttl_s - MARGIN_S))

    @property
    def deadline(self) -> datetime:
        """After this a ping may come too late."""
        return self.due + (self.used_at + timedelta(seconds=self.ttl_s) - self.due) / 2


@dataclass(frozen=True, slots=True)
class Decision:
    """`wait` until `at`, `ping` now, or `stop` for a reason."""

    what: Literal["wait", "ping", "stop"]
    reason: str = ""
    at: datetime | None = None


def saving(entry: Entry, rates: Rates, base: Decimal, *, running: bool) -> Decimal:
    """Expected net dollars of one ping."""
    chance = Decimal(1) if running else IDLE_PROBABILITY
    return (chance * (_write(entry, rates) - rates.read) - rates.read) * entry.tokens * base


def _write(entry: Entry, rates: Rates) -> Decimal:
    return rates.write_1h if entry.ttl_s >= HOUR_S else rates.write_5m


def decide(entry: Entry, now: datetime, *, mode: Mode, running: bool, rates: Rates, base: Decimal | None) -> Decision:
    """What to do at `now`. Pure."""
    if mode == "off" or (mode == "running" and not running):
        return Decision("stop", "keep-alive is off here")
    if entry.ttl_s <= MARGIN_S:
        return Decision("stop", f"a lifetime of {entry.ttl_s} s is too short")
    if base is None:
        return Decision("stop", "the model has no price")
    longest = LONGEST_RUNNING_S if running else LONGEST_IDLE_S
    longest = longest * 12 if entry.ttl_s >= HOUR_S and not running else longest
    if (entry.due - entry.since).total_seconds() > longest:
        return Decision("stop", f"kept for {longest / 60:.0f} min without a request")
    worth = saving(entry, rates, base, running=running)
    if worth < LEAST_SAVING_USD:
        return Decision("stop", f"would save {worth:.4f} USD, less than {LEAST_SAVING_USD}")
    if now < entry.due:
        return Decision("wait", at=entry.due)
    if now > entry.deadline:
        return Decision("stop", "the safe window was missed")
    return Decision("ping")


@dataclass(slots=True)
class Warmer:
    """Keeps the entry of a session's last request alive, from a thread of its own while `follow`ed.

    `least_usd` is the gate of the rules; tests of the wire set it to 0.
    """

    mode: Mode
    base: BasePrice
    pings: int = 0
    lost: int = 0
    hits_bought: int = 0
    saved_usd: Decimal = Decimal(0)
    _stop: Event | None = None
    _lock: Lock = field(default_factory=Lock)
    _pinged: Entry | None = None

    def follow(self, session: Session, *, running: bool = True) -> None:
        """A real request was answered: keep what it left."""
        self.pause()
        if self._pinged is not None and session.last is not None:
            self._book(session, session.last, self._pinged)
            self._pinged = None
        if self.mode == "off" or session.last is None:
            return
        stop = self._stop = Event()
        Thread(target=self._keep, args=(session, stop, running), daemon=True, name="keep-alive").start()

    def _book(self, session: Session, call: Call, kept: Entry) -> None:
        """Whether the pings paid: a request read what would have expired without them, and so did not write it."""
        at, read = call.started_at, call.usage.read_tokens
        if at is None or not read or (at - kept.since).total_seconds() < kept.ttl_s:
            return
        self.hits_bought += 1
        base, rates = self.base(call.provider, call.model or "", at), session.shared.forecast.rules(call, at).rates
        if base is not None:
            self.saved_usd += (_write(kept, rates) - rates.read) * min(read, kept.tokens) * base

    def pause(self) -> None:
        """A real request is about to be sent, or the session ends. Returns once no ping is under way."""
        if self._stop is not None:
            self._stop.set()
        with self._lock:
            self._stop = None

    def idle(self, session: Session) -> None:
        """The user's turn: from now on the chance that somebody comes back is small."""
        self.pause()
        if self.mode == "idle" and session.last is not None:
            self.follow(session, running=False)

    def _keep(self, session: Session, stop: Event, running: bool) -> None:
        clock = session.shared.clock
        entry = entry_of(session)
        while entry is not None and not stop.is_set():
            decision = self._decide(session, entry, running)
            if decision.what == "stop":
                session.shared.emit("keepalive", what="stop", reason=decision.reason)
                return
            if decision.what == "wait" and decision.at is not None:
                clock.wait(stop, max(0.0, (decision.at - clock.now()).total_seconds()))
                continue
            with self._lock:
                entry = None if stop.is_set() else self.ping(session, entry)

    def _decide(self, session: Session, entry: Entry, running: bool) -> Decision:
        last, now = session.last, session.shared.clock.now()
        assert last is not None
        rates, base = session.shared.forecast.rules(last, now).rates, self.base(last.provider, last.model or "", now)
        return decide(entry, now, mode=self.mode, running=running, rates=rates, base=base)

    def ping(self, session: Session, entry: Entry) -> Entry | None:
        """Send one; the entry with its life renewed, or `None` where it was in vain."""
        self.pings += 1
        try:
            answer = replay(session)
        except HarnessError as error:
            session.shared.emit("keepalive", what="failed", reason=str(error))
            self.lost += 1
            return None
        usage = answer.row.call.usage
        if not usage.read_tokens or (usage.write_tokens or 0) * 100 > usage.read_tokens:
            session.shared.emit(
                "keepalive", what="stop", reason=f"a ping read {usage.read_tokens}, wrote {usage.write_tokens}"
            )
            self.lost += 1
            return None
        self._pinged = entry
        at = answer.row.call.started_at
        return None if at is None else replace(entry, used_at=at)


def entry_of(session: Session) -> Entry | None:
    """What the last request left to be kept alive, `None` where the rules know of nothing."""
    last, shared = session.last, session.shared
    if last is None or last.started_at is None or last.request is None or budget(last.request):
        return None
    found = shared.forecast.entry(last, shared.clock.now())
    if found is None:
        return None
    tokens = (last.usage.read_tokens or 0) + (last.usage.write_tokens or 0)
    return Entry(found.ttl_s, tokens, found.used_at, last.started_at)


def replay(session: Session) -> Answer:
    """The last request again, byte for byte but for `max_tokens` and `stream`."""
    assert session.last is not None and session.last.request is not None
    return session.sender.send(ping_body(session.last.request), "keepalive", session.journal, retries=False)


def ping_body(body: JsonObject) -> JsonObject:
    """`max_tokens` 0 where the API takes it, else 1: not with a format or a forced tool."""
    forced = isinstance(body.get("tool_choice"), dict) and body["tool_choice"].get("type") in ("any", "tool")
    least = 1 if forced or (body.get("output_config") or {}).get("format") else 0
    return {**body, "max_tokens": least, "stream": False}
