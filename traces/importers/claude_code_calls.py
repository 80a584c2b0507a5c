"""Calls of Claude Code transcripts, put together from the rows of their responses."""

from sys import intern

from msgspec import Struct, UnsetType, to_builtins
from msgspec.structs import replace

from traces import times
from traces.importers.claude_code_rows import Bill, Iteration, Message, Row
from traces.importers.transcripts import facts_of, named
from traces.schema import Call, JsonObject, Kind, Label, Place, Usage
from traces.wire.labels import anthropic_label
from traces.wire.terms import KEPT, OWN, unusual

CLIENT_NAME = "claude_code"


class Link(Struct):
    """Where a row stands: its chain, the response that stands before or at it, and its time where it is no response."""

    chain: "Chain"
    response: str | None
    time: str | None


class Chain(Struct):
    """A conversation: the main one or a sub-agent's. `since` collects what happened after its latest response.

    `time` is that of its latest row, where that is no response.
    """

    name: str
    latest: str | None = None
    time: str | None = None
    version: str | None = None
    mode: str | None = None
    since: list[str] = []


class Response(Struct):
    """A response while its rows come in."""

    id: str
    request: str | None
    chain: Chain
    row: Row
    message: Message
    place: Place
    previous: str | None
    since: list[str]
    sent: str | None
    last: str | None
    bill: Bill | None = None
    finished: bool = False


def calls_of(response: Response, stem: str) -> list[Call]:
    """The call that a response answers, and what was billed beside it (server-side compaction, an advisor)."""
    row, chain, bill = response.row, response.chain, response.bill
    main = chain.name == "main"
    call = Call(
        id=response.id,
        trace=intern(named(row.sessionId) or stem),
        provider=_provider(response.id),
        started_at=times.known(response.sent),
        seq=response.place.line,
        agent=chain.name,
        kind="main" if main else "subagent",
        api="messages",
        model=None if response.message.model is None else intern(response.message.model),
        ended_at=times.known(response.last),
        usage=Usage() if bill is None else usage_of(bill),
        facts=_facts(response),
        place=response.place,
        label=_label(response),
    )
    if bill is None or not bill.iterations:
        return [call]
    return [call, *(_beside(call, part, n) for n, part in enumerate(bill.iterations) if part.type not in OWN)]


def _beside(call: Call, part: Iteration, number: int) -> Call:
    """A pass of another kind within a response, which the response's own usage leaves out."""
    kind: Kind = "summary" if part.type == "compaction" else "side"
    model = call.model if part.model is None else intern(part.model)
    facts = {name: value for name, value in (call.facts or {}).items() if name in KEPT} | {"beside": part.type}
    return replace(
        call, id=f"{call.id}/{number}", kind=kind, model=model, usage=usage_of(part), facts=facts, label=None
    )


def usage_of(bill: Iteration) -> Usage:
    """Usage in this project's names: Anthropic's input is what was neither read nor written."""
    rest, read, write = bill.input_tokens, bill.cache_read_input_tokens, bill.cache_creation_input_tokens
    split = bill.cache_creation
    short = None if split is None else split.ephemeral_5m_input_tokens
    long = None if split is None else split.ephemeral_1h_input_tokens
    if short is not None and long is not None:
        write = short + long if write is None else write
        if short + long != write:
            short = long = None  # a split that leaves tokens out says nothing about them
    whole = None if rest is None or read is None else rest + read + (write or 0)
    return Usage(whole, read, write, short, long, bill.output_tokens)


def weight(bill: Bill) -> tuple[int, int]:
    """Of two usages of one response the later in the stream is the one with more in it."""
    rest, read, write = bill.input_tokens, bill.cache_read_input_tokens, bill.cache_creation_input_tokens
    return (rest or 0) + (read or 0) + (write or 0), bill.output_tokens or 0


def _facts(response: Response) -> JsonObject:
    row, bill = response.row, response.bill
    facts = facts_of(CLIENT_NAME, row.version, row.cwd, response.previous, response.since)
    if bill is not None:
        if unusual(bill.service_tier):
            facts["service"] = bill.service_tier
        if unusual(bill.speed):
            facts["speed"] = bill.speed
        if unusual(bill.inference_geo):
            facts["geo"] = bill.inference_geo
    if not response.finished:
        facts["output"] = "lower_bound"
    return facts


def _label(response: Response) -> Label | None:
    """The API's own comparison; a client that records diagnostics names its earlier message in each request."""
    found = response.message.diagnostics
    if isinstance(found, UnsetType):
        return None
    return anthropic_label(None if found is None else to_builtins(found), asked=response.previous is not None)


def _provider(name: str) -> str:
    """Who served a response, as its id tells."""
    if name.startswith("msg_bdrk_"):
        return "bedrock"
    return "vertex" if name.startswith("msg_vrtx_") else "anthropic"
