"""What is kept of an audited session: each call's tokens and cause in a few bytes, and its misses with their evidence.

A digest is enough for totals and for the text report, so that a session that has not changed need not be read again. It
holds tokens and no money: prices are joined when it is read. Its misses are those that a report can show.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from hashlib import blake2b

import msgspec
from msgspec import Struct

from auditor.money import tier_of
from auditor.records import Audit, Audited, Cause, Diagnosis, Finding, Status, Verdict, start_of
from localmodel.rules.types import RuleValue
from localmodel.rules.types import Status as RuleStatus
from traces.facts import facts_of, terms_of
from traces.schema import Call, Kind, Ttl, Usage

FORMAT = 5
"""To be raised whenever a digest of the same session comes out otherwise: kept ones are then made anew."""


class Seen(Struct, array_like=True, gc=False):
    """One call. `id` is what its copies share, `at` its start in seconds since 1970, `lost` the tokens of `cause`.

    `asked` is the lifetime that its markers asked for, `terms` those of its price where they are not the usual ones.
    """

    id: bytes
    at: float | None
    provider: str
    model: str | None
    kind: Kind
    input: int | None
    read: int | None
    write: int | None
    write_5m: int | None
    write_1h: int | None
    output: int | None
    cause: Cause | None = None
    lost: int = 0
    project: str | None = None
    trace: str = ""
    agent: str = "main"
    terms: list[str] = []
    asked: Ttl | None = None

    def usage(self) -> Usage:
        """Its usage as reported."""
        return Usage(self.input, self.read, self.write, self.write_5m, self.write_1h, self.output)


class Reason(Struct, array_like=True, gc=False):
    """A finding without its rule; of all but the main one the first sentence of evidence is kept."""

    cause: Cause
    status: Status
    evidence: list[str]


class Rule(Struct, array_like=True, gc=False):
    """The rule that a verdict rests on."""

    id: str
    status: RuleStatus
    checked: date


class Miss(Struct, array_like=True):
    """A call that lost tokens: `seen` is its position among the digest's calls."""

    seen: int
    trace: str
    seq: int
    verdict: Verdict
    primary: Reason
    also: list[Reason]
    ruled_out: list[Reason]
    rule: Rule | None = None
    parameter: str | None = None


class Digest(Struct, array_like=True):
    """One session: its calls in time order, its misses, what was remarked while reading. `bodies`: it has requests."""

    calls: list[Seen]
    misses: list[Miss]
    remarks: list[str]
    bodies: bool = False


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Digest).decode


def digest_of(audit: Audit, remarks: Iterable[str]) -> Digest:
    """The digest of an audited session."""
    misses = [
        _miss(place, audited, audited.diagnosis)
        for place, audited in enumerate(audit.calls)
        if audited.diagnosis is not None and audited.diagnosis.lost_tokens
    ]
    bodies = any(audited.prompt is not None for audited in audit.calls)
    return Digest([seen_of(audited) for audited in audit.calls], misses, [*remarks, *audit.warnings], bodies)


def seen_of(audited: Audited) -> Seen:
    """What a digest keeps of a call."""
    call, usage, diagnosis = audited.call, audited.call.usage, audited.diagnosis
    lost, facts = diagnosis.lost_tokens if diagnosis is not None else 0, facts_of(call)
    return Seen(
        _identity(call),
        None if call.started_at is None else call.started_at.timestamp(),
        call.provider,
        call.model,
        call.kind,
        usage.input_tokens,
        usage.read_tokens,
        usage.write_tokens,
        usage.write_5m_tokens,
        usage.write_1h_tokens,
        usage.output_tokens,
        diagnosis.primary.cause if diagnosis is not None and lost else None,
        lost,
        facts.get("project"),
        call.trace,
        call.agent,
        [*terms_of(call)],
        tier_of(audited) if audited.prompt is not None or "ttls" in facts else None,
    )


def _identity(call: Call) -> bytes:
    usage = call.usage
    text = f"{call.id}\0{usage.input_tokens}\0{usage.read_tokens}\0{usage.write_tokens}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).digest()


def _miss(place: int, audited: Audited, diagnosis: Diagnosis) -> Miss:
    primary, rule = diagnosis.primary, diagnosis.primary.rule
    return Miss(
        place,
        audited.call.trace,
        audited.call.seq,
        audited.verdict,
        Reason(primary.cause, primary.status, primary.evidence),
        [Reason(each.cause, each.status, each.evidence[:1]) for each in diagnosis.also],
        [Reason(each.cause, each.status, each.evidence[:1]) for each in diagnosis.ruled_out[:2]],
        None if rule is None else Rule(rule.id, rule.status, rule.checked),
        primary.parameter,
    )


def audited_of(miss: Miss, seen: Seen, index: int) -> Audited:
    """The miss as a report shows it; what a digest does not keep is unknown in it."""
    at = None if seen.at is None else datetime.fromtimestamp(seen.at, UTC)
    call = Call("", miss.trace, seen.provider, at, miss.seq, kind=seen.kind, model=seen.model, usage=seen.usage())
    rule = None if miss.rule is None else RuleValue(miss.rule.id, None, miss.rule.status, miss.rule.checked, "")
    primary = Finding(
        miss.primary.cause, miss.primary.status, miss.primary.evidence, seen.lost, rule, parameter=miss.parameter
    )
    diagnosis = Diagnosis(primary, [*map(_finding, miss.also)], [*map(_finding, miss.ruled_out)])
    moment = start_of(call)
    return Audited(index, call, None, moment, moment, verdict=miss.verdict, diagnosis=diagnosis)


def _finding(reason: Reason) -> Finding:
    return Finding(reason.cause, reason.status, reason.evidence)
