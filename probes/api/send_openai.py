"""Sending over OpenAI Chat Completions and Responses with the official SDK, and so to DeepSeek and compatible servers.

One attempt, streamed; usage comes at the end of the stream and is kept as it came.
"""

from collections.abc import Sequence
from typing import Any

from probes.api.exchange import Clock, Exchange
from probes.api.secret import Scrubber
from probes.api.target import Target
from probes.api.transport import recorded, sdk, sdk_clients
from traces.schema import JsonObject

_PATHS = {"chat": "/chat/completions", "responses": "/responses"}


class OpenAISender:
    """Sends exchanges to `target`; `exchange.key` chooses among `keys`."""

    def __init__(self, target: Target, keys: Sequence[str], clock: Clock) -> None:
        self._sdk = sdk("openai")
        self._clock = clock
        self._path = _PATHS[target.api]
        self._scrub = Scrubber(keys)
        self._clients = sdk_clients(self._sdk.OpenAI, target, keys)

    def send(self, exchange: Exchange) -> None:
        """Send and fill in what comes. Failures are recorded in the exchange, not raised."""
        client = self._clients[exchange.key]
        take = self._take_chat if exchange.api == "chat" else self._take_response
        kind = self._sdk.Stream[object]
        with (
            recorded(exchange, self._clock, self._scrub, self._sdk.OpenAIError),
            client.post(self._path, body=exchange.body, cast_to=object, stream=True, stream_cls=kind) as events,
        ):
            for event in events:
                take(exchange, event)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _take_chat(self, exchange: Exchange, chunk: JsonObject) -> None:
        if exchange.began_s is None:
            self._begin(exchange, chunk)
        for choice in chunk.get("choices") or []:
            self._say(exchange, (choice.get("delta") or {}).get("content"))
            if choice.get("finish_reason"):
                exchange.stop_reason = choice["finish_reason"]
                exchange.complete = True
        if chunk.get("usage"):
            exchange.usage_raw = dict(chunk["usage"])

    def _take_response(self, exchange: Exchange, event: JsonObject) -> None:
        kind, response = event.get("type"), event.get("response")
        if exchange.began_s is None:
            self._begin(exchange, response if isinstance(response, dict) else {})
        if kind == "response.output_text.delta":
            self._say(exchange, event.get("delta"))
        if isinstance(response, dict) and kind in ("response.completed", "response.incomplete", "response.failed"):
            exchange.usage_raw = dict(response.get("usage") or {})
            exchange.response_model = response.get("model")
            exchange.stop_reason = response.get("status")
            exchange.complete = kind != "response.failed"
            error: Any = response.get("error")
            if kind == "response.failed":
                exchange.error = self._scrub.message(f"response.failed: {error}")

    def _say(self, exchange: Exchange, text: str | None) -> None:
        if text:
            if exchange.first_text_s is None:
                exchange.first_text_s = self._clock.steady()
            exchange.text += text

    def _begin(self, exchange: Exchange, head: JsonObject) -> None:
        exchange.began_s = self._clock.steady()
        exchange.status = 200
        exchange.response_id, exchange.response_model = head.get("id"), head.get("model")
        exchange.begun.set()
