"""The cache's semantics: one request against the entries that earlier requests left.

`step` is pure. How a provider places its boundaries is data (`Rules.boundaries`), each way has its matcher: explicit
breakpoints (`markers.py`); boundaries and units that the provider places, and handles (`automatic.py`). Every number
they use is rule data, none stands in the code.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from localmodel.rules import automatic, markers
from localmodel.rules.markers import breakpoints as breakpoints
from localmodel.rules.markers import positions as positions
from localmodel.rules.plan import Bill, Lookup, Points, Updates
from localmodel.rules.plan import Plan as Plan
from localmodel.rules.plan import alive as alive
from localmodel.rules.plan import readable as readable
from localmodel.rules.plan import salts_of as salts_of
from localmodel.rules.types import Boundaries, CacheState, Engaged, Outcome, Rules
from traces.schema import Prompt


class Matcher(NamedTuple):
    """One way to place boundaries.

    points    boundaries at which a request writes, before the minimum is asked
    find      block at which its hit ends, -1 for none
    updates   entries that it leaves new or refreshed
    bill      its tokens by class
    """

    points: Callable[[Prompt, Rules], Points]
    find: Callable[[Lookup, Plan, datetime], int]
    updates: Callable[[Lookup, Plan, int, datetime, datetime], Updates]
    bill: Callable[[Plan, int], Bill]


MATCHERS: Mapping[Boundaries, Matcher] = {
    "markers": Matcher(markers.breakpoints, markers.find_hit, markers.updates, markers.bill),
    "every_block": Matcher(automatic.all_blocks, automatic.find_any, automatic.update_all, automatic.bill),
    "message_ends": Matcher(automatic.message_ends, automatic.find_listed, markers.updates, markers.bill),
    "units": Matcher(automatic.prompt_end, automatic.find_unit, automatic.update_units, automatic.bill),
    "handles": Matcher(automatic.handle, automatic.find_handle, automatic.update_nothing, automatic.bill),
}


class DatedRules(Protocol):
    """What `step` asks of a ruleset: the rules in force for a model on a platform at a moment."""

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """Rules in force; `None` means the latest."""
        ...


def step(
    state: CacheState,
    prompt: Prompt,
    ruleset: DatedRules,
    *,
    at: datetime,
    first_token_at: datetime | None,
) -> tuple[CacheState, Outcome]:
    """Send `prompt` at `at` and return the entries afterwards and the predicted usage.

    `prompt.ends` must be filled. `first_token_at` is when the response began, from when on the entries written here
    can be read; `None` means the rule's fallback after `at`. Calls must come in order of `at`.
    """
    plan = plan_of(prompt, ruleset.at(prompt.model, prompt.platform, at))
    entries = state.entries
    hit, updates = send(entries.get, plan, at, first_token_at)
    for key, entry in updates:
        entries = entries.insert(key, entry)
    read, write_5m, write_1h, uncached = bill(plan, hit)
    eligible = plan.eligible
    engaged: Engaged = "yes" if eligible else ("below_minimum" if plan.points else "no_breakpoint")
    outcome = Outcome(
        read_tokens=read,
        write_5m_tokens=write_5m,
        write_1h_tokens=write_1h,
        uncached_tokens=uncached,
        read_index=hit,
        last_index=max(hit, eligible[-1].index if eligible else -1),
        breakpoints=plan.points,
        salts=plan.salts,
        engaged=engaged,
        rejected=plan.rejected,
        rules=plan.rules,
        least_tokens=automatic.least(plan, hit) if plan.style == "units" else read,
        style=plan.style,
    )
    return CacheState(entries), outcome


def plan_of(prompt: Prompt, rules: Rules) -> Plan:
    """The part of a step that depends on the request alone."""
    style = _style(prompt, rules)
    points, rejected = MATCHERS[style].points(prompt, rules)
    eligible = tuple(point for point in points if prompt.ends[point.index] >= rules.min_tokens)
    salts = salts_of(prompt.scope, prompt.model, prompt.params, rules)
    return Plan(prompt, rules, salts, tuple(points), eligible, rejected, style)


def _style(prompt: Prompt, rules: Rules) -> Boundaries:
    """Where entries end for this request: as the ruleset says, or as it says of requests without a marker."""
    if rules.boundaries == "handles" and not automatic.has_handle(prompt):
        return rules.unmarked or "every_block"
    marked = prompt.marks or markers.asks_automatic(prompt, rules)
    if rules.boundaries == "markers" and rules.unmarked is not None and not marked:
        return rules.unmarked
    return rules.boundaries


def send(lookup: Lookup, plan: Plan, at: datetime, first_token_at: datetime | None) -> tuple[int, Updates]:
    """Look up and write: (block at which the hit ends or -1, entries that the request leaves new or refreshed)."""
    matcher = MATCHERS[plan.style]
    hit = matcher.find(lookup, plan, at)
    readable_at = first_token_at or at + timedelta(seconds=plan.rules.readable_fallback_s)
    return hit, matcher.updates(lookup, plan, hit, at, readable_at)


def bill(plan: Plan, hit: int) -> Bill:
    """Tokens by class: (read, written for the shorter lifetime, written for the longer one, uncached)."""
    return MATCHERS[plan.style].bill(plan, hit)
