"""A lab for tests: against a URL over the real SDKs, or against a cache in this process whose hours pass in no time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from habits import Json, MessagesCache, Refused

from localmodel.rules.load import Ruleset, load
from probes.api.budget import Budget
from probes.api.exchange import Clock, Exchange
from probes.api.lab import Lab
from probes.api.send_messages import MessagesSender
from probes.api.send_openai import OpenAISender
from probes.api.target import Api, fingerprint, target_of

KEYS = ("key-of-the-test-one", "key-of-the-test-two")
START = datetime(2026, 11, 1, tzinfo=UTC)


@contextmanager
def lab_at(
    url: str, rules: str | None = "anthropic", api: Api = "messages", model: str = "m", **rest: Any
) -> Iterator[Lab]:
    """A lab that asks the server at `url`."""
    target, clock = target_of(url, api), Clock()
    sender = (MessagesSender if api == "messages" else OpenAISender)(target, KEYS, clock)
    ruleset = None if rules is None else load(rules)
    yield Lab(
        target, model, sender, [fingerprint(key) for key in KEYS], Budget(None, free=True), ruleset=ruleset,
        rules=None if ruleset is None else ruleset.at(model, "claude_api", clock.now()), clock=clock, **rest,
    )  # fmt: skip
    sender.close()


class Dream:
    """A clock that sleeps at once, and a sender that asks a cache in this process. Each answer takes `answer_s`."""

    def __init__(self, cache: MessagesCache, answer_s: float = 0.01, long_s: float = 0.0) -> None:
        self.cache, self.answer_s, self.long_s = cache, answer_s, long_s
        self.seconds = 1000.0

    def clock(self) -> Clock:
        return Clock(lambda: START + timedelta(seconds=self.seconds), lambda: self.seconds, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def send(self, exchange: Exchange) -> None:
        try:
            asked = self.cache.ask(KEYS[exchange.key], exchange.body, self.seconds)
        except Refused as error:
            exchange.status, exchange.error, exchange.ended_s = 400, f"http 400: {error}", self.seconds
            return
        self.cache.begun(asked, self.seconds)
        exchange.began_s, exchange.status = self.seconds, 200
        self.seconds += self.long_s if "Count" in str(exchange.body) else self.answer_s
        self.cache.ended(asked, self.seconds)
        exchange.ended_s, exchange.complete, exchange.usage_raw = self.seconds, True, asked.usage
        exchange.stop_reason = "end_turn"

    def close(self) -> None:
        return


def dream_lab(cache: MessagesCache, ruleset: Ruleset | None = None, long_s: float = 0.0, **rest: Any) -> Lab:
    """A lab in which hours pass in no time."""
    ruleset = ruleset or load("anthropic")
    dream = Dream(cache, long_s=long_s)
    return Lab(
        target_of("http://127.0.0.1:1"), "claude-opus-4-8", dream, [fingerprint(key) for key in KEYS],
        Budget(None, free=True), ruleset=ruleset, rules=ruleset.at("claude-opus-4-8", "claude_api", START),
        clock=dream.clock(), **rest,
    )  # fmt: skip


def bodies_of(lab: Lab) -> list[Json]:
    """What was sent."""
    return [exchange.body for exchange in lab.exchanges]
