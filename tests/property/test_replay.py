"""Replay and what-if against the naive oracle: random traces, healthy traces, and the 14 rows rewritten by hand."""

import copy
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import generate
import naive
import pytest
import talk

from auditor.audit import audit
from auditor.money import Money
from auditor.policies import POLICIES
from auditor.pricing import PriceList
from auditor.records import Audit
from auditor.savings import WhatIf
from auditor.whatif import Policy, Trial, run, table
from localmodel.rules.load import Ruleset, load
from traces import io

Row = dict[str, Any]

FOURTEEN = Path(__file__).parents[2] / "traces/recorded/fourteen/calls.jsonl"
CHUNKS = 4  # so that two workers share the seeds
BUDGET = 10**9
# These move, keep or restore blocks, so they may change how many tokens a call sends; all others may not.
CONTENT_POLICIES = ("stable_tools", "move_volatile_text", "undo_history_rewrite")


@cache
def rules() -> Ruleset:
    return load("anthropic")


def audited(rows: Sequence[Row]) -> Audit:
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies = {call.id: call.request for call in calls}
    return audit(calls, rules(), lambda one: bodies[one.call.id])


def trial_of(result: Audit) -> Trial:
    """Without prices: equivalents by the ruleset's rates."""
    return Trial(result, Money(result.calls, PriceList(lambda provider, model: (), {})))


def random_rows(seed: int) -> list[Row]:
    rng = Random(seed)
    return generate.random_trace(rng, rng.randrange(2, 25))


def in_order(rows: Sequence[Row]) -> list[int]:
    return sorted(range(len(rows)), key=lambda n: (naive.when(rows[n]["started_at"]), n))


# Replay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_traces_replay_as_the_oracle_says(chunk: int) -> None:
    for seed in range(chunk, 320, CHUNKS):
        rows = random_rows(seed)
        want, result = naive.replay(rows, min_tokens=talk.minimum), audited(rows)
        for call, number in zip(result.calls, in_order(rows), strict=True):
            assert call.call.id == rows[number]["id"]
            if call.outcome is None:
                assert call.call.failed, (seed, number)
                continue
            one = call.outcome
            made = {"read": one.read_tokens, "write_5m": one.write_5m_tokens, "write_1h": one.write_1h_tokens}
            assert made | {"uncached": one.uncached_tokens} == want[number], (seed, number)
            assert call.agrees is True, (seed, number)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_found_in_a_healthy_trace(chunk: int) -> None:
    """Calls that never engaged are said to be so; everything else is an accusation, and all of them are listed."""
    accused = []
    for seed in range(chunk, 1000, CHUNKS):
        rng = Random(seed)
        for call in audited(generate.healthy_trace(rng, rng.randrange(2, 25))).calls:
            if call.diagnosis is None:
                continue
            found = call.diagnosis.primary
            harmless = call.verdict == "not_engaged" and found.cause in ("below_minimum", "no_breakpoint")
            if not harmless or call.diagnosis.lost_tokens:
                accused.append(f"seed {seed}, call {call.call.seq}: {call.verdict}, {found.cause}: {found.evidence[0]}")
    assert not accused, "\n".join(accused)


# What-if -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_a_policy_may_change(chunk: int) -> None:
    for seed in range(chunk, 80, CHUNKS):
        trial = trial_of(audited(random_rows(seed)))
        total = trial.money.total
        for policy in POLICIES:
            row = run(trial, [policy], policy.name)
            added = sum(bill.input_tokens for bill in row.added)
            if policy.name not in CONTENT_POLICIES:
                assert row.bill.input_tokens == total.input_tokens + added, (seed, policy.name)
            assert not added or policy.name == "keep_alive", (seed, policy.name)
            assert row.bill.calls == total.calls + len(row.added)
            assert row.saving_equivalents == total.equivalents - row.bill.equivalents
            for bill in [*row.by_call.values(), *row.added]:
                parts = (bill.read_tokens, bill.write_tokens, bill.uncached_tokens)
                assert min(parts) >= 0 and sum(parts) == bill.input_tokens, (seed, policy.name, bill)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_an_hour_never_reads_less(chunk: int) -> None:
    hour = named("one_hour_ttl")
    for seed in range(chunk, 200, CHUNKS):
        trial = trial_of(audited(random_rows(seed)))
        row = run(trial, [hour], hour.name)
        assert row.bill.read_tokens >= trial.money.total.read_tokens, seed
        for index, bill in row.by_call.items():
            assert bill.read_tokens >= (trial.audit.calls[index].call.usage.read_tokens or 0), (seed, index)


def test_no_policy_saves_nothing() -> None:
    for seed in range(40):
        trial = trial_of(audited(random_rows(seed)))
        row = run(trial, [], "none")
        assert row.saving_equivalents == 0 and row.bill == trial.money.total
        assert not row.by_call and not row.added


def test_all_and_cheapest_rows_are_never_worse_than_their_parts() -> None:
    for seed in range(20):
        rows = {row.policy: row for row in table(trial_of(audited(random_rows(seed))), POLICIES, budget=BUDGET)}
        assert list(rows)[-1] == "all"
        if "cheapest" in rows:
            assert rows["cheapest"].saving_equivalents == max(row.saving_equivalents for row in rows.values())


def named(name: str) -> Policy:
    return next(policy for policy in POLICIES if policy.name == name)


# The 14 rows ---------------------------------------------------------------------------------------------------------


@cache
def fourteen() -> tuple[Row, ...]:
    return tuple(json.loads(line) for line in FOURTEEN.read_bytes().splitlines())


def billed(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """(read, written) of each row by the oracle."""
    seen = naive.replay(list(rows), min_tokens=1024)
    return [(one["read"], one["write_5m"] + one["write_1h"]) for one in seen]


def test_the_oracle_reproduces_the_fourteen_rows() -> None:
    for row, (read, written) in zip(fourteen(), billed(fourteen()), strict=True):
        usage = row["response"]["usage"]
        assert (read, written) == (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"])


def with_late_tool(rows: list[Row]) -> None:
    """The tool that row 5 inserts stays out of the tools; its definition is appended behind row 4's messages."""
    known = [tool["name"] for tool in rows[0]["request"]["tools"]]
    place = len(rows[3]["request"]["messages"]) - 1
    for row in rows[4:]:
        request, counts = row["request"], row["tokens"]
        late = next(n for n, tool in enumerate(request["tools"]) if tool["name"] not in known)
        tool, size = request["tools"].pop(late), counts[f"/tools/{late}"]
        for n in range(late, len(request["tools"])):
            counts[f"/tools/{n}"] = counts[f"/tools/{n + 1}"]
        del counts[f"/tools/{len(request['tools'])}"]
        content = request["messages"][place]["content"]
        counts[f"/messages/{place}/content/{len(content)}"] = size
        content.append({"type": "text", "text": f"Tool {json.dumps(tool)}"})


def marked(row: Row, message: int, part: int = -1) -> None:
    row["request"]["messages"][message]["content"][part]["cache_control"] = {"type": "ephemeral"}


def last_common_part(one: Row, two: Row) -> tuple[int, int]:
    """Message and part up to which two histories are the same."""
    parts = [
        [(m, n, naive.without_markers(part)) for m, each in enumerate(row["request"]["messages"])
         for n, part in enumerate(each["content"])]
        for row in (one, two)
    ]  # fmt: skip
    last = max(n for n in range(len(parts[0])) if parts[0][: n + 1] == parts[1][: n + 1])
    return parts[0][last][:2]


def rewritten_by_hand() -> list[Row]:
    """All fixes of the 14 rows, made on the bodies themselves: nothing of the product is used."""
    rows = copy.deepcopy(list(fourteen()))
    with_late_tool(rows)
    for row in rows:
        row["request"]["tool_choice"] = {"type": "auto"}
    marked(rows[10], len(rows[9]["request"]["messages"]) - 1)
    shared = last_common_part(rows[11], rows[12])
    for row in rows[11:]:
        marked(row, *shared)
    for row in rows[12:]:
        row["started_at"] = rows[11]["ended_at"]
    ping = copy.deepcopy(rows[5]) | {"id": "ping", "started_at": "2026-03-02T09:06:50Z", "ended_at": None}
    return [*rows[:6], ping, *rows[6:]]


def test_the_row_all_is_what_the_oracle_says_of_the_rows_rewritten_by_hand() -> None:
    result = audited(fourteen())
    row = table(trial_of(result), POLICIES, budget=BUDGET)[-1]
    want = billed(rewritten_by_hand())
    (ping,) = row.added
    made = [
        (bill.read_tokens, bill.write_tokens)
        for bill in (row.by_call.get(n) or trial_of(result).money.recorded(result.calls[n]) for n in range(14))
    ]
    assert [*made[:6], (ping.read_tokens, ping.write_tokens), *made[6:]] == want
    assert (row.bill.calls, row.bill.read_tokens, row.bill.write_tokens) == (
        len(want),
        sum(read for read, _ in want),
        sum(written for _, written in want),
    )


def subsets(policies: Sequence[Policy]) -> Iterable[tuple[Policy, ...]]:
    return (some for size in range(len(policies) + 1) for some in combinations(policies, size))


def test_the_cheapest_row_is_the_best_of_all_subsets() -> None:
    trial = trial_of(audited(fourteen()))
    rows = {row.policy: row for row in table(trial, POLICIES, budget=BUDGET)}
    effective = [policy for policy in POLICIES if not policy.remedy or trial.diagnosed(policy)]
    assert {"merge_blocks", "one_hour_ttl"} <= {policy.name for policy in effective}
    best: WhatIf = max(
        (run(trial, some, "best") for some in subsets(effective)), key=lambda row: row.saving_equivalents
    )
    cheapest = rows["cheapest"]
    assert cheapest.saving_equivalents == best.saving_equivalents
    assert cheapest.saving_equivalents == Decimal("223832.5")
