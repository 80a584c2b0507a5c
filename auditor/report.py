"""The machine-readable report, schema `cachewright.audit/1`: tokens as integers, money as decimal strings."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

from auditor.money import Money
from auditor.pricing import Cost, plain
from auditor.records import Audit, Audited, Diagnosis, Finding
from auditor.savings import WhatIf
from auditor.totals import CauseSum, Sum, Totals
from localmodel.rules.types import RuleValue
from traces.canonical import dump
from traces.divergence import Divergence
from traces.facts import facts_of
from traces.lines import Rejected
from traces.schema import JsonObject

SCHEMA = "cachewright.audit/1"


def lines(audit: Audit, totals: Totals, what_if: list[WhatIf], money: Money) -> Iterator[bytes]:
    """The whole report as one JSON object, a line for each call: a long one need never be in memory as a whole."""
    head = {"schema": SCHEMA, "ruleset": {"provider": audit.ruleset.provider, "digest": audit.ruleset.digest}}
    yield dump(head)[:-1] + b","
    yield b'"totals":' + dump(totals_json(totals)) + b","
    yield b'"calls":['
    yield from _separated(call_json(audited, money, audit.calls) for audited in audit.calls)
    yield b'],"what_if":['
    yield from _separated(what_if_json(row, audit.calls) for row in what_if)
    yield b'],"rejected":[' + b",".join(dump(_rejected(row)) for row in audit.rejected)
    yield b'],"warnings":' + dump(audit.warnings) + b"}"


def _rejected(row: Rejected) -> JsonObject:
    """A row that gave no call, or one of which something has to be said (`kept`)."""
    place = row.place
    where = {"file": place.file, "line": place.line, "offset": place.offset, "length": place.length}
    return where | {"reason": row.reason, "pending": row.pending, "kept": row.kept}


def _separated(items: Iterable[JsonObject]) -> Iterator[bytes]:
    """One line an item, a comma between two."""
    line = b""
    for item in items:
        if line:
            yield line + b","
        line = dump(item)
    yield line


def totals_json(totals: Totals) -> JsonObject:
    """The sums, with the dollar total marked partial where something in it is unpriced or unknown."""
    return {
        **_sum(totals.whole),
        "unknown_calls": totals.whole.unknown_calls,
        "failed_calls": totals.failed_calls,
        "partial": totals.partial,
        "partial_reasons": sorted(totals.whole.reasons),
        "unpriced": {name: {"calls": each.calls, "tokens": each.tokens} for name, each in totals.unpriced.items()},
        "by_kind": {name: _sum(each) for name, each in totals.by_kind.items()},
        "by_agent": {name: _sum(each) for name, each in totals.by_agent.items()},
        "by_model": {name: _sum(each) for name, each in totals.by_model.items()},
        "by_cause": {name: _cause(each) for name, each in totals.by_cause.items()},
    }


def _sum(each: Sum) -> JsonObject:
    return {
        "calls": each.calls,
        "input_tokens": each.input_tokens,
        "read_tokens": each.read_tokens,
        "write_tokens": each.write_tokens,
        "uncached_tokens": each.uncached_tokens,
        "output_tokens": each.output_tokens,
        "hit_ratio": each.hit_ratio,
        "input_equivalents": plain(each.equivalents),
        "cost_usd": plain(each.usd) if each.priced_calls else None,
        **({} if each.low == each.high else {"cost_low_usd": plain(each.low), "cost_high_usd": plain(each.high)}),
        **({"cost_other": {name: plain(amount) for name, amount in each.other.items()}} if each.other else {}),
    }


def _cause(each: CauseSum) -> JsonObject:
    return {
        "calls": each.calls,
        "tokens": each.tokens,
        "written_tokens": each.written_tokens,
        "uncached_tokens": each.uncached_tokens,
        "again_usd": _money(each.again_usd),
        "avoidable_equivalents": plain(each.avoidable_equivalents),
        "avoidable_usd": _money(each.avoidable_usd),
    }


def call_json(audited: Audited, money: Money, calls: list[Audited]) -> JsonObject:
    """One call with what was billed, what the rules predict, verdict and diagnosis."""
    call, usage, outcome = audited.call, audited.call.usage, audited.outcome
    predicted = None
    if outcome is not None:
        predicted = {"read_tokens": outcome.read_tokens, "write_tokens": outcome.write_tokens}
    usd = money.recorded(audited).usd if money.row(audited) is not None else None
    paid, answer = money.cost(audited), facts_of(call).get("answer")
    return {
        "id": call.id,
        "seq": call.seq,
        "trace": call.trace,
        "kind": call.kind,
        "agent": call.agent,
        "model": call.model,
        "status": call.status,
        "started_at": _time(call.started_at) if call.clock == "utc" else None,
        "input_tokens": usage.input_tokens,
        "read_tokens": usage.read_tokens,
        "write_tokens": usage.write_tokens,
        **({} if usage.write_1h_tokens is None else {"write_1h_tokens": usage.write_1h_tokens}),
        "uncached_tokens": usage.uncached_tokens,
        "output_tokens": usage.output_tokens,
        "input_usd": None if usd is None else plain(usd),
        "cost": None if paid is None else cost_json(paid),
        "predicted": predicted,
        "agrees": audited.agrees,
        "basis": "usage" if outcome is None else "bodies",
        "verdict": audited.verdict,
        "note": audited.note,
        "diagnosis": None if audited.diagnosis is None else diagnosis_json(audited.diagnosis, calls),
        **({} if call.label is None else {"label": call.label.value}),
        **({} if answer is None else {"answer": answer}),
    }


def cost_json(paid: Cost) -> JsonObject:
    """The bill of one call: the figure that counts, what it lies between where it is uncertain, and why."""
    certain = paid.low == paid.high
    return {
        "currency": paid.currency,
        "amount": plain(paid.amount),
        **({} if certain else {"low": plain(paid.low), "high": plain(paid.high)}),
        "partial": paid.partial,
        "flags": list(paid.reasons),
    }


def diagnosis_json(diagnosis: Diagnosis, calls: list[Audited]) -> JsonObject:
    """Cause, place, evidence, alternatives and money of one diagnosis."""
    first, primary = diagnosis.first, diagnosis.primary
    reference = None if diagnosis.reference is None else calls[diagnosis.reference].call.id
    return {
        "cause": primary.cause,
        "change": first.change if first is not None else None,
        "status": primary.status,
        "path": primary.path,
        "parameter": primary.parameter,
        "first_change": None if first is None else first_change_json(first),
        "facts": dict(primary.facts),
        "evidence": primary.evidence,
        "also": [_finding(finding) for finding in diagnosis.also],
        "ruled_out": [_finding(finding) for finding in diagnosis.ruled_out],
        "rule": None if primary.rule is None else rule_json(primary.rule),
        "reference": reference,
        "lost_tokens": diagnosis.lost_tokens,
        "policy": diagnosis.policy,
        "avoidable_equivalents": _money(diagnosis.avoidable_equivalents),
        "avoidable_usd": _money(diagnosis.avoidable_usd),
    }


def first_change_json(first: Divergence) -> JsonObject:
    """Where the prompt first changed."""
    return {
        "path": first.path,
        "kind": first.change,
        "char_offset": first.char_offset,
        "token_offset": first.token_offset,
        "before": first.before,
        "after": first.after,
        "moved_to": first.moved_to,
        "names": list(first.names),
    }


def _finding(finding: Finding) -> JsonObject:
    return {
        "cause": finding.cause,
        "status": finding.status,
        "evidence": finding.evidence,
        "lost_tokens": finding.lost_tokens,
    }


def rule_json(rule: RuleValue) -> JsonObject:
    """The rule a verdict rests on, with what it rests on itself."""
    value: Any = rule.value
    if isinstance(value, Decimal):
        value = plain(value)
    return {
        "id": rule.id,
        "value": list(value) if isinstance(value, tuple) else value,
        "status": rule.status,
        "checked": rule.checked.isoformat(),
        "source": rule.source,
    }


def what_if_json(row: WhatIf, calls: list[Audited]) -> JsonObject:
    """One row of the what-if table; `changed` lists the calls whose bill differs, by id."""
    ratio = row.bill.hit_ratio
    return {
        "policy": row.policy,
        "policies": list(row.policies),
        "calls": row.bill.calls,
        "input_tokens": row.bill.input_tokens,
        "read_tokens": row.bill.read_tokens,
        "write_tokens": row.bill.write_tokens,
        "uncached_tokens": row.bill.uncached_tokens,
        "hit_ratio": None if ratio is None else round(ratio, 6),
        "input_equivalents": plain(row.bill.equivalents),
        "saving_equivalents": plain(row.saving_equivalents),
        "saving_usd": _money(row.saving_usd),
        "quality_risk": row.quality_risk,
        "paths": None if row.paths is None else {name: plain(value) for name, value in row.paths.items()},
        "note": row.note,
        "changed": [
            {"id": calls[index].call.id, "read_tokens": bill.read_tokens, "write_tokens": bill.write_tokens}
            for index, bill in sorted(row.by_call.items())
        ],
    }


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else plain(amount)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
