"""The bench on which probes work: it sends, keeps the books, and stops before more is spent than was agreed.

One attempt a request, never a retry. Each request is recorded the moment it ends, however it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, NamedTuple, Protocol

from localmodel.rules.step import DatedRules
from localmodel.rules.types import Rules
from probes.api import bodies
from probes.api.budget import Budget
from probes.api.exchange import Clock, Exchange, gap_between
from probes.api.filler import text
from probes.api.foretell import Foretold, foretell
from probes.api.target import Target
from probes.errors import Incomplete, NoCaching, Stopped, Unreachable
from traces.schema import JsonObject

MORE_THAN_MINIMUM = 1.3
USUAL_MINIMUM = 1024
USUAL_LIFETIME_S = 300
MOST_WORDS = 20_000


def long_enough(minimum: int) -> int:
    """Words of a document that is cached where the minimum is so many tokens."""
    return round(minimum * MORE_THAN_MINIMUM) + 32


class Sender(Protocol):
    """Sends one exchange and fills it in; records failures in it and raises none."""

    def send(self, exchange: Exchange) -> None:
        """Send once and read the response to its end."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...


class Plan(NamedTuple):
    """What a probe will take if its prediction holds: requests, tokens in and out of all of them, and waiting."""

    requests: int
    input_tokens: int
    output_tokens: int
    wait_s: float = 0.0


@dataclass(slots=True)
class Watch:
    """Who is told what happens: a request begins, has ended; a word about the work."""

    started: Callable[[Exchange], None] = lambda exchange: None
    ended: Callable[[Exchange], None] = lambda exchange: None
    note: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class Lab:
    """One run against one model.

    key_fps     fingerprints of the keys, in the sender's order
    ruleset     dated rules for predictions, `None` where there are none for this target; `rules` those in force
    words       length of a document that is long enough to be cached
    bounds      the bounds of the 5m lifetime in seconds, once a probe has measured them
    max_wait_s  the longest that a probe may wait for one answer to its question
    """

    target: Target
    model: str
    sender: Sender
    key_fps: Sequence[str]
    budget: Budget
    ruleset: DatedRules | None = None
    rules: Rules | None = None
    clock: Clock = field(default_factory=Clock)
    watch: Watch = field(default_factory=Watch)
    max_wait_s: float = 600.0
    words: int = 0
    bounds: tuple[float, float | None] | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    _numbered: int = 0

    def __post_init__(self) -> None:
        """Choose a length for documents where none was given."""
        if not self.words:
            # A ruleset without a minimum says nothing about small documents either.
            minimum = (self.rules.min_tokens if self.rules is not None else 0) or USUAL_MINIMUM
            self.words = long_enough(minimum)

    def value(self, rule: str, default: Any) -> Any:
        """The value in force of a rule, `default` where the rule data has none."""
        row = self.rules.values.get(rule) if self.rules is not None else None
        return default if row is None else row.value

    def in_time(self, one: Exchange, two: Exchange) -> bool:
        """Whether the server began with `two` while an entry that `one` wrote or read was certainly alive.

        By the lifetime that was measured in this run, else by the rules.
        """
        if self.bounds is not None:
            lives_s: float = self.bounds[0]
        else:
            lives_s = USUAL_LIFETIME_S if self.rules is None else self.rules.ttl_s["5m"]
        return gap_between(one, two)[1] < lives_s

    def document(self) -> str:
        """A new document, long enough to be cached."""
        return text(self.words)

    def send(self, case: str, body: JsonObject, *, key: int = 0, may_fail: bool = False) -> Exchange:
        """Send one request and wait for its end.

        Raises `Incomplete` where it did not come to it, except for a refusal (HTTP 400) that `may_fail` expects;
        `BudgetReached` before sending; `Stopped` after the user's interrupt.
        """
        self.budget.reserve(body)
        exchange = self._exchange(case, body, key)
        try:
            self.watch.started(exchange)
            self.sender.send(exchange)
        except KeyboardInterrupt:
            self._stopped([exchange])
        self._keep(exchange)
        if not (may_fail and exchange.status == 400):
            check(exchange, self.target)
        return exchange

    def send_pair(self, case: str, first: JsonObject, second: JsonObject, *, wait: bool) -> tuple[Exchange, Exchange]:
        """Send two requests side by side; with `wait` the second leaves when the first's response begins."""
        self.budget.reserve(first, second)
        one = self._exchange(f"{case}_a", first, 0)
        two: Exchange | None = None
        threads: list[Thread] = []
        try:
            threads.append(self._in_thread(one))
            if wait:
                one.begun.wait()
            two = self._exchange(f"{case}_b", second, 0)
            threads.append(self._in_thread(two))
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stopped([found for found in (one, two) if found is not None])
        assert two is not None
        for exchange in (one, two):
            self._keep(exchange)
        for exchange in (one, two):
            check(exchange, self.target)
        return one, two

    def pause(self, seconds: float, why: str) -> None:
        """Let time pass. Raises `Stopped` on the user's interrupt."""
        if seconds <= 0:
            return
        self.watch.note(f"waiting {seconds:.3g} s {why}")
        try:
            self.clock.sleep(seconds)
        except KeyboardInterrupt:
            raise Stopped("stopped by the user") from None

    def engage(self) -> None:
        """Find a length at which the cache engages, twice as long each time. Raises `NoCaching` where none does."""
        while True:
            exchange = self.send("size", bodies.about_in(self.target.api, self.model, self.document()))
            if exchange.engaged or self.target.api != "messages":
                # The other APIs need not report writes; there a repeat tells.
                return
            if exchange.read is None:
                raise NoCaching(
                    f"{self.model}: the usage of a complete response names no cache reads "
                    f"({', '.join(exchange.usage_raw) or 'it is empty'}); this model or server reports no caching"
                )
            if self.words >= MOST_WORDS:
                raise NoCaching(
                    f"{self.model}: a marked document of {exchange.usage.input_tokens} tokens was not written to the "
                    "cache; this model or server does not cache"
                )
            self.words *= 2

    def foretell(self) -> dict[int, Foretold]:
        """The rules' predictions for all requests so far, by number; empty without rules."""
        return {} if self.ruleset is None else foretell(self.exchanges, self.ruleset)

    def _exchange(self, case: str, body: JsonObject, key: int) -> Exchange:
        self._numbered += 1
        target = self.target
        return Exchange(
            seq=self._numbered, case=case, provider=target.provider, api=target.api, host=target.host,
            model=self.model, body=body, sent_at=self.clock.now(), sent_s=self.clock.steady(), key=key,
            key_fp=self.key_fps[key],
        )  # fmt: skip

    def _in_thread(self, exchange: Exchange) -> Thread:
        self.watch.started(exchange)
        # A daemon: after an interrupt nobody waits for a response that may take minutes.
        thread = Thread(target=self.sender.send, args=(exchange,), daemon=True)
        thread.start()
        return thread

    def _keep(self, exchange: Exchange) -> None:
        self.budget.settle(exchange)
        self.exchanges.append(exchange)
        self.watch.ended(exchange)

    def _stopped(self, exchanges: list[Exchange]) -> None:
        """Keep what has come of these, and stop."""
        for exchange in exchanges:
            if exchange.ended_s is None:
                exchange.ended_s = self.clock.steady()
                exchange.error = "stopped by the user"
            self._keep(exchange)
        raise Stopped("stopped by the user") from None


_REMEDIES = {
    401: "the key is not accepted; check {variable}",
    403: "the key may not do this; check {variable} and the model's access",
    404: "there is no model {model!r} or no such path; check --model and --target",
    429: "the rate limit is reached; nothing is retried, run the probe again later",
    529: "the API is overloaded; nothing is retried, run the probe again later",
}


def check(exchange: Exchange, target: Target) -> None:
    """Raise `Incomplete` (or `Unreachable`, where no other request would do better) unless it is complete."""
    if exchange.complete:
        return
    said = exchange.error or "incomplete"
    remedy = _REMEDIES.get(exchange.status or 0)
    if remedy is not None and exchange.began_s is None:
        hint = remedy.format(variable=target.key_variable, model=exchange.model)
        raise Unreachable(f"{target.host}: {said}; {hint}")
    if exchange.status is None and exchange.began_s is None:
        raise Unreachable(f"{target.base_url}: {said}; check that a server listens there")
    raise Incomplete(f"{target.host}: request {exchange.seq} ({exchange.case}): {said}; nothing is retried")
