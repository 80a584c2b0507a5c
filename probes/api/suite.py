"""The rule probes by name, and running a chosen set of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from probes.api import (
    breakpoints,
    clock,
    granularity,
    invalidation,
    isolation,
    lifetime,
    lookback,
    minimum,
    prewarm,
    readable,
    units,
)
from probes.api.claim import Claim, open_claim
from probes.api.lab import Lab, Plan
from probes.api.settled import settled
from probes.api.target import Target
from probes.errors import BadTarget, BudgetReached, Incomplete, NoCaching, Unreachable


class Probe(NamedTuple):
    """A rule probe: how to run it, what it will take, the APIs it speaks, and whether it is run when none is named."""

    name: str
    run: Callable[[Lab], list[Claim]]
    plan: Callable[[Lab], Plan]
    apis: tuple[str, ...]
    about: str
    usual: bool = True


_MESSAGES, _OPENAI = ("messages",), ("chat", "responses")

PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe("minimum", settled(minimum.run), minimum.plan, _MESSAGES, "shortest prefix that is cached"),
        Probe("lookback", lookback.run, lookback.plan, _MESSAGES, "positions looked back from a breakpoint"),
        Probe("breakpoints", breakpoints.run, breakpoints.plan, _MESSAGES, "markers allowed in one request"),
        Probe("invalidation", invalidation.run, invalidation.plan, _MESSAGES, "what each change spares, row by row"),
        Probe("readable", settled(readable.run), readable.plan, _MESSAGES, "from when on an entry can be read"),
        Probe("isolation", settled(isolation.run), isolation.plan, _MESSAGES,
              "whether a second key reads the first's entries"),
        Probe("prewarm", settled(prewarm.run), prewarm.plan, _MESSAGES, "whether max_tokens 0 writes the cache"),
        Probe("lifetime", lifetime.run, lifetime.plan, _MESSAGES, "the default lifetime, as an interval"),
        Probe("refresh", settled(clock.run_refresh), clock.plan_refresh, _MESSAGES,
              "whether a read restarts the lifetime"),
        Probe("clock", settled(clock.run_clock), clock.plan_clock, _MESSAGES, "whether it counts from start or end"),
        Probe("lifetime_1h", partial(lifetime.run, ttl="1h"), partial(lifetime.plan, ttl="1h"), _MESSAGES,
              "the longer lifetime; takes over an hour", usual=False),
        Probe("granularity", granularity.run, granularity.plan, _OPENAI, "steps and boundaries of OpenAI's reads"),
        Probe("units", units.run, units.plan, ("chat",), "DeepSeek's persisted units", usual=False),
    )
}  # fmt: skip


def chosen(target: Target, names: Sequence[str]) -> list[Probe]:
    """The probes named, or the usual ones for a target. Raises `BadTarget`."""
    if not names:
        if target.provider == "deepseek":
            return [PROBES["units"]]
        return [probe for probe in PROBES.values() if probe.usual and target.api in probe.apis]
    for name in names:
        if name not in PROBES:
            raise BadTarget(f"--only {name}: no such probe; known: {', '.join(PROBES)}")
        if target.api not in PROBES[name].apis:
            raise BadTarget(f"--only {name}: it speaks {' or '.join(PROBES[name].apis)}, this target {target.api}")
    return [PROBES[name] for name in dict.fromkeys(names)]


def total(plans: Iterable[Plan]) -> Plan:
    """All plans together."""
    rows = list(plans)
    return Plan(
        sum(row.requests for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        sum(row.wait_s for row in rows),
    )


def run(lab: Lab, probes: Sequence[Probe]) -> Iterator[Claim]:
    """Run probes one after the other; each claim as it is found.

    A probe that breaks off leaves an inconclusive claim. What no other request could get past (key, model, limits,
    server, budget, no caching) does so for the rest, and is raised at the end.
    """
    ended: BudgetReached | Unreachable | NoCaching | None = None
    for probe in probes:
        if ended is not None:
            yield _broken(lab, probe, f"not run: {ended}", len(lab.exchanges))
            continue
        before = len(lab.exchanges)
        lab.watch.note(f"{probe.name}: {probe.about}")
        try:
            yield from probe.run(lab)
        except (BudgetReached, Unreachable, NoCaching) as error:
            ended = error
            yield _broken(lab, probe, str(error), before)
        except Incomplete as error:
            yield _broken(lab, probe, str(error), before)
    if ended is not None:
        raise ended


def _broken(lab: Lab, probe: Probe, why: str, before: int) -> Claim:
    requests = tuple(exchange.seq for exchange in lab.exchanges[before:])
    return open_claim(probe.name, None, f"{probe.about[:1].upper()}{probe.about[1:]}.", why, requests)
