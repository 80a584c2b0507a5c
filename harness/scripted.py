"""A provider without a network: answers by a function, and a cache that follows a ruleset on the session's own clock.

Usage is what `localmodel.rules.step` says, with tokens counted as a quarter of each block's bytes. It is for tests of
whatever takes hours or dollars elsewhere; `cachewright serve --model scripted` is the same as a server.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock

import orjson

from harness.clock import Clock
from harness.errors import ProviderFailed
from harness.providers.base import Feed
from localmodel.rules.render import rendered
from localmodel.rules.step import DatedRules, step
from localmodel.rules.types import CacheState
from traces.canonical import Interner, canonical
from traces.schema import Call, JsonObject
from traces.tokens import cumulated

Reply = Callable[[JsonObject], list[JsonObject]]
"""Request body -> content blocks of the answer."""


def plain(body: JsonObject) -> list[JsonObject]:
    """The usual answer."""
    return [{"type": "text", "text": f"Answer {len(body['messages'])}."}]


@dataclass(slots=True)
class Scripted:
    """See `harness.providers.base.Provider`; speaks Messages."""

    rules: DatedRules
    clock: Clock
    reply: Reply = plain
    delay_s: float = 1.0
    name: str = "anthropic"
    host: str = "scripted"
    key_fp: str = "scripted"
    bodies: list[bytes] = field(default_factory=list)
    _state: CacheState = field(default_factory=CacheState)
    _interner: Interner = field(default_factory=lambda: Interner(lambda raw: max(1, len(raw) // 4)))
    _lock: Lock = field(default_factory=Lock)

    def forget(self) -> None:
        """Lose all entries, as a provider that evicts early does."""
        self._state = CacheState()

    def stream(self, body: bytes, feed: Feed) -> None:
        """See `Provider`."""
        message = self.whole(body)
        content = message["content"]
        feed({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}})
        for index, block in enumerate(content):
            feed({"type": "content_block_start", "index": index, "content_block": block})
            feed({"type": "content_block_stop", "index": index})
        feed({"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": message["usage"]})

    def whole(self, body: bytes) -> JsonObject:
        """See `Provider`."""
        request = orjson.loads(body)
        with self._lock:
            self.bodies.append(body)
            usage = self._usage(request)
        self.clock.sleep(self.delay_s if request["max_tokens"] else 0.0)
        content = self.reply(request) if request["max_tokens"] else []
        calls = any(block.get("type") == "tool_use" for block in content)
        return {
            "id": f"msg_{len(self.bodies)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn" if content else "max_tokens",
            "usage": {**usage, "output_tokens": len(orjson.dumps(content)) // 4 if content else 0},
        }

    def _usage(self, request: JsonObject) -> JsonObject:
        call = Call("c", "t", self.name, None, api="messages", host=self.host, model=request["model"], request=request)
        prompt = canonical(call, self._interner)
        if prompt is None:
            raise ProviderFailed("no Messages body", status=400)
        at = self.clock.now()
        prompt = rendered(prompt, self.rules.at(prompt.model, prompt.platform, at))
        prompt = replace(prompt, ends=cumulated(block.weight for block in prompt.blocks))
        self._state, outcome = step(self._state, prompt, self.rules, at=at, first_token_at=at)
        if outcome.rejected:
            raise ProviderFailed(outcome.rejected[0], status=400)
        split = {
            "ephemeral_5m_input_tokens": outcome.write_5m_tokens,
            "ephemeral_1h_input_tokens": outcome.write_1h_tokens,
        }
        return {
            "input_tokens": outcome.uncached_tokens,
            "cache_read_input_tokens": outcome.read_tokens,
            "cache_creation_input_tokens": outcome.write_tokens,
            "cache_creation": split,
        }
