"""What must not matter: a copy of the trace under other keys beside it, the order of rows in the file."""

import json
from random import Random
from typing import Any

import pytest
from generate import random_trace

from auditor.audit import audit
from auditor.records import Audited
from localmodel.rules.load import load
from traces import io
from traces.schema import Call, JsonObject

Row = dict[str, Any]
RULES = load("anthropic")


def _said(rows: list[Row]) -> dict[str, tuple[Any, ...]]:
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies: dict[tuple[str, str], JsonObject | None] = {_name(call): call.request for call in calls}
    result = audit(calls, RULES, lambda audited: bodies[_name(audited.call)])
    return {"/".join(_name(one.call)): _answer(one) for one in result.calls}


def _name(call: Call) -> tuple[str, str]:
    return call.trace, call.id


def _answer(one: Audited) -> tuple[Any, ...]:
    found = one.diagnosis
    if found is None:
        return one.verdict, None
    return one.verdict, found.primary.cause, found.lost_tokens, found.primary.path, sorted(f.cause for f in found.also)


def _copy(rows: list[Row]) -> list[Row]:
    return [row | {"trace": f"copy-{row.get('trace')}", "key_fp": f"copy-{row.get('key_fp')}"} for row in rows]


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_under_other_keys_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    rows = random_trace(rng, rng.randrange(4, 22))
    alone, copied = _said(rows), _said(_copy(rows))
    together = _said([row for pair in zip(rows, _copy(rows), strict=True) for row in pair])
    assert together == alone | copied
    assert list(alone.values()) == list(copied.values())


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    rows = random_trace(rng, rng.randrange(4, 22))
    if len({row["started_at"] for row in rows}) < len(rows):
        rows = list({row["started_at"]: row for row in rows}.values())  # calls of one instant are told apart by order
    shuffled = rng.sample(rows, len(rows))
    assert _said(shuffled) == _said(rows)
