"""What a provider leaves out of a request before its cache sees it: the thinking of earlier turns, on older models."""

from dataclasses import replace

from localmodel.rules.types import Rules
from traces.canonical import digest
from traces.schema import Mark, Prompt
from traces.tokens import cumulated

THINKING = ("thinking", "redacted_thinking")


def rendered(prompt: Prompt, rules: Rules) -> Prompt:
    """`prompt` as the cache sees it: itself, or without the thinking blocks that the model's API drops.

    A turn begins with a user message that holds more than tool results; thinking in front of the last such block is
    dropped where the rule `strips_thinking` says so (source: platform documentation, "Extended thinking"). The blocks
    behind it get a new identity by that. Pure; counts of the kept blocks stay as recorded.
    """
    dropped = dropped_thinking(prompt) if rules.strips_thinking else frozenset()
    return _without(prompt, dropped) if dropped else prompt


def dropped_thinking(prompt: Prompt) -> frozenset[int]:
    """Indexes of the thinking blocks of turns before the last."""
    found = [index for index, block in enumerate(prompt.blocks) if block.kind in THINKING]
    if not found:
        return frozenset()
    asked = (index for index, block in enumerate(prompt.blocks) if block.role == "user" and block.kind != "tool_result")
    last = max(asked, default=-1)
    return frozenset(index for index in found if index < last)


def _without(prompt: Prompt, dropped: frozenset[int]) -> Prompt:
    kept = [index for index in range(len(prompt.blocks)) if index not in dropped]
    place = {index: position for position, index in enumerate(kept)}
    first = min(dropped)
    chain = list(prompt.chain[:first])
    for index in kept[first:]:
        chain.append(digest((chain[-1] if chain else bytes(16)) + prompt.blocks[index].wire))
    return replace(
        prompt,
        blocks=tuple(prompt.blocks[index] for index in kept),
        paths=tuple(prompt.paths[index] for index in kept),
        chain=tuple(chain),
        marks=tuple(Mark(place[mark.index], mark.ttl) for mark in prompt.marks if mark.index in place),
        ends=cumulated(prompt.tokens_of(index) for index in kept) if prompt.ends else (),
    )
