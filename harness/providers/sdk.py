"""Providers by their official SDKs: authentication, connections, errors and event streams are theirs, the bytes ours.

The SDK's own `post(content=…)` sends exactly the bytes that the journal knows; building the body with its typed methods
would leave the order of members to the SDK's version. `max_retries=0`: a hidden retry is a hidden bill. The SDK is
imported when a provider is made, not when a request is timed.
"""

import os
from hashlib import blake2b
from typing import Any

from harness.errors import BadSetting, ProviderFailed
from harness.providers.base import Feed
from harness.providers.targets import Target
from traces.schema import JsonObject

_STATUS = {"overloaded_error": 529, "rate_limit_error": 429, "api_error": 500, "invalid_request_error": 400}
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class SdkProvider:
    """One endpoint through the SDK of its dialect's maker; see `harness.providers.base.Provider`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._key = os.environ.get(target.key_variable) or self._local_key()
        self.name = target.name
        self.host = target.host
        self.key_fp = blake2b(self._key.encode(), digest_size=6).hexdigest()
        self._sdk, self._transport_errors = _imported(target.dialect.api)
        maker = self._sdk.Anthropic if target.dialect.api == "messages" else self._sdk.OpenAI
        self._client: Any = maker(api_key=self._key, base_url=target.base, max_retries=0)

    def _local_key(self) -> str:
        if self._target.host.rsplit(":", 1)[0] in _LOCAL:
            return "local"
        raise BadSetting(f"{self._target.key_variable} is not set; {self._target.host} needs a key")

    def stream(self, body: bytes, feed: Feed) -> None:
        """See `Provider`."""
        try:
            with self._post(body, stream=True) as events:
                for event in events:
                    feed(event)
        except self._sdk.APIError as error:
            raise _failed(error) from None
        except self._transport_errors as error:  # a stream that breaks off is reported by the layer below
            raise ProviderFailed(f"{self.host}: the connection broke off ({type(error).__name__})") from None
        except ValueError as error:  # an event that is no JSON
            raise ProviderFailed(f"{self.host}: sent what is no JSON ({error})") from None

    def whole(self, body: bytes) -> JsonObject:
        """See `Provider`."""
        try:
            found = self._post(body, stream=False)
        except self._sdk.APIError as error:
            raise _failed(error) from None
        except ValueError as error:
            raise ProviderFailed(f"{self.host}: sent what is no JSON ({error})") from None
        if not isinstance(found, dict):
            raise ProviderFailed(f"{self.host}: sent {type(found).__name__} instead of a JSON object")
        return found

    def _post(self, body: bytes, *, stream: bool) -> Any:
        return self._client.post(
            self._target.path,
            cast_to=object,
            content=body,
            options={"headers": {"content-type": "application/json"}},
            stream=stream,
            stream_cls=self._sdk.Stream[object],
        )


def _imported(api: str) -> tuple[Any, type[Exception]]:
    """The SDK for a dialect, and the root of what its HTTP library raises. Raises `BadSetting` where it is missing."""
    try:
        import httpx2

        if api == "messages":
            import anthropic

            return anthropic, httpx2.HTTPError
        import openai
    except ImportError as error:
        raise BadSetting(f"the providers' SDKs are needed ({error}); pip install 'cachewright[run]'") from None
    return openai, httpx2.HTTPError


def _failed(error: Any) -> ProviderFailed:
    """The SDK's error as one line: status, the provider's own words."""
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    if status == 200:  # an error event in the middle of a stream: its type says what the status would have been
        status = _STATUS.get(str(inner.get("type")) if isinstance(inner, dict) else "")
    words = inner.get("message") if isinstance(inner, dict) else None
    text = " ".join(str(words or error).split())[:500]
    return ProviderFailed(
        f"the provider answered {status}: {text}" if status else f"no answer: {text}",
        status=status,
        retry_after_s=_retry_after(error),
    )


def _retry_after(error: Any) -> float | None:
    response = getattr(error, "response", None)
    try:
        seconds = float(response.headers["retry-after"]) if response is not None else 0.0
    except (KeyError, ValueError):
        return None
    return seconds if seconds > 0 else None  # neither "nan" nor what is over already
