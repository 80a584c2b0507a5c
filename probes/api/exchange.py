"""One request of a probe and what came back, filled in as it comes, so that an interruption loses nothing.

Times are seconds of a steady clock; only `sent_at` tells the day. Everything that did not come stays `None`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event

from traces.errors import MalformedRow
from traces.schema import Call, JsonObject, Usage
from traces.wire.usage import normalise


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, and a way to let it pass; injected, so that a test can run hours in no time."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class Exchange:
    """One request.

    seq, case     its number in the run and its role in the probe
    key           index of the key it was sent with (0 first, 1 second), `key_fp` that key's fingerprint
    began_s       the response's first event arrived
    usage_raw     usage fields as returned, `usage` the same in this project's names
    tokens        tokens of the blocks by JSON pointer, where the probe has worked them out
    complete      the response came to its end
    error         why not, in a few words; `status` the HTTP status
    begun         set when the response begins or will not begin any more
    """

    seq: int
    case: str
    provider: str
    api: str
    host: str
    model: str
    body: JsonObject
    sent_at: datetime
    sent_s: float
    key: int = 0
    key_fp: str = ""
    began_s: float | None = None
    first_text_s: float | None = None
    ended_s: float | None = None
    usage_raw: JsonObject = field(default_factory=dict)
    response_id: str | None = None
    response_model: str | None = None
    stop_reason: str | None = None
    text: str = ""
    tokens: dict[str, int] | None = None
    status: int | None = None
    complete: bool = False
    error: str | None = None
    begun: Event = field(default_factory=Event, repr=False, compare=False)

    @property
    def usage(self) -> Usage:
        """Usage in this project's names; all unknown where what was returned cannot be right."""
        try:
            return normalise(self.usage_raw or None, self.provider)
        except MalformedRow:
            return Usage()

    @property
    def read(self) -> int | None:
        """Tokens read from the cache."""
        return self.usage.read_tokens

    @property
    def hit(self) -> bool | None:
        """Whether something was read from the cache; `None` where the response does not say."""
        read = self.usage.read_tokens
        return None if read is None else read > 0

    @property
    def engaged(self) -> bool:
        """Whether the cache was read or written."""
        return bool(self.usage.read_tokens or self.usage.write_tokens)

    @property
    def covered(self) -> int:
        """Tokens up to the last breakpoint: read + written."""
        return (self.usage.read_tokens or 0) + (self.usage.write_tokens or 0)

    def at(self, moment_s: float | None) -> datetime | None:
        """A steady time as a date."""
        return None if moment_s is None else self.sent_at + timedelta(seconds=moment_s - self.sent_s)


def gap_between(one: Exchange, two: Exchange) -> tuple[float, float]:
    """(least, most) seconds between the moments at which a server began with two requests."""
    return two.sent_s - (one.began_s or one.sent_s), (two.began_s or two.sent_s) - one.sent_s


def call_of(exchange: Exchange, trace: str) -> Call:
    """The exchange as a recorded call of the native trace format."""
    return Call(
        id=exchange.response_id or f"{trace}-{exchange.seq}",
        trace=trace,
        provider=exchange.provider,
        started_at=exchange.sent_at,
        seq=exchange.seq,
        kind="prewarm" if exchange.body.get("max_tokens") == 0 else "main",
        api=exchange.api,
        host=exchange.host,
        key_fp=exchange.key_fp,
        model=exchange.model,
        first_token_at=exchange.at(exchange.began_s),
        ended_at=exchange.at(exchange.ended_s),
        status=exchange.status,
        request=exchange.body,
        response=_response(exchange),
        tokens=exchange.tokens,
        usage=exchange.usage,
    )


def _response(exchange: Exchange) -> JsonObject | None:
    """The final message as far as it came, in the API's own shape."""
    if exchange.began_s is None:
        return None
    head: JsonObject = {"id": exchange.response_id, "model": exchange.response_model}
    usage = {"usage": exchange.usage_raw} if exchange.usage_raw else {}
    if exchange.api == "chat":
        message = {"role": "assistant", "content": exchange.text}
        return {**head, "choices": [{"message": message, "finish_reason": exchange.stop_reason}], **usage}
    if exchange.api == "responses":
        part = {"type": "output_text", "text": exchange.text}
        return {**head, "output": [{"type": "message", "role": "assistant", "content": [part]}], **usage}
    content = [{"type": "text", "text": exchange.text}] if exchange.text else []
    return {**head, "role": "assistant", "content": content, "stop_reason": exchange.stop_reason, **usage}
