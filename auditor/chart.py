"""Geometry of the report's timeline: calls in time order as stacked bars, with marks for misses and pauses.

Pure numbers in SVG user units, so that a template can draw them without computing and a test can check them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from traces.schema import JsonObject

WIDTH, HEIGHT = 960, 220
MOST_BARS = 320
"""More calls than this share bars: thinner ones could neither be seen nor pointed at."""

PAUSE_S = 300
"""A pause worth a mark: no provider's shortest lifetime is longer."""

MOST_LANES = 8
LABEL_WIDTH = 52
"""Room for the length of a pause; of pauses that are closer only the longest has one."""


class Piece(NamedTuple):
    """One part of a bar: from `y` down to `y + height`."""

    kind: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One call, or neighbours in time. `missed`: some paid for tokens again; `pause`: the one before, in words."""

    x: float
    width: float
    label: str
    pieces: tuple[Piece, ...]
    missed: bool
    lane: int
    paused: bool = False
    pause: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """All bars, the tokens of the tallest, how many calls a bar holds, and the agents that have a lane below."""

    bars: list[Bar]
    peak: int
    each: int
    lanes: list[str] = field(default_factory=list)


def chart(calls: Sequence[JsonObject]) -> Chart:
    """Lay out the calls of a report (`cachewright.audit/1`) in their order."""
    each = -(-len(calls) // MOST_BARS) or 1
    groups = [calls[at : at + each] for at in range(0, len(calls), each)]
    peak = max((_sum(group, "input_tokens") for group in groups), default=0)
    step = WIDTH / max(len(groups), 12)
    agents = list(dict.fromkeys(str(call["agent"]) for call in calls))
    lanes = agents if 1 < len(agents) <= MOST_LANES and each == 1 else []
    bars = [
        _bar(group, (at * step, step), peak, lanes.index(group[0]["agent"]) if lanes else 0)
        for at, group in enumerate(groups)
    ]
    return Chart(_with_pauses(bars, groups), peak, each, lanes)


def _bar(group: Sequence[JsonObject], place: tuple[float, float], peak: int, lane: int) -> Bar:
    left, step = place
    number = str(group[0]["seq"]) if len(group) == 1 else f"{group[0]['seq']} to {group[-1]['seq']}"
    words = [f"call{'s' if len(group) > 1 else ''} {number}"]
    pieces, bottom = [], float(HEIGHT)
    for kind, name in (("read", "read_tokens"), ("written", "write_tokens"), ("uncached", "uncached_tokens")):
        tokens = _sum(group, name)
        if tokens > 0 and peak:
            height = tokens / peak * HEIGHT
            bottom -= height
            pieces.append(Piece(kind, round(bottom, 2), round(height, 2)))
            words.append(f"{tokens:,} {kind}")
    missed = any(lost(call) for call in group)
    if missed:
        causes = dict.fromkeys(str(call["diagnosis"]["cause"]) for call in group if lost(call))
        words.append("paid again: " + ", ".join(causes))
    gap = min(2.0, step * 0.2)
    return Bar(round(left, 2), round(step - gap, 2), "; ".join(words), tuple(pieces), missed, lane)


def _with_pauses(bars: list[Bar], groups: list[Sequence[JsonObject]]) -> list[Bar]:
    pauses = {
        at: seconds
        for at in range(1, len(bars))
        if (seconds := _seconds(groups[at - 1][-1]["started_at"], groups[at][0]["started_at"])) >= PAUSE_S
    }
    labelled: list[float] = []
    marked = list(bars)
    for at, seconds in sorted(pauses.items(), key=lambda pair: -pair[1]):
        bar, words = bars[at], _duration(seconds)
        room = all(abs(bar.x - x) >= LABEL_WIDTH for x in labelled) and bar.x <= WIDTH - LABEL_WIDTH / 2
        if room:
            labelled.append(bar.x)
        label = f"{bar.label}; after a pause of {words}"
        marked[at] = replace(bar, label=label, paused=True, pause=words if room else "")
    return marked


def _seconds(before: str | None, after: str | None) -> float:
    if before is None or after is None:
        return 0.0
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()


def _duration(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def lost(call: JsonObject) -> int:
    """Tokens that a call of the report paid for again."""
    return int(call["diagnosis"]["lost_tokens"]) if call["diagnosis"] else 0


def _sum(group: Sequence[JsonObject], name: str) -> int:
    return sum(call[name] or 0 for call in group)
