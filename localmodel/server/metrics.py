"""Counters for `GET /metrics`, in Prometheus' text format (version 0.0.4).

Written by hand: a handful of counters and one histogram do not justify a dependency, and a client library's global
registry would be shared by the servers of one test process.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Metrics:
    """All figures of one server since it started. Used from the event loop only."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _seconds: float = 0.0

    def first_token(self, seconds: float) -> None:
        """A response began `seconds` after its request started."""
        self._buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def text(self, *, waiting: int, running: int, entries: int, pages: Mapping[str, int]) -> str:
        """The page. The gauges are given, since they live elsewhere."""
        requests = {f'api="{api}",status="{status}"': n for (api, status), n in sorted(self.requests.items())}
        tokens = {f'class="{name}"': n for name, n in sorted(self.tokens.items())}
        verdicts = {f'verdict="{word}",cause="{cause}"': n for (word, cause), n in sorted(self.verdicts.items())}
        lines = [
            *_counter("requests_total", "Requests by API and status.", requests),
            *_counter("tokens_total", "Tokens by class; read + write + uncached is the whole input.", tokens),
            *_counter("verdicts_total", "Calls by verdict and cause.", verdicts),
            *_gauge("hit_ratio", "Read tokens over input tokens since the start.", round(self._ratio(), 6)),
            *_gauge("queue_requests", "Requests that wait for a slot.", waiting),
            *_gauge("running_requests", "Requests that are being answered.", running),
            *_gauge("cache_entries", "Cache entries held.", entries),
            *_gauges("kv_pages", "Pages of KV memory by state.", {f'state="{name}"': n for name, n in pages.items()}),
            *self._histogram(),
        ]
        return "\n".join(lines) + "\n"

    def _ratio(self) -> float:
        whole = sum(self.tokens[name] for name in ("read", "write", "uncached"))
        return self.tokens["read"] / whole if whole else 0.0

    def _histogram(self) -> list[str]:
        name, lines, total = "cachewright_ttft_seconds", [], 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        head = _family("ttft_seconds", "histogram", "Seconds from a request's start to the start of its response.")
        return [*head, *lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


def _counter(name: str, text: str, values: dict[str, int]) -> list[str]:
    return [*_family(name, "counter", text), *(f"cachewright_{name}{{{labels}}} {n}" for labels, n in values.items())]


def _gauges(name: str, text: str, values: dict[str, int]) -> list[str]:
    lines = [f"cachewright_{name}{{{labels}}} {n}" for labels, n in values.items()]
    return [*_family(name, "gauge", text), *lines] if lines else []


def _gauge(name: str, text: str, value: float) -> list[str]:
    return [*_family(name, "gauge", text), f"cachewright_{name} {value}"]


def _family(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP cachewright_{name} {text}", f"# TYPE cachewright_{name} {kind}"]
