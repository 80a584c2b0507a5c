"""Thinking of earlier turns leaves the prompt on models whose API drops it, and only there."""

import json

from script import assistant, call, finished, result, tail_marked, text, thinking, use, user

from localmodel.rules.load import load
from localmodel.rules.render import dropped_thinking, rendered
from traces import io
from traces.canonical import Interner, canonical
from traces.schema import Prompt

TURN = [
    user(text("Do it.", 500)),
    assistant(thinking("First", 400), use("toolu_1")),
    user(result("toolu_1", "Output.", 1000)),
    assistant(thinking("Second", 300), text("Done.", 50)),
]
NEXT = [user(text("More.", 60)), assistant(thinking("Third", 200), use("toolu_2")), user(result("toolu_2", "Out.", 80))]


def prompt_of(*messages: dict[str, object]) -> Prompt:
    (row,) = finished([call(0, {"messages": tail_marked(list(messages))})])
    prompt = canonical(io.parse(json.dumps(row).encode()), Interner(len))
    assert prompt is not None
    return prompt


def test_thinking_stays_within_a_turn() -> None:
    prompt = prompt_of(*TURN[:3])
    rules = load("anthropic").at("claude-sonnet-4-5", "claude_api", None)
    assert rendered(prompt, rules) is prompt, "tool results do not begin a turn"


def test_thinking_of_earlier_turns_goes() -> None:
    prompt = prompt_of(*TURN, *NEXT)
    found = rendered(prompt, load("anthropic").at("claude-sonnet-4-5", "claude_api", None))
    assert dropped_thinking(prompt) == {1, 4}
    assert [block.kind for block in found.blocks].count("thinking") == 1, "that of the turn under way"
    assert found.total == prompt.total - 700
    assert found.paths[1] == "/messages/1/content/1" and found.paths[-1] == prompt.paths[-1]
    assert [found.paths[mark.index] for mark in found.marks] == [prompt.paths[mark.index] for mark in prompt.marks]
    without = [{**one, "content": [b for b in one["content"] if b["type"] != "thinking"]} for one in TURN]
    assert found.chain == prompt_of(*without, *NEXT).chain, "the same as if the client had left it out"


def test_models_that_keep_all_thinking() -> None:
    prompt = prompt_of(*TURN, *NEXT)
    assert rendered(prompt, load("anthropic").at("claude-opus-4-8", "claude_api", None)) is prompt
