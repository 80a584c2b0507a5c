"""Why an entry whose content a prompt repeats was not read: key, lifetime, timing, or reach of the breakpoints."""

from auditor.context import Context, first_of_group, gap_of, name_of, seconds
from auditor.history import extends
from auditor.lifetimes import tier_changed
from auditor.records import Audited, Cause, Finding, Status
from auditor.replay import later
from localmodel.rules.step import alive, positions
from localmodel.rules.types import REFRESH_AT, ROUTING, Entry, Rules
from traces.schema import Level, Prompt
from traces.wire.dialects import BY_NAME

PARTITIONS = ("prompt_cache_key", "user_id")


def entry_blockers(context: Context, boundary: int, writer: Audited) -> list[Finding]:
    """Every reason that keeps the entry at block `boundary`, last written or read by `writer`, from being read.

    Empty where the rules say that it should have been read.
    """
    prompt, outcome = context.prompt, context.outcome
    level = prompt.blocks[boundary].level
    key = (prompt.chain[boundary], outcome.salts[level])
    entry = context.state.entries.get(key)
    findings: list[Finding] = []
    if entry is None:
        findings += key_difference(context, writer)
        if writer.outcome is not None:
            other = (prompt.chain[boundary], writer.outcome.salts[level])
            entry = context.state.entries.get(other)
            key = other
    if entry is not None:
        user_index = context.history.last_use(key)
        user = writer if user_index is None else context.history.calls[user_index]
        findings = time_blockers(context, entry, user) + findings
    return findings or _UNREACHED.get(outcome.style, _reached)(context, boundary)


def time_blockers(context: Context, entry: Entry, user: Audited) -> list[Finding]:
    """An entry that had expired, or whose response had not begun."""
    at, values = context.audited.at, context.rules.values
    if entry.readable_at > at:
        user = first_of_group(context, user)
        lag = (entry.readable_at - at).total_seconds()
        evidence = (
            f"started {seconds(gap_of(context.audited, user))} after {name_of(user)}, "
            f"{seconds(lag)} before its response made the entry readable"
        )
        status: Status = "established" if user.call.first_token_at or user.call.ended_at else "likely"
        return [Finding("not_yet_readable", status, [evidence], rule=values.get("readable_after"))]
    if not alive(entry, at):
        return [_expired(context, entry, user), *_shortened(context, entry, user)]
    return []


def _expired(context: Context, entry: Entry, user: Audited) -> Finding:
    gap = gap_of(context.audited, user)
    over = gap - entry.ttl_s
    evidence = [
        f"{seconds(gap)} from the start of {name_of(user)}, which last used the entry; its lifetime is "
        f"{entry.ttl_s} s from a request's start, so it had run out {seconds(over)} before"
    ]
    quiet = None if user.call.ended_at is None else (context.audited.at - user.call.ended_at).total_seconds()
    if quiet is not None and quiet < entry.ttl_s:
        evidence.append(f"only {seconds(max(0.0, quiet))} after that response ended: generation time counts")
    rule = context.rules.lifetime(entry.ttl)
    facts: dict[str, int | str] = {
        "ttl_s": entry.ttl_s,
        "gap_start_to_start_s": round(gap),
        "expired_at": _clock(entry, 1.0),
        "keepalive_at": _clock(entry, REFRESH_AT),
    }
    return Finding("ttl_expired", "established", evidence, rule=rule, facts=facts)


def _shortened(context: Context, entry: Entry, user: Audited) -> list[Finding]:
    """Where the conversation's lifetime fell from an hour to five minutes, and that is why the entry ran out."""
    if entry.ttl != "5m" or user.prompt is None or "ttl_seconds_5m" not in context.rules.values:
        return []
    prompt, thread = user.prompt, context.history.thread(user.call.trace, user.call.agent)
    earlier = (c for c in thread if c.index < user.index and c.prompt is not None and extends(prompt, c.prompt))
    found = tier_changed(earlier, user, gap_of(context.audited, user), context.rules.ttl_s["1h"])
    return [] if found is None else [found]


def _clock(entry: Entry, share: float) -> str:
    """The moment at which a share of the entry's lifetime had passed."""
    return later(entry.used_at, share * entry.ttl_s).isoformat().replace("+00:00", "Z")


def key_difference(context: Context, writer: Audited) -> list[Finding]:
    """Scope, model or parameters that put this call's prefix under another key than `writer`'s."""
    mine, theirs = context.prompt, writer.prompt
    if theirs is None:
        return []
    values = context.rules.values
    if mine.scope != theirs.scope:
        evidence = f"another provider, host or key than {name_of(writer)}: its entries may not be shared"
        rule = values.get("isolation_scope")
        return [Finding("scope_changed", "likely", [evidence], rule=rule, path="/key")]
    if mine.model != theirs.model:
        evidence = f"model {theirs.model} in {name_of(writer)}, {mine.model} here; entries belong to one model"
        rule = values.get("invalidates_model")
        return [Finding("model_changed", "established", [evidence], rule=rule, parameter="model", path="/model")]
    return [_parameter(context, writer, *change) for change in changed(theirs, mine, context.rules)]


def changed(before: Prompt, after: Prompt, rules: Rules) -> list[tuple[str, str, str]]:
    """Parameters that differ and enter the key: (name, value before, value after), absent as "default"."""
    old, new = dict(before.params), dict(after.params)
    names = sorted(old.keys() | new.keys())
    return [
        (name, old.get(name, "default"), new.get(name, "default"))
        for name in names
        if rules.invalidation.get(name, ROUTING) < ROUTING and old.get(name) != new.get(name)
    ]


def _parameter(context: Context, writer: Audited, name: str, before: str, after: str) -> Finding:
    rule = context.rules.values.get(f"invalidates_{name}")
    level = Level(context.rules.invalidation[name]).name.lower()
    evidence = [
        f"{name} {_brief(before)} in {name_of(writer)}, {_brief(after)} here; entries from the {level} level on "
        "are kept apart by it"
    ]
    status: Status = "established" if rule is not None and rule.status in ("documented", "measured") else "likely"
    path = BY_NAME[context.prompt.dialect].parameter_paths.get(name, "/" + name)
    # These divide the cache on purpose: another value is another cache, not another prompt.
    cause: Cause = "scope_changed" if name in PARTITIONS else "parameter_changed"
    return Finding(cause, status, evidence, rule=rule, parameter=name, path=path)


def routing_difference(context: Context, writer: Audited) -> list[Finding]:
    """Parameters that are no part of the key, but of which another value may reach another machine."""
    if writer.prompt is None:
        return []
    old, new = dict(writer.prompt.params), dict(context.prompt.params)
    found = []
    for name in sorted(old.keys() | new.keys()):
        if context.rules.invalidation.get(name) != ROUTING or old.get(name) == new.get(name):
            continue
        before, after = _brief(old.get(name, "none")), _brief(new.get(name, "none"))
        evidence = (
            f"{name} {before} in {name_of(writer)}, {after} here: the request may reach a machine without the entry"
        )
        rule = context.rules.values.get(f"invalidates_{name}")
        path = BY_NAME[context.prompt.dialect].parameter_paths.get(name, "/" + name)
        found.append(Finding("scope_changed", "likely", [evidence], rule=rule, parameter=name, path=path))
    return found


def _brief(value: str) -> str:
    return value if len(value) <= 60 else value[:59] + "…"


def reach_blockers(context: Context, boundary: int) -> list[Finding]:
    """A live entry that no breakpoint of the request looks at."""
    prompt, outcome, rules = context.prompt, context.outcome, context.rules
    later = [point.index for point in outcome.breakpoints if point.index >= boundary]
    if not later:
        evidence = f"no breakpoint at or behind {prompt.paths[boundary]}, where the entry ends"
        return [Finding("no_breakpoint", "established", [evidence], rule=rules.values.get("prefix_order"))]
    distance = min(positions(prompt, index, boundary, rules) for index in later)
    if distance <= rules.lookback:
        return []
    evidence = (
        f"the entry at {prompt.paths[boundary]} is position {distance} from the nearest breakpoint behind it, "
        f"which looks at {rules.lookback} (itself being the first)"
    )
    rule = rules.values.get("lookback_positions")
    facts: dict[str, int | str] = {"distance": distance, "limit": rules.lookback}
    status: Status = "established" if rule is None or rule.status == "documented" else "likely"
    return [Finding("beyond_lookback", status, [evidence], rule=rule, path=prompt.paths[boundary], facts=facts)]


def _not_looked_at(context: Context, boundary: int) -> list[Finding]:
    """A live entry at a message end that is not among the boundaries a request looks at."""
    rule = context.rules.values.get("lookup_message_ends")
    evidence = (
        f"the entry at {context.prompt.paths[boundary]} is not among the boundaries that this request looks at: its "
        f"latest end, {context.rules.lookup_ends} earlier ones and its explicit breakpoints"
    )
    return [Finding("beyond_lookback", "possible", [evidence], rule=rule, path=context.prompt.paths[boundary])]


def _reached(context: Context, boundary: int) -> list[Finding]:
    """Every beginning of a prompt is looked at."""
    return []


_UNREACHED = {"markers": reach_blockers, "message_ends": _not_looked_at}
