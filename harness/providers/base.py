"""What a provider is to the harness: bytes in, events out, one attempt a call."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from traces.schema import JsonObject

Feed: TypeAlias = Callable[[JsonObject], None]


class Provider(Protocol):
    """One API endpoint. It never retries: a retry is an attempt of its own, on the ledger."""

    @property
    def name(self) -> str:
        """Who is asked, as traces name it: anthropic, openai or deepseek; others by the API they speak."""
        ...

    @property
    def host(self) -> str:
        """Host that is asked."""
        ...

    @property
    def key_fp(self) -> str:
        """A fingerprint of the API key."""
        ...

    def stream(self, body: bytes, feed: Feed) -> None:
        """Send `body` as it is and feed each event as it arrives. Raises `ProviderFailed`."""
        ...

    def whole(self, body: bytes) -> JsonObject:
        """Send `body`, which asks for no stream, and return the response. Raises `ProviderFailed`."""
        ...
