"""Cheapest breakpoint placement in hindsight: mark only what a later request reads, and where this one can read.

For each request the useful boundaries are the ends of what it shares with an earlier request (to read there) and with
later ones (to write there). A tail that nobody reads again is not marked: it is cheaper as plain input.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from auditor.replay import Sent
from traces.schema import Mark, Prompt, Ttl

if TYPE_CHECKING:
    from auditor.whatif import Policy, Trial

LIMIT = 4


def cheapest_placement(sent: list[Sent], trial: "Trial", policy: "Policy") -> list[Sent]:
    """Requests with up to four markers at the boundaries that are read."""
    ordered = sorted(sent, key=lambda one: one.at)
    reads, writes = _junctions(ordered), _junctions(ordered[::-1])[::-1]
    heads = _heads(ordered)
    placed = {
        id(one): _placed(one, sorted({read, write, head} - {-1}))
        for one, read, write, head in zip(ordered, reads, writes, heads, strict=True)
    }
    return [placed[id(one)] for one in sent]


def _junctions(ordered: list[Sent]) -> list[int]:
    """For each request the last block of the longest prefix that one in front of it in the list has, -1 for none."""
    seen: dict[tuple[str, str], set[bytes]] = {}
    found = []
    for one in ordered:
        chain = one.prompt.chain
        links = seen.setdefault((one.prompt.scope, one.prompt.model), set())
        last = next((index for index in range(len(chain) - 1, -1, -1) if chain[index] in links), -1)
        found.append(last)
        links.update(chain[last + 1 :])  # who had this prefix had all shorter ones
    return found


def _heads(ordered: list[Sent]) -> list[int]:
    """The marked end of tools and system, which other conversations share."""
    return [next((m.index for m in one.prompt.marks if _in_head(one.prompt, m)), -1) for one in ordered]


def _in_head(prompt: Prompt, mark: Mark) -> bool:
    return not prompt.paths[mark.index].startswith("/messages")


def _placed(one: Sent, indexes: list[int]) -> Sent:
    ttl: Ttl = one.prompt.marks[-1].ttl if one.prompt.marks else one.prompt.automatic or "5m"
    marks = tuple(Mark(index, ttl) for index in indexes[-LIMIT:])
    if marks == one.prompt.marks and one.prompt.automatic is None:
        return one
    return replace(one, prompt=replace(one.prompt, marks=marks, automatic=None))
