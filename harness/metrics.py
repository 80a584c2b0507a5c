"""Counters of the proxy for `GET /metrics`, in Prometheus' text format (version 0.0.4).

Written by hand, as the server's are: a few counters do not justify a dependency. Unknown usage counts as a call without
usage and adds to no token counter, because unknown is not zero.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from harness.recorder.recorder import Health
from traces.exchange import Exchange

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Metrics:
    """Figures since the start. Filled by the recorder's thread, read by the event loop."""

    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    without_usage: int = 0
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _seconds: float = 0.0

    def count(self, exchange: Exchange) -> None:
        """Count one exchange."""
        call = exchange.call
        api = (call.api if call else None) or "other"
        self.calls[api, exchange.facts["result"], str(exchange.status or 0)] += 1
        if call is None:
            return
        usage, provider = call.usage, call.provider
        if usage.input_tokens is None:
            self.without_usage += 1
        classes = {"read": usage.read_tokens, "write": usage.write_tokens, "uncached": usage.uncached_tokens}
        for name, tokens in {**classes, "output": usage.output_tokens}.items():
            self.tokens[provider, name] += tokens or 0
        first = exchange.facts["times"].get("first_token_ms")
        if first is not None:
            self._buckets[bisect_left(BUCKETS, first / 1000)] += 1
            self._seconds += first / 1000

    def text(self, health: Health, connections: int) -> str:
        """The page."""
        calls = {f'api="{a}",result="{r}",status="{s}"': n for (a, r, s), n in sorted(self.calls.items())}
        tokens = {f'provider="{p}",class="{c}"': n for (p, c), n in sorted(self.tokens.items())}
        gaps = {f'reason="{_label(reason)}"': n for reason, n in sorted(health.gaps.items())}
        lines = [
            *_counter("calls_total", "Recorded attempts by API, result and status.", calls),
            *_counter("tokens_total", "Reported tokens; read + write + uncached is the whole input.", tokens),
            *_counter("calls_without_usage_total", "Calls whose usage is unknown.", {"": self.without_usage}),
            *_counter("gaps_total", "Calls that went on unrecorded.", gaps),
            *_gauge("waiting_calls", "Finished calls that are not in the database yet.", health.waiting),
            *_gauge("client_connections", "Connections from clients.", connections),
            *self._histogram(),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name, lines, total = "cachewright_proxy_first_token_seconds", [], 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        head = _family("first_token_seconds", "histogram", "Seconds from a request's start to its first token.")
        return [*head, *lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


def _counter(name: str, text: str, values: dict[str, int]) -> list[str]:
    rows = [f"cachewright_proxy_{name}{f'{{{labels}}}' if labels else ''} {n}" for labels, n in values.items()]
    return [*_family(name, "counter", text), *rows]


def _gauge(name: str, text: str, value: float) -> list[str]:
    return [*_family(name, "gauge", text), f"cachewright_proxy_{name} {value}"]


def _family(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP cachewright_proxy_{name} {text}", f"# TYPE cachewright_proxy_{name} {kind}"]


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ")
