"""Prometheus' text format (version 0.0.4), for the pages of the server and of the proxy.

Written by hand: counters, gauges and one histogram are a page of code. The client library keeps a registry of objects
where these are figures that somebody counts anyway, and it loads an HTTP server.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

KIND = "text/plain; version=0.0.4; charset=utf-8"
"""The page's content type."""

Key = TypeVar("Key", bound=tuple[str, ...])
"""The values of a figure's labels."""


def family(name: str, kind: str, text: str, labels: Sequence[str], values: Mapping[Key, float]) -> list[str]:
    """Lines of a `counter` or `gauge` with these labels, in the order of their values; none where it has no figures."""
    if not values:
        return []
    rows = [f"{name}{_labels(labels, key)} {number}" for key, number in sorted(values.items())]
    return [*_head(name, kind, text), *rows]


def single(name: str, kind: str, text: str, value: float) -> list[str]:
    """Lines of a `counter` or `gauge` without labels."""
    return [*_head(name, kind, text), f"{name} {value}"]


@dataclass(slots=True)
class Histogram:
    """Seconds, counted by upper bounds (inclusive)."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, text: str) -> list[str]:
        """The histogram's lines."""
        rows, below = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            rows.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*_head(name, "histogram", text), *rows, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}" if names else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
