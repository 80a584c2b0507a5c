"""What a run says about its cost: the table of `/cost`, and the cache line under each answer."""

from decimal import Decimal

from harness.breakpoints import Forecast
from harness.clock import Clock
from harness.ledger import Ledger, Row, Sum, by_kind, total
from traces.schema import JsonObject


def cost_json(ledger: Ledger) -> JsonObject:
    """Sums by purpose and in all."""
    kinds = {kind: _json(one) for kind, one in by_kind(ledger.rows).items()}
    return {"total": _json(total(ledger.rows)), "by_kind": kinds, "stages": stages(ledger)}


def stages(ledger: Ledger) -> JsonObject:
    """Seconds by stage: waiting for first tokens, generating, running tools."""
    waits = [row.wait_s for row in ledger.rows if row.wait_s is not None]
    generated = [row.generation_s for row in ledger.rows if row.generation_s is not None]
    return {"wait_s": round(sum(waits), 3), "generation_s": round(sum(generated), 3), "tool_s": round(ledger.tool_s, 3)}


def cost_text(ledger: Ledger) -> str:
    """The same as a table."""
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
    return "\n".join(lines)


def cache_line(ledger: Ledger, forecast: Forecast, clock: Clock) -> str:
    """Hit ratio so far, the last miss and why, and when the cache runs out."""
    done = [row for row in ledger.rows if row.call.kind in ("main", "subagent") and row.call.usage.input_tokens]
    if not done:
        return "cache: nothing known yet"
    ratio = total(done).hit_ratio or 0.0
    parts = [f"cache {ratio:.1%} read"]
    missed = next((text for row in reversed(done[1:]) if (text := _miss(row, done, forecast)) is not None), None)
    parts.append(f"last miss: {missed}" if missed else "no miss")
    left = forecast.expires(done[-1].call, clock.now())
    if left is not None:
        parts.append(f"expires in {left:.0f} s")
    known = total(ledger.rows)
    parts.append(_usd(known) + (" (partly unknown)" if known.unknown and known.usd else ""))
    return ", ".join(parts)


def _miss(row: Row, rows: list[Row], forecast: Forecast) -> str | None:
    """Why a call read less than the call before it of the same agent had cached; `None` where it did not."""
    before = [one for one in rows[: rows.index(row)] if one.call.agent == row.call.agent]
    usage = row.call.usage
    if not before or usage.read_tokens is None:
        return None
    last = before[-1].call
    cached = (last.usage.read_tokens or 0) + (last.usage.write_tokens or 0)
    if usage.read_tokens >= cached:
        return None
    lost = f"{cached - usage.read_tokens:,} tokens"
    at, since = row.call.started_at, last.started_at
    ttl = forecast.ruleset.at(row.call.model or "", "claude_api", at).ttl_s["5m"]
    if at is not None and since is not None and (at - since).total_seconds() >= ttl:
        return f"{lost}, expired after {(at - since).total_seconds():.0f} s"
    return f"{lost}; cachewright audit says why"


def _json(one: Sum) -> JsonObject:
    return {
        "attempts": one.attempts, "input_tokens": one.input_tokens, "read_tokens": one.read_tokens,
        "write_tokens": one.write_tokens, "output_tokens": one.output_tokens, "hit_ratio": one.hit_ratio,
        "usd": None if one.unknown == one.attempts else str(one.usd), "unknown": one.unknown,
    }  # fmt: skip


def _usd(one: Sum) -> str:
    return "unpriced" if one.unknown == one.attempts else f"${one.usd.quantize(Decimal('0.0001'))}"
