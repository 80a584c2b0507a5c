"""One request and its attempts: written ahead, sent, put on the ledger, retried where that can help.

The order is what makes a crash harmless: (1) the journal says that an attempt begins, (2) the bytes go out, (3) the
ledger has the row with the answer, (4) the answer is used. Whatever is missing when a session is resumed follows from
what is there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from threading import Event
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from harness.breakpoints import Forecast, Planned
from harness.clock import Clock
from harness.errors import ProviderFailed
from harness.journal import Journal
from harness.ledger import Ledger, Row
from harness.providers.base import Provider
from harness.wire import Dialect, Marks, sound
from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import Call, JsonObject, Kind, Usage
from traces.wire.usage import of_response

RETRY_AFTER_S = (1.0, 4.0)
"""Pauses in front of the second and the third attempt, where the provider names none."""

LONGEST_PAUSE_S = 60.0

Emit: TypeAlias = Callable[..., None]
"""`emit(event, **members)`: tells whoever listens (terminal, JSON lines) what happens."""


def silent(event: str, **members: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response and its row."""

    response: JsonObject
    row: Row


@dataclass(slots=True)
class Sender:
    """Sends the requests of one agent; all but `agent` and `parent` is shared with the other agents of the session."""

    provider: Provider
    dialect: Dialect
    ledger: Ledger
    forecast: Forecast
    clock: Clock
    trace: str
    agent: str = "main"
    parent: str | None = None
    emit: Emit = silent
    started: Callable[[], None] = field(default=lambda: None)
    stopped: Event = field(default_factory=Event)

    def draft(self, body: JsonObject, kind: Kind) -> Call:
        """The call that sending `body` would be; without times and answer."""
        return Call(
            id=uuid4().hex,
            trace=self.trace,
            provider=self.provider.name,
            started_at=None,
            agent=self.agent,
            parent=self.parent,
            kind=kind,
            api=self.dialect.api,
            host=self.provider.host,
            key_fp=self.provider.key_fp,
            model=body.get("model"),
            request=body,
        )

    def send(
        self,
        body: JsonObject,
        kind: Kind,
        journal: Journal,
        *,
        marks: Marks | None = None,
        retries: bool = True,
        text: Callable[[str], None] | None = None,
    ) -> Answer:
        """Send until there is an answer. `kind` is the purpose; each attempt has a row of its own.

        Raises `ProviderFailed` of the last attempt, `BudgetSpent` before one that may not be sent.
        """
        pauses = RETRY_AFTER_S if retries else ()
        for number in range(1, len(pauses) + 2):
            self.ledger.check_budget()
            if self.stopped.is_set():
                raise ProviderFailed("stopped by the user", status=499)
            try:
                return self._once(body, kind, number, journal, text, marks or {})
            except ProviderFailed as error:
                if not error.retry or number > len(pauses):
                    raise
                pause = min(error.retry_after_s or pauses[number - 1], LONGEST_PAUSE_S)
                self.emit("retry", reason=str(error), seconds=pause)
                self.clock.sleep(pause)
        raise AssertionError("unreachable")

    def _once(
        self,
        body: JsonObject,
        kind: Kind,
        number: int,
        journal: Journal,
        text: Callable[[str], None] | None,
        marks: Marks,
    ) -> Answer:
        raw = dump(body)
        call = replace(self.draft(body, kind), attempt=number)
        at = self.clock.now()
        told = self.forecast.predict(call, at)
        journal.write(
            "attempt", id=call.id, kind=kind, agent=self.agent, attempt=number, at=at.isoformat(), sha256=sha(raw),
            marks=dict(marks),
        )  # fmt: skip
        flight = _Flight(self, replace(call, started_at=self.clock.now()), text)
        status: int | None = None
        try:
            flight.fly(raw, stream=bool(body.get("stream")))
            status = 200
            flight.check()
        except ProviderFailed as error:
            status = error.status
            raise
        finally:
            row = self._row(flight, status)
            self._report(row, told)
        return Answer(flight.assembly.response, row)

    def _row(self, flight: "_Flight", status: int | None) -> Row:
        """Aborted streams are on the ledger too: what `message_start` told is billed, the rest is unknown."""
        response = flight.assembly.response = sound(flight.assembly.response)
        if flight.first is not None:  # the response began, so the cache was read and written, whatever came then
            status = 200
        call = replace(
            flight.call,
            first_token_at=flight.first,
            ended_at=self.clock.now(),
            status=status,
            response=response or None,
            usage=_usage(response or None, flight.call.provider),
        )
        if not flight.settled:
            self.forecast.settle(call)
        return self.ledger.add(call)

    def _report(self, row: Row, told: Planned) -> None:
        call, usage = row.call, row.call.usage
        self.emit(
            "call",
            id=call.id,
            kind=call.kind,
            agent=call.agent,
            attempt=call.attempt,
            status=call.status,
            input_tokens=usage.input_tokens,
            read_tokens=usage.read_tokens,
            write_tokens=usage.write_tokens,
            output_tokens=usage.output_tokens,
            predicted_read_tokens=told.read_tokens,
            predicted_error_tokens=told.error_tokens,
            usd=None if row.usd is None else str(row.usd),
            wait_s=row.wait_s,
            generation_s=row.generation_s,
        )


class _Flight:
    """One attempt while it is under way."""

    def __init__(self, sender: Sender, call: Call, text: Callable[[str], None] | None) -> None:
        self.sender, self.call, self.text = sender, call, text
        self.assembly = sender.dialect.assembly()
        self.first: datetime | None = None
        self.settled = False

    def fly(self, raw: bytes, *, stream: bool) -> None:
        if stream:
            self.sender.provider.stream(raw, self._feed)
        else:
            self.assembly.response = self.sender.provider.whole(raw)
            self._begin()

    def check(self) -> None:
        """Raises `ProviderFailed` for a response that is no complete answer."""
        dialect, response = self.sender.dialect, self.assembly.response
        with self._of_this_api():
            flaw = dialect.flaw(response)
            dialect.calls(dialect.answer(response))
        if flaw is not None:
            raise ProviderFailed(f"{self.sender.provider.host}: {flaw}")

    @contextmanager
    def _of_this_api(self) -> Iterator[None]:
        """A server may send anything: what cannot be taken apart is its failure."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            host = self.sender.provider.host
            raise ProviderFailed(f"{host}: sent what is no answer of this API ({error!r})") from None

    def _feed(self, event: JsonObject) -> None:
        if self.sender.stopped.is_set():
            raise ProviderFailed("stopped by the user", status=499)
        with self._of_this_api():
            piece = self.assembly.feed(event)
        self._begin()
        if piece and self.text is not None:
            self.text(piece)

    def _begin(self) -> None:
        """The response begins: from now on its entries can be read, so the forecast has to know them."""
        if self.first is None:
            self.first = self.sender.clock.now()
            usage = _usage(self.assembly.response or None, self.call.provider)
            begun = replace(self.call, first_token_at=self.first, usage=usage)
            self.settled = usage.read_tokens is not None
            (self.sender.forecast.settle if self.settled else self.sender.forecast.begin)(begun)
            self.sender.started()


def _usage(response: JsonObject | None, provider: str) -> Usage:
    try:
        return of_response(response, provider) if response else Usage()
    except MalformedRow:  # a usage object that no provider documents: unknown, not zero
        return Usage()


def sha(raw: bytes) -> str:
    """Digest of a body's bytes."""
    return sha256(raw).hexdigest()
