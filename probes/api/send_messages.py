"""Sending over the Anthropic Messages API with the official SDK: one attempt, streamed, usage kept as it came.

The SDK's typed methods would rebuild the body; `post` sends it as the probe wrote it.
"""

from collections.abc import Sequence
from typing import Any

from probes.api.exchange import Clock, Exchange
from probes.api.secret import Scrubber
from probes.api.target import Target
from probes.api.transport import recorded, sdk, sdk_clients
from traces.schema import JsonObject
from traces.wire.usage import merge_stream


class MessagesSender:
    """Sends exchanges to `target`; `exchange.key` chooses among `keys`."""

    def __init__(self, target: Target, keys: Sequence[str], clock: Clock) -> None:
        self._sdk = sdk("anthropic")
        self._clock = clock
        self._scrub = Scrubber(keys)
        self._clients = sdk_clients(self._sdk.Anthropic, target, keys)

    def send(self, exchange: Exchange) -> None:
        """Send and fill in what comes. Failures are recorded in the exchange, not raised."""
        client = self._clients[exchange.key]
        with recorded(exchange, self._clock, self._scrub, self._sdk.APIError):
            if exchange.body.get("stream"):
                self._stream(client, exchange)
            else:
                self._whole(client, exchange)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _whole(self, client: Any, exchange: Exchange) -> None:
        reply: JsonObject = client.post("/v1/messages", body=exchange.body, cast_to=object)
        self._begin(exchange, reply)
        exchange.stop_reason = reply.get("stop_reason")
        blocks = reply.get("content") or []
        exchange.text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
        exchange.complete = True

    def _stream(self, client: Any, exchange: Exchange) -> None:
        kind = self._sdk.Stream[object]
        with client.post("/v1/messages", body=exchange.body, cast_to=object, stream=True, stream_cls=kind) as events:
            for event in events:
                self._take(exchange, event)

    def _take(self, exchange: Exchange, event: JsonObject) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._begin(exchange, event["message"])
        elif kind == "content_block_delta" and (text := event["delta"].get("text")):
            if exchange.first_text_s is None:
                exchange.first_text_s = self._clock.steady()
            exchange.text += text
        elif kind == "message_delta":
            exchange.usage_raw = merge_stream(exchange.usage_raw, [event.get("usage") or {}])
            exchange.stop_reason = event.get("delta", {}).get("stop_reason")
        elif kind == "message_stop":
            exchange.complete = True

    def _begin(self, exchange: Exchange, message: JsonObject) -> None:
        exchange.began_s = self._clock.steady()
        exchange.status = 200
        exchange.response_id, exchange.response_model = message.get("id"), message.get("model")
        exchange.usage_raw = dict(message.get("usage") or {})
        exchange.begun.set()
