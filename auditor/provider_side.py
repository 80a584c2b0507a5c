"""Hits that the rules expected and the bill does not show: what on the provider's side may explain them."""

from auditor.blockers import routing_difference
from auditor.context import Context, gap_of, name_of, seconds
from auditor.records import Audited, Finding, Status
from traces.schema import Ttl

# Calls that answer nothing by design; any other answer of 0 tokens was cut off.
_SILENT_KINDS = ("prewarm", "keepalive", "count")


def unexplained(context: Context, lost: int) -> tuple[Finding, list[Finding]]:
    """The finding for `lost` tokens of a live, reachable entry that were not read, and what else may be behind it."""
    prompt, outcome = context.prompt, context.outcome
    if not outcome.promised or outcome.rules.evicts:
        return _not_promised(context, lost)
    at, params = prompt.paths[outcome.read_index], dict(prompt.params)
    writer = last_user(context)
    fact = (
        f"an entry of {outcome.read_tokens:,} tokens at {at} was alive, readable and in reach by the rules, yet "
        f"{context.read:,} were read"
    )
    if writer is not None and _cut_off(writer):
        why = (
            f"{fact}; {name_of(writer)}, which wrote it, was answered with 0 tokens: if that response never began, the "
            "entry never became readable"
        )
        rule = context.rules.values.get("readable_after")
        return Finding("not_yet_readable", "possible", [why], lost, rule), []
    if "context_management" in params:
        why = f"{fact}; the request lets the API clear or summarise history (context_management), which changes it"
        rule = context.rules.values.get("invalidates_context_management")
        return Finding("compaction", "likely", [why], lost, rule, parameter="context_management"), []
    evidence = [f"{fact}; nothing in the recorded request explains it"]
    if "betas" not in params:
        evidence.append("request headers (beta features) were not recorded and could differ")
    evicted = Finding("evicted", "possible", ["the entry may have been dropped before its lifetime ended"])
    return Finding("provider_side", "likely", evidence, lost), [evicted]


def _not_promised(context: Context, lost: int) -> tuple[Finding, list[Finding]]:
    """A hit that the provider does not promise: what may be behind its absence, and never whose fault it is."""
    prompt, outcome, rules = context.prompt, context.outcome, context.rules
    user = last_user(context)
    fact = (
        f"up to {outcome.least_tokens:,} tokens, to {prompt.paths[outcome.read_index]}, could have been read by the "
        f"rules, {context.read:,} were; the prompt explains no difference"
    )
    if user is None:
        return Finding("provider_side", "likely", [fact], lost), []
    gap, ttl = gap_of(context.audited, user), _class_of(context)
    entry = "the cache is best effort: hits are not promised"
    if rules.evicts:
        why = [fact, "entries are dropped when memory is needed, least recently used first"]
        return Finding("evicted", "possible", why, lost, rules.values.get("lifetime_ends")), []
    routed = routing_difference(context, user)
    if gap >= rules.likely_s(ttl):
        return _aged(context, fact, gap, ttl, lost, "likely"), routed
    if routed:
        routed[0].lost_tokens = lost
        routed[0].evidence.insert(0, fact)
        return routed[0], routed[1:]
    also = [_aged(context, fact, gap, ttl, 0, "possible")] if gap >= rules.sure_s(ttl) else []
    evicted = Finding("evicted", "possible", ["the entry may have been dropped early, or another machine asked"])
    return Finding("provider_side", "likely", [fact, entry], lost, rules.values.get("guaranteed")), [*also, evicted]


def _class_of(context: Context) -> Ttl:
    index = context.outcome.read_index
    key = (context.prompt.chain[index], context.outcome.salts[context.prompt.blocks[index].level])
    entry = context.state.entries.get(key)
    return context.rules.default_ttl if entry is None else entry.ttl


def _aged(context: Context, fact: str, gap: float, ttl: Ttl, lost: int, status: Status) -> Finding:
    """An entry at an age at which the provider says that it may be gone."""
    rules, word = context.rules, "short" if ttl == "5m" else "long"
    why = (
        f"{seconds(gap)} since it was last used; entries live for at least {seconds(rules.sure_s(ttl))}, usually up to "
        f"{seconds(rules.likely_s(ttl))}, at most {seconds(rules.ttl_s[ttl])}"
    )
    facts: dict[str, int | str] = {"ttl_s": rules.sure_s(ttl), "gap_start_to_start_s": round(gap)}
    rule = rules.values.get(f"ttl_likely_seconds_{word}") or rules.lifetime(ttl)
    return Finding("ttl_expired", status, [fact, why], lost, rule, facts=facts)


def last_user(context: Context) -> Audited | None:
    """The call that last wrote or read the entry that should have been read.

    A unit that ends with an output was left by the call whose input stands in front of it.
    """
    prompt, index = context.prompt, context.outcome.read_index
    while index >= 0:
        user = context.history.last_use((prompt.chain[index], context.outcome.salts[prompt.blocks[index].level]))
        if user is not None:
            return context.history.calls[user]
        if prompt.blocks[index].role != "assistant":
            return None
        index -= 1
    return None


def _cut_off(call: Audited) -> bool:
    """Whether a call wrote its entry, but may never have begun to answer."""
    one = call.call
    return one.usage.output_tokens == 0 and one.first_token_at is None and one.kind not in _SILENT_KINDS
