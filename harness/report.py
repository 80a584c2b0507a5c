"""What a run says about its cost: the table of `/cost`, and the cache line under each answer."""

from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

from harness.compaction import Costs
from harness.keepalive import Warmer
from harness.ledger import Ledger, Row, Sum, by_kind, total
from harness.loop import Agent
from localmodel.rules.types import Rates
from traces.schema import Call, JsonObject

Why: TypeAlias = Callable[[Call], str | None]
"""Why a call of this session missed, in a few words; `None` where that is not known."""

_SHOWN = Decimal("0.0001")


def cost_json(agent: Agent) -> JsonObject:
    """Sums by purpose and in all, each compaction's three costs apart, and what keep-alive came to."""
    ledger = agent.session.shared.ledger
    made: JsonObject = {
        "total": _json(total(ledger.rows)),
        "by_kind": {kind: _json(one) for kind, one in by_kind(ledger.rows).items()},
        "stages": stages(ledger),
        "compactions": [_compaction_json(one, rates) for one, rates in _compactions(agent)],
    }
    warmer = agent.warmer
    if warmer is not None and warmer.pings:
        made["keepalive"] = {"pings": warmer.pings, "lost": warmer.lost, "hits_bought": warmer.hits_bought,
                             "saved_usd": str(warmer.saved_usd)}  # fmt: skip
    return made


def _compactions(agent: Agent) -> list[tuple[Costs, Rates]]:
    """The compactions of this run with the rates of their model, the latest request counted."""
    session, compactor = agent.session, agent.compactor
    if compactor is None or not compactor.done or session.last is None:
        return []
    compactor.measure(session)
    rates = session.shared.forecast.rules(session.last, session.shared.clock.now()).rates
    return [(one, rates) for one in compactor.done]


def _compaction_json(one: Costs, rates: Rates) -> JsonObject:
    costs = {name: _json(total(rows)) for name, rows in one.rows()}
    return {"how": one.how, "before_tokens": one.before_tokens, **costs, "pays_back_after": one.payback(rates)}


def stages(ledger: Ledger) -> JsonObject:
    """Seconds by stage: waiting for first tokens, generating, running tools."""
    waits = [row.wait_s for row in ledger.rows if row.wait_s is not None]
    generated = [row.generation_s for row in ledger.rows if row.generation_s is not None]
    return {"wait_s": round(sum(waits), 3), "generation_s": round(sum(generated), 3), "tool_s": round(ledger.tool_s, 3)}


def cost_text(agent: Agent) -> str:
    """The same as a table."""
    ledger = agent.session.shared.ledger
    lines = [f"{'purpose':10} {'calls':>5} {'input':>9} {'read':>9} {'written':>9} {'output':>7} {'USD':>9}"]
    for kind, one in [*by_kind(ledger.rows).items(), ("total", total(ledger.rows))]:
        lines.append(
            f"{kind:10} {one.attempts:>5} {one.input_tokens:>9,} {one.read_tokens:>9,} {one.write_tokens:>9,} "
            f"{one.output_tokens:>7,} {_usd(one):>9}"
        )
    unknown = total(ledger.rows).unknown
    if unknown:
        lines.append(f"{unknown} calls have no known price or usage and are in no sum of dollars")
    spent = stages(ledger)
    lines.append(f"waiting {spent['wait_s']} s, generating {spent['generation_s']} s, tools {spent['tool_s']} s")
    lines += [_compaction_text(one, rates) for one, rates in _compactions(agent)]
    if agent.warmer is not None and agent.warmer.pings:
        lines.append(_warmth(agent.warmer, total(row for row in ledger.rows if row.call.kind == "keepalive")))
    return "\n".join(lines)


def _compaction_text(one: Costs, rates: Rates) -> str:
    """The three costs, and when they pay back."""
    parts = [f"{name} {_usd(total(rows)) if rows else 'not yet'}" for name, rows in one.rows()]
    after = one.payback(rates)
    when = "does not pay back so far" if after is None else f"pays back after {after} requests, {len(one.later)} so far"
    return f"compaction ({one.how}) of {one.before_tokens:,} tokens: {', '.join(parts)}; {when}"


def _warmth(warmer: Warmer, spent: Sum) -> str:
    return (
        f"kept warm {warmer.pings} times for {_usd(spent)}, {warmer.lost} in vain; {warmer.hits_bought} later hits "
        f"that would have expired saved ${warmer.saved_usd.quantize(_SHOWN)}"
    )


def cache_line(agent: Agent, why: Why) -> str:
    """Hit ratio so far, the last miss and why, and when the cache runs out."""
    shared = agent.session.shared
    done = [row for row in shared.ledger.rows if row.call.kind in ("main", "subagent") and row.call.usage.input_tokens]
    if not done:
        return "cache: nothing known yet"
    ratio = total(done).hit_ratio or 0.0
    missed = next(((row, lost) for row in reversed(done[1:]) if (lost := _lost(row, done))), None)
    parts = [f"cache {ratio:.1%} read", "no miss" if missed is None else _miss(*missed, why)]
    left = shared.forecast.expires(done[-1].call, shared.clock.now())
    if left is not None:
        parts.append(f"expires in {left:.0f} s")
    known = total(shared.ledger.rows)
    parts.append(_usd(known) + (" (partly unknown)" if known.unknown and known.usd else ""))
    return ", ".join(parts)


def _miss(row: Row, lost: int, why: Why) -> str:
    return f"last miss: {lost:,} tokens ({why(row.call) or 'cause unknown'})"


def _lost(row: Row, rows: list[Row]) -> int:
    """Tokens by which a call read less than the call before it of the same agent had cached.

    None are lost where the history is shorter than before: a compaction swapped it, and has a line of its own.
    """
    before = [one for one in rows[: rows.index(row)] if one.call.agent == row.call.agent]
    if not before or row.call.usage.read_tokens is None or _length(row.call) < _length(before[-1].call):
        return 0
    last = before[-1].call.usage
    return max(0, (last.read_tokens or 0) + (last.write_tokens or 0) - row.call.usage.read_tokens)


def _length(call: Call) -> int:
    """Items of a request's conversation."""
    request = call.request or {}
    return len(request.get("messages") or request.get("input") or ())


def _json(one: Sum) -> JsonObject:
    return {
        "attempts": one.attempts, "input_tokens": one.input_tokens, "read_tokens": one.read_tokens,
        "write_tokens": one.write_tokens, "output_tokens": one.output_tokens, "hit_ratio": one.hit_ratio,
        "usd": None if one.unknown == one.attempts else str(one.usd), "unknown": one.unknown,
    }  # fmt: skip


def _usd(one: Sum) -> str:
    return "unpriced" if one.unknown == one.attempts else f"${one.usd.quantize(_SHOWN)}"
