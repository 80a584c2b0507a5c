"""Hits that the rules expected and the bill does not show: what on the provider's side may explain them."""

from auditor.context import Context, name_of
from auditor.records import Audited, Finding

# Calls that answer nothing by design; any other answer of 0 tokens was cut off.
_SILENT_KINDS = ("prewarm", "keepalive", "count")


def unexplained(context: Context, lost: int) -> tuple[Finding, list[Finding]]:
    """The finding for `lost` tokens of a live, reachable entry that were not read, and what else may be behind it."""
    prompt, outcome = context.prompt, context.outcome
    at, params = prompt.paths[outcome.read_index], dict(prompt.params)
    writer = _last_user(context)
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


def _last_user(context: Context) -> Audited | None:
    """The call that last wrote or read the entry that should have been read."""
    index = context.outcome.read_index
    key = (context.prompt.chain[index], context.outcome.salts[context.prompt.blocks[index].level])
    user = context.history.last_use(key)
    return None if user is None else context.history.calls[user]


def _cut_off(call: Audited) -> bool:
    """Whether a call wrote its entry, but may never have begun to answer."""
    one = call.call
    return one.usage.output_tokens == 0 and one.first_token_at is None and one.kind not in _SILENT_KINDS
