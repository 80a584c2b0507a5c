"""One request from its body to its last byte: render, plan, generate, report, record."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from localmodel.server import body as reading
from localmodel.server.dialect import Dialect, Incoming, Writer
from localmodel.server.errors import BackendFailed, BadRequest, Overloaded, PromptTooLong, ServerError, TimedOut
from localmodel.server.gate import Gate
from localmodel.server.ledger import Ledger, Ticket
from localmodel.server.metrics import Metrics
from localmodel.server.model import Backend, Claimed, Event, Finished, Generation, Started
from localmodel.server.offered import choice, offered
from localmodel.server.record import Recorder
from localmodel.server.render import Caller, Rendered, caller, render
from localmodel.server.settings import Limits, Settings
from localmodel.server.stream import EventStream, Stopped, paced, unless_gone
from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import JsonObject

LOG = logging.getLogger("cachewright.serve")
CLIENT_GONE = 499
_THREAD_BYTES = 200_000
_SAMPLING = ("temperature", "top_p", "top_k", "seed")


@dataclass(slots=True)
class Turn:
    """One accepted request."""

    dialect: Dialect
    incoming: Incoming
    rendered: Rendered
    ticket: Ticket
    generation: Generation
    writer: Writer
    session: tuple[str, str]
    status: int = CLIENT_GONE


@dataclass(slots=True)
class Service:
    """Everything one server shares between its requests."""

    settings: Settings
    limits: Limits
    backend: Backend
    ledger: Ledger
    recorder: Recorder | None = None
    metrics: Metrics = field(default_factory=Metrics)
    gate: Gate = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate = Gate(self.limits)

    async def respond(self, request: Request, dialect: Dialect) -> Response:
        """The reply to one request of `dialect`. Raises `ServerError`."""
        try:
            turn = await self._accept(request, dialect)
        except ServerError as error:
            self.metrics.requests[dialect.api, dialect.status(error)] += 1
            raise
        if turn.incoming.stream:
            return await self._streamed(request, turn)
        try:
            done = await unless_gone(request, self._collect(turn))
        finally:
            self._finish(turn)
        if done is None:
            return Response(status_code=CLIENT_GONE)
        return Response(dump(done), media_type="application/json", headers=_headers(turn.ticket))

    async def _streamed(self, request: Request, turn: Turn) -> Response:
        """A stream whose head waits until it is known what is reused, or until a sign of life is due."""
        events = self._paced(turn)
        claimed: bool | None = None
        try:
            claimed = await unless_gone(request, _claimed(events))
        finally:
            if claimed is None:
                await events.aclose()
                self._finish(turn)
        if claimed is None:
            return Response(status_code=CLIENT_GONE)
        headers = _headers(turn.ticket, known=claimed)
        return EventStream(request, self._stream(turn, events), headers, partial(self._finish, turn))

    async def count(self, sent: JsonObject, key: str | None) -> int:
        """Tokens of a Messages body; takes no slot and leaves nothing behind. Raises `BadRequest`."""
        return (await self._render(sent, caller(key))).prompt.total

    def stop(self) -> None:
        """Let open replies go on for the grace period, then end each with an error. Called from the event loop."""
        asyncio.get_running_loop().call_later(self.limits.grace_s, self._stop.set)

    def calls(self, key: str | None) -> list[JsonObject]:
        """The latest calls of one API key, oldest first."""
        return self.ledger.rows(caller(key).key)

    def figures(self) -> str:
        """The page of `GET /metrics`."""
        gate = self.gate
        pages = self.backend.pages()
        return self.metrics.text(waiting=gate.waiting, running=gate.running, entries=self.ledger.entries, pages=pages)

    def close(self) -> None:
        """Close the record, the backend and the books; called when no request is open any more."""
        if self.recorder is not None:
            self.recorder.close()
        self.backend.close()
        self.ledger.close()  # last: it unlocks the folder that the backend's pages lie in

    async def _accept(self, request: Request, dialect: Dialect) -> Turn:
        key = reading.authorised(request, self.settings.api_keys)
        self.gate.check()  # before the body is read: who is turned away need not be listened to
        incoming = dialect.read(await reading.json_body(request, self.limits))
        who = caller(key, incoming.cache_key, reading.betas_of(request))
        rendered = await self._render(incoming.body, who)
        total = rendered.prompt.total
        if total > self.backend.context_window:
            raise PromptTooLong(total, self.backend.context_window)
        session = reading.session_of(request)
        generation = self._generation(incoming, rendered, who)
        await self.backend.check(generation)
        diagnosis = dialect.diagnose(incoming.sent, rendered.prompt, who, self.ledger)
        ticket = self.ledger.begin(dialect.new_id(), dialect.api, rendered.prompt, who, " ".join(session))
        writer = dialect.writer(incoming, ticket, diagnosis)
        return Turn(dialect, incoming, rendered, ticket, generation, writer, session)

    async def _render(self, body: JsonObject, who: Caller) -> Rendered:
        """Rendered off the event loop where that takes long, so that other replies keep flowing."""
        try:
            if len(dump(body)) > _THREAD_BYTES:
                rendered = await asyncio.to_thread(render, body, self.backend, who)
            else:
                rendered = render(body, self.backend, who)
        except MalformedRow as error:
            raise BadRequest(str(error)) from None
        if len(rendered.prompt.blocks) > self.limits.blocks:
            raise BadRequest(f"{len(rendered.prompt.blocks)} content blocks, the limit is {self.limits.blocks}")
        return rendered

    def _generation(self, incoming: Incoming, rendered: Rendered, who: Caller) -> Generation:
        body, left = incoming.body, self.backend.context_window - rendered.prompt.total
        asked = left if incoming.max_tokens is None else incoming.max_tokens
        tools = offered(body)
        output = body.get("output_config")
        form = output.get("format") if isinstance(output, dict) else None
        schema = form.get("schema") if isinstance(form, dict) else None
        sampling: JsonObject = {name: incoming.sent[name] for name in _SAMPLING if name in incoming.sent}
        return Generation(
            body=rendered.body,
            max_tokens=min(asked, left),
            tools=tools,
            choice=choice(body, tools),
            format=schema if isinstance(schema, dict) else None,
            stop=incoming.stop,
            sampling=sampling,
            seed=rendered.prompt.chain[-1] if rendered.prompt.chain else b"",
            space=who.space,
        )

    async def _events(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """The backend's events, in a slot; the books are told what is reused and when the response begins."""
        async with self.gate.slot():
            reuse = turn.ticket.outcome.read_tokens
            async with aclosing(self.backend.generate(turn.generation, turn.rendered.tokens, reuse)) as events:
                async for event in events:
                    if isinstance(event, Claimed):
                        self.ledger.claimed(turn.ticket, event.reused_tokens)
                    elif isinstance(event, Started):
                        self.ledger.started(turn.ticket)
                    yield event

    def _timed(self, turn: Turn) -> AsyncGenerator[Event | None, None]:
        return paced(self._events(turn), self.limits.ping_s, self.limits.reply_s, self._stop)

    async def _paced(self, turn: Turn) -> AsyncGenerator[Event | None, None]:
        """The events with signs of silence; every failure as a `ServerError`, whose status is the call's."""
        try:
            async with aclosing(self._timed(turn)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            told = self._told(error, turn)
            turn.status = turn.dialect.status(told)
            raise told from None

    def _told(self, error: Exception, turn: Turn) -> ServerError:
        """What the client is told of a failure; the log gets what the client is not told."""
        if isinstance(error, ServerError):
            return error
        if isinstance(error, Stopped):
            return Overloaded("the server is stopping; send the request again later")
        if isinstance(error, TimeoutError):
            return TimedOut(f"the reply took longer than {self.limits.reply_s:g} s")
        LOG.error("generation of %s failed", turn.ticket.id, exc_info=error)
        return BackendFailed("the model failed; see the server's log")

    async def _stream(self, turn: Turn, paced: "AsyncGenerator[Event | None, None]") -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(paced) as events:
                async for event in events:
                    if isinstance(event, Claimed):
                        continue  # the head has gone out already
                    made = turn.writer.waiting() if event is None else turn.writer.feed(event)
                    if isinstance(event, Finished):
                        # Before its bytes go out: who has read the end may ask for the books at once.
                        turn.status = 200
                        self._finish(turn)
                    yield made
        except ServerError as error:
            self._finish(turn)
            yield turn.writer.failed(error)

    async def _collect(self, turn: Turn) -> JsonObject:
        async with aclosing(self._paced(turn)) as events:
            async for event in events:
                if event is not None and not isinstance(event, Claimed):
                    turn.writer.feed(event)
        turn.status = 200
        return turn.writer.final()

    def _finish(self, turn: Turn) -> None:
        """Close the books on a call, however it ended, once. What had begun counts as served: it read and wrote."""
        if turn.ticket.ended_at is not None:
            return
        ticket, output = turn.ticket, turn.writer.answer.output_tokens
        begun = ticket.first_token_at is not None
        self.ledger.ended(ticket, 200 if begun else turn.status, output)
        self.metrics.requests[ticket.api, turn.status] += 1
        self.metrics.verdicts[ticket.verdict.word, ticket.verdict.cause] += 1
        if ticket.first_token_at is not None:
            self.metrics.first_token((ticket.first_token_at - ticket.at).total_seconds())
            found = ticket.counts
            self.metrics.tokens.update(read=found.read_tokens, write=found.write_tokens,
                                       uncached=found.uncached_tokens, output=output)  # fmt: skip
        if self.recorder is not None:
            response = turn.writer.final() if begun else {}
            self.recorder.write(ticket, turn.incoming.sent, turn.rendered, response, turn.session)


async def _claimed(events: "AsyncGenerator[Event | None, None]") -> bool:
    """Whether it is known what the call reuses: false where it still waits when a sign of life is due."""
    return isinstance(await anext(events), Claimed)


def _headers(ticket: Ticket, *, known: bool = True) -> dict[str, str]:
    """The truth about the call; nothing of it where it is not known yet."""
    named = {"request-id": ticket.request_id, "x-request-id": ticket.request_id}
    if not known:
        return named
    return {
        **named,
        "x-cachewright-verdict": ticket.verdict.word,
        "x-cachewright-cause": ticket.verdict.cause,
        "x-cachewright-read": str(ticket.counts.read_tokens),
        "x-cachewright-write": str(ticket.counts.write_tokens),
    }
