"""Why a call read less than it could have, where its body was recorded.

The billed read splits what the call could have read into segments, and each segment's tokens go to one cause:

    billed read .. predicted read      the rules expected a hit: provider side
    .. longest prefix with an entry    that entry's blockers: key, lifetime, timing, reach (`auditor.blockers`),
                                       unless a change of content alone cut the newest entry off
    .. what is still here of the       the change of content that cut it off (`auditor.content`), or, where nothing
       call before                     changed, the breakpoint that was missing at the common end

A call is accused of nothing unless tokens that were cached or sent before had to be paid for again.
"""

from typing import NamedTuple

from auditor.blockers import changed, entry_blockers, key_difference
from auditor.content import ContentLoss, content_finding, content_loss, lifetime_of_previous, system_changed_too
from auditor.context import Context, first_of_group, gap_of, name_of, same_thread, seconds
from auditor.provider_side import last_user, unexplained
from auditor.records import Audited, Cause, Diagnosis, Finding, Status
from traces.schema import Level, Prompt

# Repeated tokens that no entry covered are worth a word only from this many on: a marker costs a slot of four.
MATERIAL_TOKENS = 1024


class Segment(NamedTuple):
    """Lost tokens with their cause, further causes that hold for the same tokens, and the call they were lost from."""

    finding: Finding
    also: list[Finding]
    reference: Audited | None


def diagnose(context: Context) -> Diagnosis | None:
    """The diagnosis of a call with a body, `None` where nothing that could have been read was lost."""
    if _idle(context):
        return _not_engaged(context)
    segments: list[Segment] = []
    floor = context.read
    floor = _provider_side(context, floor, segments)
    loss = content_loss(context, floor)
    if loss is not None:
        context.audited.previous = loss.before.index
    if loss is None or not _cut_off(context, loss):
        floor = _entry(context, floor, segments)
    if loss is not None and loss.kept - floor > context.slack:
        _content(context, loss, floor, segments)
    elif loss is None:
        _uncovered(context, floor, segments)
    return _merged(context, segments, loss)


def _idle(context: Context) -> bool:
    """Whether the cache had no part in the call. Where a bill has no class of writes, only the rules can tell."""
    written = context.audited.call.usage.write_tokens
    if context.read or written:
        return False
    if context.outcome.style == "markers":
        return True
    return context.outcome.engaged != "yes" or (context.outcome.reports_writes and written == 0)


def _lost(segments: list[Segment]) -> int:
    return sum(one.finding.lost_tokens for one in segments)


def _cut_off(context: Context, loss: ContentLoss) -> bool:
    """Whether the change alone kept the newest entry from being read: then no shorter entry's fate matters."""
    before = loss.before
    if before.prompt is None or before.readable_at > context.audited.at or key_difference(context, before):
        return False
    return lifetime_of_previous(context, before)[0]


def _provider_side(context: Context, floor: int, segments: list[Segment]) -> int:
    predicted = context.outcome.least_tokens
    if predicted <= floor + context.slack:
        return floor
    finding, also = unexplained(context, predicted - floor)
    segments.append(Segment(finding, also, None if context.outcome.promised else last_user(context)))
    return predicted


def _entry(context: Context, floor: int, segments: list[Segment]) -> int:
    """Tokens up to the longest prefix at which an earlier call left an entry."""
    found = _longest_entry(context)
    if found is None:
        return floor
    boundary, call = found
    tokens = context.prompt.ends[boundary]
    if tokens <= floor + context.slack:
        return floor
    writer = context.history.calls[call]
    blockers = entry_blockers(context, boundary, writer)
    if not blockers or _never_shared(context, writer, boundary, blockers):
        return floor
    blockers[0].lost_tokens = min(tokens - floor, context.paid)
    segments.append(Segment(blockers[0], blockers[1:], writer))
    return tokens


def _longest_entry(context: Context) -> tuple[int, int] | None:
    """The entry to account for: of this scope and model, or a longer one that the same conversation left elsewhere."""
    call = context.audited.call
    shared = context.history.longest_written(context.prompt)
    own = context.history.longest_own(context.prompt, call.trace, call.agent)
    return own if own is not None and (shared is None or own[0] > shared[0]) else shared


def _never_shared(context: Context, writer: Audited, boundary: int, blockers: list[Finding]) -> bool:
    """Whether another agent or session owes nothing to the entry: it starts with a model, key and settings of its own.

    An entry of tools and system that ran out before it began made a cold start, not a miss.
    """
    if same_thread(context.audited, writer):
        return False
    if blockers[0].cause in ("model_changed", "scope_changed"):
        return True
    head = context.prompt.blocks[boundary].level < Level.MESSAGES
    if blockers[0].cause == "parameter_changed":
        return head
    return blockers[0].cause == "ttl_expired" and (head or context.audited.call.trace != writer.call.trace)


def _content(
    context: Context,
    loss: ContentLoss,
    floor: int,
    segments: list[Segment],
) -> None:
    lost = min(loss.kept - floor, context.paid - _lost(segments))
    finding = content_finding(context, loss, lost)
    also: list[Finding] = []
    living, sentence, ttl = lifetime_of_previous(context, loss.before)
    if not living and not same_thread(context.audited, loss.before) and loss.level < Level.MESSAGES:
        return  # another agent or session that began after the entry was gone: a cold start
    if not living:
        rule = context.rules.lifetime(ttl)
        expired = Finding("ttl_expired", "established", [sentence + ": it had run out as well"], rule=rule)
        # Idle time suffices by itself, so it comes first: undoing the change alone would have saved nothing.
        finding.lost_tokens, expired.lost_tokens = 0, lost
        also, finding = [finding], expired
    other = system_changed_too(context, loss)
    if other is not None:
        also.append(other)
    if loss.before.prompt is not None:
        also += [one for one in key_difference(context, loss.before) if one.cause == "parameter_changed"]
    segments.append(Segment(finding, also, loss.before))


def _uncovered(context: Context, floor: int, segments: list[Segment]) -> None:
    """Tokens that an earlier call sent in the same place but left no entry for."""
    if context.outcome.style not in ("markers", "message_ends"):
        return  # the client can place no boundary there
    found = context.history.longest_sent(context.prompt)
    if found is None:
        return
    block, call = found
    shared = min(context.prompt.ends[block], floor + context.paid - _lost(segments))
    if shared - floor < MATERIAL_TOKENS or context.prompt.ends[block] < context.rules.min_tokens:
        return  # too short to be cached by itself: no marker could have helped
    sender = context.history.calls[call]
    if sender.prompt is None or sender.outcome is None or key_difference(context, sender):
        return
    if _ends_in_head(context.prompt, block) or _ends_in_head(sender.prompt, block):
        return  # tools or system of its own: another role, not another turn
    if gap_of(context.audited, sender) >= _lifetime(context, sender):
        if segments and segments[-1].finding.cause == "ttl_expired":
            segments[-1].finding.lost_tokens += shared - floor
        return  # an entry there would have run out
    finding, also = _why_uncovered(context, sender, block)
    finding.lost_tokens = shared - floor
    finding.path = context.prompt.paths[block]
    segments.append(Segment(finding, also, first_of_group(context, sender)))


def _ends_in_head(prompt: Prompt, block: int) -> bool:
    """Whether tools or system go on behind `block`."""
    return block + 1 < len(prompt.blocks) and prompt.blocks[block + 1].level < Level.MESSAGES


def _lifetime(context: Context, sender: Audited) -> int:
    """Seconds that an entry written by `sender` would have lived: the longest lifetime it asked for."""
    marks = sender.prompt.marks if sender.prompt is not None else ()
    rules = context.rules
    return max((rules.ttl_s[mark.ttl] for mark in marks), default=rules.ttl_s[rules.default_ttl])


def _why_uncovered(context: Context, sender: Audited, block: int) -> tuple[Finding, list[Finding]]:
    path = context.prompt.paths[block]
    missing = Finding(
        "no_breakpoint",
        "established",
        [f"no breakpoint at the common endpoint {path}, up to which {name_of(sender)} sent the same content"],
        rule=context.rules.values.get("entries_after_request"),
        path=path,
    )
    if sender.readable_at > context.audited.at:
        sender = first_of_group(context, sender)
        evidence = (
            f"started {seconds(gap_of(context.audited, sender))} after {name_of(sender)}, whose response had not "
            "begun: an entry becomes readable only then"
        )
        rule = context.rules.values.get("readable_after")
        known = sender.call.first_token_at or sender.call.ended_at
        status: Status = "established" if known else "likely"
        return Finding("not_yet_readable", status, [evidence], rule=rule), [missing]
    outcome, prompt = sender.outcome, sender.prompt
    if outcome is None or prompt is None or not same_thread(context.audited, sender):
        return missing, []
    if outcome.last_index > block and _one_message(prompt, block + 1, outcome.last_index):
        tail = prompt.paths[block + 1]
        evidence = (
            f"{name_of(sender)} put its breakpoint behind {tail}, which does not stand there in this request, "
            "so the entry written there can never be read"
        )
        rule = context.rules.values.get("entries_after_request")
        return Finding("breakpoint_on_volatile", "established", [evidence], rule=rule, path=tail), []
    return missing, []


def _one_message(prompt: Prompt, start: int, end: int) -> bool:
    """Whether blocks `start` to `end` are of one message: a question or reminder, not turns that were taken back."""
    return prompt.paths[start].split("/")[:3] == prompt.paths[end].split("/")[:3]


def _merged(
    context: Context,
    segments: list[Segment],
    loss: ContentLoss | None,
) -> Diagnosis | None:
    """One diagnosis: the segment with most lost tokens leads, the others follow with their own share."""
    segments = [one for one in segments if one.finding.lost_tokens > 0]
    if not segments:
        return None
    segments.sort(key=lambda one: -one.finding.lost_tokens)
    lead, extra, reference = segments[0]
    also = list(extra)
    for finding, more, _ in segments[1:]:
        same = next((one for one in [lead, *also] if one.cause == finding.cause), None)
        if same is None:
            also += [finding, *more]
        else:
            same.lost_tokens += finding.lost_tokens
    holds = {finding.cause for finding in [lead, *also]}
    return Diagnosis(
        primary=lead,
        also=also,
        ruled_out=[one for one in _ruled_out(context, reference) if one.cause not in holds],
        first=loss.divergence if loss is not None else None,
        reference=reference.index if reference is not None else None,
    )


def _ruled_out(context: Context, reference: Audited | None) -> list[Finding]:
    """What the same evidence excludes, in the order in which a reader would suspect it."""
    if reference is None or reference.prompt is None or reference.outcome is None:
        return []
    out: list[Finding] = []
    gap = gap_of(context.audited, reference)
    shortest = min(context.rules.sure_s("5m"), context.rules.sure_s("1h"))
    if context.rules.evicts:
        out.append(_excluded("ttl_expired", "entries have no lifetime there: they are dropped when memory is needed"))
    elif gap < shortest:
        why = f"{seconds(gap)} since the start of {name_of(reference)}, no lifetime is shorter than {shortest} s"
        out.append(_excluded("ttl_expired", why))
    if _repeats(context.prompt, reference.prompt, reference.outcome.last_index):
        out.append(_excluded("history_rewritten", f"every block cached by {name_of(reference)} stands unchanged here"))
    if not changed(reference.prompt, context.prompt, context.rules):
        out.append(_excluded("parameter_changed", f"all recorded parameters equal those of {name_of(reference)}"))
    return out


def _excluded(cause: Cause, why: str) -> Finding:
    return Finding(cause, "ruled_out", [why])


def _repeats(prompt: Prompt, earlier: Prompt, last: int) -> bool:
    return 0 <= last < len(prompt.chain) and prompt.chain[last] == earlier.chain[last]


def _not_engaged(context: Context) -> Diagnosis:
    """A request that the cache had no part in: no breakpoint, or a prefix below the model's minimum."""
    rules, prompt, outcome = context.rules, context.prompt, context.outcome
    if outcome.engaged == "no_breakpoint":
        why, facts = ["no breakpoint in the request: nothing is looked up or written"], _repeated(context)
        if facts:
            why.append(f"{facts['repeated_tokens']:,} tokens repeat what {facts['repeated_of']} sent")
        rule = rules.values.get("entries_after_request")
        return Diagnosis(Finding("no_breakpoint", "established", why, rule=rule, facts=facts))
    marked = prompt.ends[outcome.breakpoints[-1].index]
    rule = rules.values.get("min_tokens")
    if outcome.engaged == "yes":
        return Diagnosis(_silent(context, marked))
    evidence = f"{marked:,} tokens up to the last breakpoint, below this model's minimum of {rules.min_tokens:,}; "
    evidence += "the provider then caches nothing and reports no error"
    status: Status = "established" if rules.min_tokens_known else "likely"
    below: dict[str, int | str] = {"tokens": marked, "minimum": rules.min_tokens}
    return Diagnosis(Finding("below_minimum", status, [evidence], rule=rule, facts=below))


def _repeated(context: Context) -> dict[str, int | str]:
    """How much of a request without breakpoints an earlier call had sent within a default lifetime, if it counts."""
    found = context.history.longest_sent(context.prompt)
    if found is None:
        return {}
    block, sender = found[0], context.history.calls[found[1]]
    rules, tokens = context.rules, context.prompt.ends[block]
    if tokens < rules.min_tokens or gap_of(context.audited, sender) >= rules.ttl_s[rules.default_ttl]:
        return {}
    if key_difference(context, sender):
        return {}
    return {"repeated_tokens": tokens, "repeated_of": name_of(sender)}


def _silent(context: Context, marked: int) -> Finding:
    """Breakpoints on a prefix that should suffice, and yet the provider reports neither a read nor a write."""
    rules, error = context.rules, context.prompt.error_at(context.outcome.breakpoints[-1].index)
    rule = rules.values.get("min_tokens")
    evidence = f"{marked:,} tokens up to the last breakpoint, yet neither read nor written; "
    if not rules.min_tokens_known:
        evidence += f"the minimum of model {context.prompt.model!r} is not known ({rules.min_tokens:,} assumed)"
        return Finding("below_minimum", "possible", [evidence], rule=rule)
    if marked - error < rules.min_tokens:
        evidence += f"the count is an estimate (within {error:,}) and may be below the minimum of {rules.min_tokens:,}"
        return Finding("below_minimum", "possible", [evidence], rule=rule)
    evidence += f"the minimum of {rules.min_tokens:,} is reached: nothing in the recorded request explains it"
    return Finding("unknown", "possible", [evidence], rule=rule)
