"""The books: which entries the cache holds, what each call read and wrote, and the verdict on it.

A call is planned by `localmodel.rules.step` at its start, when nobody knows yet when its response will begin. Its
entries are therefore written as never readable and `started` settles them when the response really begins: after
that, the state equals the one that `step` would have given had it known the moment. With `--kv` each settled change is
written through to the folder, so that the next process goes on from it.
"""

import logging
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock

from localmodel.rules.plan import Updates
from localmodel.rules.step import plan_of, send, step
from localmodel.rules.types import CacheState, Entry, EntryKey, Outcome
from localmodel.server.clock import Clock
from localmodel.server.errors import BadRequest
from localmodel.server.kept import FORGET_AFTER_S, Kept
from localmodel.server.render import Caller
from localmodel.server.ruleset import ServedRules
from localmodel.server.usage import Counts, counts
from localmodel.server.verdict import Memory, Sent, Verdict, judge, with_eviction
from traces.schema import JsonObject, Prompt

LOG = logging.getLogger("cachewright.serve")
NEVER, LONG_AGO = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
SWEEP_EVERY = 256
KEEP_ROWS, KEEP_KEYS, KEEP_BLOCKS = 1000, 64, 200_000


@dataclass(slots=True)
class Ticket:
    """One accepted call, from its plan to its end. `counts` and `verdict` are the planned ones until it runs."""

    number: int
    id: str
    api: str
    who: Caller
    prompt: Prompt
    outcome: Outcome
    verdict: Verdict
    sent: Sent
    counts: Counts
    at: datetime
    written: tuple[EntryKey, ...] = ()
    first_token_at: datetime | None = None
    ended_at: datetime | None = None
    status: int | None = None
    output_tokens: int | None = None

    @property
    def request_id(self) -> str:
        """The id of the HTTP request, the same in its headers and in an error on its stream."""
        return f"req_{self.id[-24:]}"


@dataclass(slots=True)
class Ledger:
    """All entries and the latest calls. Methods may be called from any thread; each is one transaction."""

    rules: ServedRules
    clock: Clock
    _state: CacheState = field(default_factory=CacheState)
    kept: Kept | None = None
    _lock: Lock = field(default_factory=Lock)
    _tickets: deque[Ticket] = field(default_factory=lambda: deque(maxlen=KEEP_ROWS))
    _memories: "OrderedDict[str, Memory]" = field(default_factory=OrderedDict)
    _number: int = 0
    _last: datetime = LONG_AGO

    def begin(self, ident: str, api: str, prompt: Prompt, who: Caller, thread: str) -> Ticket:
        """Plan a call at this moment. Raises `BadRequest` where the provider would refuse the request."""
        with self._lock:
            at, before = self._now(), self._state
            after, outcome = step(before, prompt, self.rules, at=at, first_token_at=NEVER)
            if outcome.rejected:
                raise BadRequest(f"cache_control: {outcome.rejected[0]}")
            memory = self._memory(who.key)
            verdict = judge(prompt, outcome, before, memory, thread, at)
            self._number += 1
            sent = Sent(self._number, thread, prompt, outcome, at)
            memory.add(sent)
            self._state = after
            planned = counts(outcome, prompt.total, outcome.read_tokens, self.rules.base.provider)
            ticket = Ticket(self._number, ident, api, who, prompt, outcome, verdict, sent, planned, at)
            left = _left(prompt, outcome, before, at)
            ticket.written = tuple(key for key, entry in left if entry.readable_at == NEVER)
            self._tickets.append(ticket)
            self._keep(key for key, _ in left)
            self._sweep(at)
            return ticket

    def claimed(self, ticket: Ticket, reused_tokens: int) -> None:
        """The call runs and reuses so many tokens: its usage and verdict are final."""
        with self._lock:
            ticket.counts = counts(ticket.outcome, ticket.prompt.total, reused_tokens, self.rules.base.provider)
            ticket.verdict = with_eviction(ticket.verdict, ticket.prompt, ticket.outcome, reused_tokens)

    def started(self, ticket: Ticket) -> None:
        """The response begins now: what the call wrote can be read from here on."""
        with self._lock:
            now = self._now()
            ticket.first_token_at = ticket.sent.first_token_at = now
            self._rewrite(ticket, lambda entry: Entry(entry.ttl, entry.ttl_s, entry.written_at, entry.used_at,
                                                      min(entry.readable_at, now)))  # fmt: skip

    def ended(self, ticket: Ticket, status: int, output_tokens: int) -> None:
        """The reply is complete, or broke off; a call that ends before its response began leaves nothing behind."""
        with self._lock:
            ticket.ended_at, ticket.status, ticket.output_tokens = self._now(), status, output_tokens
            if ticket.first_token_at is None:
                ticket.sent.gone = True
                self._rewrite(ticket, lambda entry: None if _sole(entry, ticket) else entry)

    def _rewrite(self, ticket: Ticket, change: "Callable[[Entry], Entry | None]") -> None:
        """Change the entries that this call wrote or waits for; not those written anew since."""
        entries = self._state.entries
        for key in ticket.written:
            old = entries.get(key)
            if old is None or old.written_at > ticket.at:
                continue
            new = change(old)
            entries = entries.remove(key) if new is None else entries.insert(key, new)
        self._state = CacheState(entries)
        self._keep(ticket.written)

    def _keep(self, keys: Iterable[EntryKey]) -> None:
        """Write what has become of these entries to the folder; those that nobody can read yet are not settled."""
        if self.kept is None:
            return
        found = [(key, self._state.entries.get(key)) for key in keys]
        changed = [(key, entry) for key, entry in found if entry is not None and entry.readable_at != NEVER]
        try:
            self.kept.write(changed, [key for key, entry in found if entry is None])
        except sqlite3.Error as error:
            LOG.warning("entries are not kept for the next start any more: %s; calls are still served", error)
            self.close()

    def close(self) -> None:
        """Close the folder, if there is one; no call is open any more."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None

    def rows(self, key: str) -> list[JsonObject]:
        """The latest calls of one API key as JSON objects, oldest first."""
        with self._lock:
            return [row(ticket) for ticket in self._tickets if ticket.who.key == key]

    def find(self, key: str, ident: str) -> Ticket | None:
        """The call of this API key that was answered as `ident`, while it is remembered."""
        with self._lock:
            return next((one for one in reversed(self._tickets) if one.id == ident and one.who.key == key), None)

    @property
    def entries(self) -> int:
        """Entries held, dead ones that are not yet forgotten included."""
        return len(self._state.entries)

    @property
    def state(self) -> CacheState:
        """The entries as they are."""
        return self._state

    def _now(self) -> datetime:
        """The time, later than any told before: a replay of the record must not have to guess an order."""
        self._last = max(self.clock(), self._last + timedelta(microseconds=1))
        return self._last

    def _memory(self, key: str) -> Memory:
        memory = self._memories.setdefault(key, Memory())
        self._memories.move_to_end(key)
        while len(self._memories) > 1 and (
            len(self._memories) > KEEP_KEYS or sum(one.blocks for one in self._memories.values()) > KEEP_BLOCKS
        ):
            self._memories.popitem(last=False)
        return memory

    def _sweep(self, at: datetime) -> None:
        """Forget entries dead for an hour (until then they tell an expiry from a first write)."""
        if self._number % SWEEP_EVERY:
            return
        entries = self._state.entries
        dead = [key for key, one in entries.items() if (at - one.used_at).total_seconds() > one.ttl_s + FORGET_AFTER_S]
        for key in dead:
            entries = entries.remove(key)
        self._state = CacheState(entries)
        self._keep(dead)


def _left(prompt: Prompt, outcome: Outcome, before: CacheState, at: datetime) -> Updates:
    """The entries that this call leaves, new or refreshed."""
    return send(before.entries.get, plan_of(prompt, outcome.rules), at, NEVER)[1]


def _sole(entry: Entry, ticket: Ticket) -> bool:
    """Whether only this call wrote the entry and none has come to wait for it since."""
    return entry.readable_at == NEVER and entry.written_at == entry.used_at == ticket.at


def row(ticket: Ticket) -> JsonObject:
    """One call for `GET /cachewright/calls`. Times are ISO 8601 in UTC; what is not known yet is null."""
    found, rules = ticket.counts, ticket.outcome.rules
    return {
        "id": ticket.id,
        "seq": ticket.number,
        "api": ticket.api,
        "model": ticket.prompt.model,
        "started_at": stamp(ticket.at),
        "first_token_at": stamp(ticket.first_token_at),
        "ended_at": stamp(ticket.ended_at),
        "status": ticket.status,
        "verdict": ticket.verdict.word,
        "cause": ticket.verdict.cause,
        "lost_tokens": ticket.verdict.lost_tokens,
        "path": ticket.verdict.path,
        "input_tokens": found.input_tokens,
        "read_tokens": found.read_tokens,
        "write_tokens": found.write_tokens,
        "write_5m_tokens": found.write_5m_tokens,
        "write_1h_tokens": found.write_1h_tokens,
        "uncached_tokens": found.uncached_tokens,
        "reused_tokens": found.reused_tokens,
        "output_tokens": ticket.output_tokens,
        "plan": {
            "engaged": ticket.outcome.engaged,
            "read_tokens": ticket.outcome.read_tokens,
            "write_tokens": ticket.outcome.write_tokens,
            "min_tokens": rules.min_tokens,
            "lookback": rules.lookback,
            "breakpoints": [
                {"path": ticket.prompt.paths[one.index], "ttl": one.ttl, "origin": one.origin}
                for one in ticket.outcome.breakpoints
            ],
        },
    }


def stamp(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC with microseconds: recorded times must replay to the same result."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
