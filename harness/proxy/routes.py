"""Which upstream a request goes to, and which run and agent it belongs to.

A client's base URL may carry prefixes, which are taken off before forwarding; everything behind them is forwarded raw:

    /run/NAME           the run (trace) that the call is recorded under
    /agent/NAME         the agent within it
    /to/UPSTREAM        the upstream by name; without it the path decides (`/messages`: Anthropic, else OpenAI)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from harness.errors import BadRoute

KNOWN = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
    "deepseek": "https://api.deepseek.com",
}
"""Upstreams by name where none is given."""

DEFAULT_RUN = "proxy"

# By the end of the path, so that any base path in front of it will do. `count` is no inference: it reads no cache.
_APIS = (
    (b"/messages/count_tokens", "count"),
    (b"/messages", "messages"),
    (b"/chat/completions", "chat"),
    (b"/responses", "responses"),
)
_TAGS = (b"run", b"agent", b"to")


@dataclass(frozen=True, slots=True)
class Origin:
    """An upstream: where to connect, and the path in front of what a client asks for ("" mostly)."""

    name: str
    scheme: str
    host: str
    port: int
    base: str = ""

    @property
    def authority(self) -> str:
        """The Host header: the port is left out where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The upstream as it was given."""
        return f"{self.scheme}://{self.authority}{self.base}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one request goes: `path` is the raw path and query to send, `api` the API it calls (`None`: another)."""

    origin: Origin
    path: bytes
    run: str | None = None
    agent: str | None = None
    api: str | None = None


def api_of(path: bytes) -> str | None:
    """The API that a raw path (query and all) calls, `None` for model lists, health checks and the like."""
    bare = path.partition(b"?")[0].rstrip(b"/")
    return next((api for end, api in _APIS if bare.endswith(end)), None)


def origin_of(spec: str) -> Origin:
    """The upstream that `URL` or `NAME=URL` describes. Raises BadRoute."""
    name, separator, url = spec.partition("=")
    if not separator or "/" in name:
        name, url = "", spec
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
        raise BadRoute(f"--upstream {_shown(url)}: no such URL; want http(s)://HOST[:PORT][/PATH] or NAME=URL")
    if parts.username or parts.password:
        raise BadRoute(f"--upstream {parts.hostname}: holds a user name or password; send it in the client's headers")
    known = next((key for key, value in KNOWN.items() if urlsplit(value).hostname == parts.hostname), "")
    port = port or (443 if parts.scheme == "https" else 80)
    return Origin(name or known, parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


class Routes:
    """The upstreams of one proxy. A single one gets everything; of several, unnamed ones get what no named one does."""

    def __init__(self, upstreams: Sequence[Origin] = ()) -> None:
        origins = list(upstreams) or [origin_of(f"{name}={url}") for name, url in KNOWN.items()]
        self.origins = origins
        self.names = {origin.name: origin for origin in origins if origin.name}
        unnamed = [origin for origin in origins if not origin.name]
        if len(unnamed) > 1:
            url = unnamed[1].url
            raise BadRoute(f"--upstream {url}: {len(unnamed)} upstreams have no name; write NAME={url}")
        self.default = unnamed[0] if unnamed else origins[0] if len(origins) == 1 else None

    def find(self, raw: bytes, headers: Iterable[tuple[bytes, bytes]], method: bytes = b"POST") -> Target:
        """Where the request for a raw path and query goes. Raises BadRoute."""
        tags, path = untag(raw)
        api = api_of(path) if method == b"POST" else None
        origin = self._origin(tags.get("to"), api, headers)
        return Target(origin, origin.base.encode() + path, tags.get("run"), tags.get("agent"), api)

    def _origin(self, name: str | None, api: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Origin:
        if name is None:
            claude = api in ("messages", "count") or any(key.lower() == b"anthropic-version" for key, _ in headers)
            origin = self.names.get("anthropic" if claude else "openai", self.default)
        else:
            origin = self.names.get(name, self.default)
        if origin is None:
            want = f"/to/{_shown(name)}" if name else "this path"
            raise BadRoute(f"no upstream for {want}; this proxy forwards to {', '.join(sorted(self.names))}")
        return origin


def untag(raw: bytes) -> tuple[dict[str, str], bytes]:
    """The prefixes of a raw path by name, and what is left of it."""
    tags: dict[str, str] = {}
    while True:
        steps = raw.split(b"/", 3)
        if len(steps) < 3 or steps[0] or steps[1] not in _TAGS or not steps[2].partition(b"?")[0]:
            return tags, raw
        value, mark, query = steps[2].partition(b"?")
        tags[steps[1].decode()] = unquote_to_bytes(value).decode(errors="replace")
        raw = b"/" + (mark + query if mark else steps[3] if len(steps) == 4 else b"")


def _shown(text: str | None) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in (text or "")[:80])
