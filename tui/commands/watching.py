"""`--watch`: one line for each call, and a warning before a cache runs out unused."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from auditor.live import Line, Live
from auditor.pricing import open_prices
from localmodel.rules.book import Rulebook
from traces.exchange import Exchange

CHECK_S = 1.0


class Watch:
    """Says each recorded call as it ends. A context manager; `take` is called by the recorder's thread."""

    def __init__(self, say: Callable[[str], None], busy: Callable[[], bool]) -> None:
        self._say = say
        self._busy = busy  # whether a call is under way: the cache is in use then
        self._live = Live(Rulebook(), open_prices())
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._check, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(5)

    def take(self, exchange: Exchange) -> None:
        """Say one line about an exchange that is a call."""
        if exchange.call is None:
            return
        with self._lock:
            line = self._live.take(exchange.call, exchange.conversation)
        self._say(words(line, exchange, datetime.now(UTC)))

    def _check(self) -> None:
        while not self._stop.wait(CHECK_S):
            if self._busy():
                continue
            with self._lock:
                found = list(self._live.warnings(datetime.now(UTC)))
            for warning in found:
                self._say(f"warning: {warning}; ask something, or keep it alive")


def words(line: Line, exchange: Exchange, now: datetime) -> str:
    """One line: time, run, kind, input, read, written, cost, verdict with cause, and the time that is left."""
    call, usage = line.call, line.call.usage
    started = f"{call.started_at:%H:%M:%S}" if call.started_at else "--:--:--"
    parts = [f"{started} {call.trace}:{call.seq} {call.kind if call.agent == 'main' else f'{call.kind} {call.agent}'}"]
    if usage.input_tokens is None:
        parts.append("input unknown")
    else:
        share = "read unknown"
        if usage.read_tokens is not None and usage.input_tokens:
            share = f"read {100 * usage.read_tokens / usage.input_tokens:.1f} %"
        parts += [f"input {usage.input_tokens:,}", share, f"written {_count(usage.write_tokens)}"]
    parts.append("cost unknown" if line.usd is None else f"${line.usd:.4f}{' (partial)' if line.partial else ''}")
    parts.append(_verdict(line, exchange))
    if line.expires_at is not None:
        parts.append(f"expires in {max(0, round((line.expires_at - now).total_seconds()))} s")
    return " | ".join(parts)


def _verdict(line: Line, exchange: Exchange) -> str:
    if exchange.facts["result"] == "error":
        status = f"status {exchange.status}" if exchange.status and exchange.status >= 400 else exchange.outcome
        return f"error ({'in the stream' if status == 'complete' else status})"
    word = line.verdict.replace("_", " ")
    if exchange.facts["result"] == "aborted":
        word = f"aborted, {word}"
    if line.cause is None:
        return word
    lost = f", {line.lost_tokens:,} tokens lost" if line.lost_tokens else ""
    sure = "" if line.status == "established" else f" ({line.status})"
    return f"{word}: {line.cause.replace('_', ' ')}{sure}{lost}"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"
