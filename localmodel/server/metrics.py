"""Counters for `GET /metrics`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from localmodel.prometheus import Histogram, family, single

NAME = "cachewright"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Metrics:
    """All figures of one server since it started. Used from the event loop only."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _first: Histogram = field(default_factory=lambda: Histogram(BUCKETS))

    def first_token(self, seconds: float) -> None:
        """A response began `seconds` after its request started."""
        self._first.add(seconds)

    def text(self, *, waiting: int, running: int, entries: int, pages: Mapping[str, int]) -> str:
        """The page. The gauges are given, since they live elsewhere."""
        requests = {(api, str(status)): number for (api, status), number in self.requests.items()}
        tokens, states = ({(name,): n for name, n in figures.items()} for figures in (self.tokens, pages))
        ratio, whole = round(self._ratio(), 6), "read + write + uncached is the whole input."
        lines = [
            *family(f"{NAME}_requests_total", "counter", "Requests.", ("api", "status"), requests),
            *family(f"{NAME}_tokens_total", "counter", f"Tokens; {whole}", ("class",), tokens),
            *family(f"{NAME}_verdicts_total", "counter", "Calls.", ("verdict", "cause"), self.verdicts),
            *single(f"{NAME}_hit_ratio", "gauge", "Read tokens over input tokens since the start.", ratio),
            *single(f"{NAME}_queue_requests", "gauge", "Requests that wait for a slot.", waiting),
            *single(f"{NAME}_running_requests", "gauge", "Requests that are being answered.", running),
            *single(f"{NAME}_cache_entries", "gauge", "Cache entries held.", entries),
            *family(f"{NAME}_kv_pages", "gauge", "Pages of KV memory.", ("state",), states),
            *self._first.lines(f"{NAME}_ttft_seconds", "Seconds from a request's start to the start of its response."),
        ]
        return "\n".join(lines) + "\n"

    def _ratio(self) -> float:
        whole = sum(self.tokens[name] for name in ("read", "write", "uncached"))
        return self.tokens["read"] / whole if whole else 0.0
