"""What all SDK clients of the probes share: one HTTP client that sends one key and nothing else of the environment.

The SDKs read much from the environment (other credentials, base URLs, header lines). A probe must send what its report
says it sent, so every request passes `_only`, which drops each header that is not on a short list.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from probes.api.exchange import Clock, Exchange
from probes.api.secret import Scrubber
from probes.api.target import Target
from probes.errors import BadTarget

TIMEOUT_S = 300.0
CONNECT_S = 10.0

_PASS = ("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent")
_CREDENTIALS = ("authorization", "x-api-key")


def http_client(target: Target, key: str) -> Any:
    """An `httpx2.Client` for one target and key. It follows no redirect: that would hand the key on."""
    import httpx2

    def only(request: "httpx2.Request") -> None:
        for name in list(request.headers):
            if not _allowed(name.lower(), request.headers[name], key):
                del request.headers[name]

    return httpx2.Client(
        follow_redirects=False,
        trust_env=not target.local,  # a proxy of the environment has no business with this machine's own server
        timeout=httpx2.Timeout(TIMEOUT_S, connect=CONNECT_S),
        event_hooks={"request": [only]},
    )


def sdk_clients(make: Callable[..., Any], target: Target, keys: Sequence[str]) -> list[Any]:
    """One client of an SDK (`make` is its class) for each key; none of them ever retries by itself."""
    return [
        make(
            api_key=key,
            base_url=target.base_url,
            max_retries=0,
            timeout=TIMEOUT_S,
            http_client=http_client(target, key),
        )
        for key in keys
    ]


def _allowed(name: str, value: str, key: str) -> bool:
    if name in _CREDENTIALS:
        return value in (key, f"Bearer {key}")
    return name in _PASS or name == "anthropic-version" or name.startswith("x-stainless-")


def sdk(name: str) -> Any:
    """A vendor's SDK, imported when a probe begins. Raises `BadTarget` where it is not installed."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise BadTarget(f"probe needs the package {name}: pip install 'cachewright[probe]'") from None


@contextmanager
def recorded(exchange: Exchange, clock: Clock, scrub: Scrubber, api_error: type[Exception]) -> Iterator[None]:
    """Whatever goes wrong inside becomes the exchange's `status` and `error`; an interrupt is noted and goes on."""
    import httpx2

    try:
        yield
    except (api_error, httpx2.HTTPError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        # RuntimeError: the client was closed meanwhile. The last three: JSON of another shape than any answer has.
        exchange.status, exchange.error = _told(exchange, error, scrub)
    except KeyboardInterrupt:
        exchange.error = "stopped by the user"
        raise
    finally:
        exchange.ended_s = clock.steady()
        exchange.complete = exchange.complete and exchange.error is None
        if not exchange.complete and exchange.error is None:
            exchange.error = "the stream ended before the response was complete"
        exchange.begun.set()


def _told(exchange: Exchange, error: Exception, scrub: Scrubber) -> tuple[int | None, str]:
    """(HTTP status, a short text) for a failure."""
    status = getattr(error, "status_code", None)
    said = scrub.message(_message(error))
    if exchange.began_s is not None:
        return exchange.status, f"broke off: {said}"
    if isinstance(status, int):
        return status, f"http {status}: {said}"
    return None, f"no answer: {said}"


def _message(error: Exception) -> str:
    """What the API said: its error object's type and message, else the exception and what caused it."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(inner, dict) and inner.get("message"):
        kind = inner.get("type")
        return f"{kind}: {inner['message']}" if kind else f"{inner['message']}"
    cause = error.__cause__
    detail = f" ({cause})" if cause is not None and str(cause) not in str(error) else ""
    return f"{str(error) or type(error).__name__}{detail}"
