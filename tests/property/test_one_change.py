"""Append-only conversations in which one thing changes once: that thing is the cause, at that call and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from answers import accused
from script import assistant, call, finished, marked, rounds, tail_marked, text, tool, user

Json = dict[str, Any]
SEEDS = 25


@dataclass
class Client:
    """What the next request will send, and how long after the last one."""

    rng: Random
    tools: list[Json]
    system: list[Json]
    messages: list[Json]
    gap_s: int = 0
    params: Json = field(default_factory=dict)
    row: Json = field(default_factory=dict)


def client(rng: Random) -> Client:
    tools = [tool(f"tool_{n}", rng.randint(300, 2000), f"Does thing {n} well.") for n in range(rng.randint(2, 6))]
    rules = [text(f"Rules of this house, part {n} of two.", rng.randint(500, 3000)) for n in (1, 2)]
    task = [user(text("Please do this task for me now.", rng.randint(200, 3000)))]
    return Client(rng, tools, [rules[0], marked(rules[1])], task)


def insert_tool(one: Client) -> None:
    one.tools = [*one.tools[:1], tool("new", 700), *one.tools[1:]]


def remove_tool(one: Client) -> None:
    one.tools = one.tools[1:]


def reorder_tools(one: Client) -> None:
    one.tools = [*one.tools[1:], one.tools[0]]


def describe_tool(one: Client) -> None:
    one.tools = [one.tools[0], {**one.tools[1], "description": "Does thing 1 very well."}, *one.tools[2:]]


def edit_system(one: Client) -> None:
    one.system = [{**one.system[0], "text": "Rules of this house, part 1 of 2026-10-05."}, *one.system[1:]]


def edit_task(one: Client) -> None:
    one.messages = [
        user({**one.messages[0]["content"][0], "text": "Please do this task for me soon."}),
        *one.messages[1:],
    ]


def drop_words(one: Client) -> None:
    one.messages = [one.messages[0], assistant(*one.messages[1]["content"][1:]), *one.messages[2:]]


def force_tool(one: Client) -> None:
    one.params = {"tool_choice": {"type": "any"}}


def switch_model(one: Client) -> None:
    one.params = {"model": "claude-opus-5"}


def switch_key(one: Client) -> None:
    one.row = {"key_fp": "key-2"}


def idle(one: Client) -> None:
    one.gap_s = one.rng.randint(300, 900)


def nothing(one: Client) -> None:
    pass


CHANGES: list[tuple[Callable[[Client], None], str | None]] = [
    (insert_tool, "tools_changed"),
    (remove_tool, "tools_changed"),
    (reorder_tools, "tools_changed"),
    (describe_tool, "tools_changed"),
    (edit_system, "system_changed"),
    (edit_task, "history_rewritten"),
    (drop_words, "history_rewritten"),
    (force_tool, "parameter_changed"),
    (switch_model, "model_changed"),
    (switch_key, "scope_changed"),
    (idle, "ttl_expired"),
    (nothing, None),
]


@pytest.mark.parametrize(("change", "cause"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_the_change_is_the_cause(change: Callable[[Client], None], cause: str | None) -> None:
    for seed in range(SEEDS):
        rng = Random(seed)
        one, rows, now = client(rng), [], 0
        calls = rng.randint(3, 6)
        changed = rng.randint(2, calls - 1)  # the third call or a later one, so that there is a turn to rewrite
        for number in range(calls):
            if number:
                one.messages = [*one.messages, *rounds(10 * number, rng.randint(1, 4), rng.randint(200, 3000))]
            one.gap_s = rng.randint(10, 250)
            if number == changed:
                change(one)
            now += one.gap_s
            body = {"tools": one.tools, "system": one.system, "messages": tail_marked(one.messages)}
            rows.append(call(now, body | one.params, **one.row))
        expected = {} if cause is None else {changed + 1: cause}
        assert accused(finished(rows)) == expected, f"seed {seed}"
