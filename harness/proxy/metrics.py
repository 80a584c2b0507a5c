"""Counters of the proxy for `GET /metrics`.

Unknown usage counts as a call without usage and adds to no token counter, because unknown is not zero.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.recorder.recorder import Health
from localmodel.prometheus import Histogram, Key, family, single
from traces.exchange import Exchange

NAME = "cachewright_proxy"
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Metrics:
    """Figures since the start. Filled by the recorder's thread, read by the event loop."""

    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    without_usage: int = 0
    _first: Histogram = field(default_factory=lambda: Histogram(BUCKETS))

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
            self._first.add(first / 1000)

    def text(self, health: Health, connections: int) -> str:
        """The page."""
        gaps = {(reason,): number for reason, number in health.gaps.items()}
        waiting = "Finished calls that are not in the database yet."
        whole = "read + write + uncached is the whole input."
        lines = [
            *_family("calls_total", "Recorded attempts.", ("api", "result", "status"), self.calls),
            *_family("tokens_total", f"Reported tokens; {whole}", ("provider", "class"), self.tokens),
            *_family("gaps_total", "Calls that went on unrecorded.", ("reason",), gaps),
            *_single("calls_without_usage_total", "counter", "Calls whose usage is unknown.", self.without_usage),
            *_single("waiting_calls", "gauge", waiting, health.waiting),
            *_single("client_connections", "gauge", "Connections from clients.", connections),
            *self._first.lines(f"{NAME}_first_token_seconds", "Seconds from a request's start to its first token."),
        ]
        return "\n".join(lines) + "\n"


def _family(name: str, text: str, labels: tuple[str, ...], values: Mapping[Key, float]) -> list[str]:
    return family(f"{NAME}_{name}", "counter", text, labels, values)


def _single(name: str, kind: str, text: str, value: float) -> list[str]:
    return single(f"{NAME}_{name}", kind, text, value)
