"""Who is asked: a hosted API by name, or any compatible server by URL; and with which key.

A hosted API's key is read from its own environment variable and is sent to that API only. A server given by URL never
gets it: its key comes from a variable of its own, so that a URL on a command line cannot draw a paid key to itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import ip_address
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from probes.errors import BadTarget

Api: TypeAlias = Literal["messages", "chat", "responses"]

URL_KEY = "CACHEWRIGHT_PROBE_KEY"
SECOND_KEY = "CACHEWRIGHT_PROBE_SECOND_KEY"


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint. `rules` names the ruleset its cache should follow; `local`: on this machine, costs nothing.

    `second_variable` holds the key of another workspace or account, for the probe of isolation.
    """

    name: str
    provider: str
    api: Api
    base_url: str
    host: str
    rules: str
    key_variable: str
    local: bool = False
    second_variable: str = SECOND_KEY


_HOSTED = {
    "anthropic": Target("anthropic", "anthropic", "messages", "https://api.anthropic.com", "api.anthropic.com",
                        "anthropic", "ANTHROPIC_API_KEY"),
    "openai": Target("openai", "openai", "responses", "https://api.openai.com/v1", "api.openai.com",
                     "openai", "OPENAI_API_KEY"),
    "deepseek": Target("deepseek", "deepseek", "chat", "https://api.deepseek.com", "api.deepseek.com",
                       "deepseek", "DEEPSEEK_API_KEY"),
}  # fmt: skip
_SPOKEN: Mapping[str, tuple[Api, ...]] = {
    "anthropic": ("messages",),
    "openai": ("responses", "chat"),
    "deepseek": ("chat",),
}


def target_of(name: str, api: Api | None = None) -> Target:
    """The target called `name`: anthropic, openai, deepseek, or a URL. Raises `BadTarget`."""
    if name not in _HOSTED:
        return _by_url(name, api or "messages")
    hosted = _HOSTED[name]
    if api is not None and api not in _SPOKEN[name]:
        raise BadTarget(f"--api {api}: {name} is probed through {' or '.join(_SPOKEN[name])}")
    return hosted if api is None else _with_api(hosted, api)


def _with_api(target: Target, api: Api) -> Target:
    return Target(target.name, target.provider, api, target.base_url, target.host, target.rules, target.key_variable)


def _by_url(name: str, api: Api) -> Target:
    try:
        parts = urlsplit(name)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadTarget(f"--target: no URL ({error}); write http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        raise BadTarget(f"--target: the URL holds a user name or password; put the key into {URL_KEY}")
    if parts.scheme not in ("http", "https") or not host:
        known = ", ".join(_HOSTED)
        raise BadTarget(f"--target {name}: neither {known} nor a URL such as http://127.0.0.1:8377")
    if parts.query or parts.fragment:
        raise BadTarget("--target: the URL has a query or a fragment; give the base URL alone")
    provider = "anthropic" if api == "messages" else "openai"
    base = name.rstrip("/")
    if api == "messages":
        base = base.removesuffix("/v1")
    elif not base.endswith("/v1"):
        base += "/v1"
    return Target(name, provider, api, base, host, provider, URL_KEY, local=_is_local(host))


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def key_of(target: Target, environ: Mapping[str, str], ask: Callable[[str], str] | None) -> str:
    """The key for `target`: from the environment, else asked for (`ask` does not echo; `None`: nobody can be asked).

    A local server gets a word instead. Raises `BadTarget`.
    """
    key = environ.get(target.key_variable, "").strip()
    if not key and target.local:
        return "local-probe-key"
    if not key and ask is not None:
        key = ask(f"Key for {target.host} (not shown)").strip()
    if not key:
        raise BadTarget(f"{target.host}: no key; set {target.key_variable}")
    return _checked(target, key, target.key_variable)


def second_key_of(target: Target, environ: Mapping[str, str]) -> str | None:
    """A key of another workspace, `None` where the environment has none. Raises `BadTarget`."""
    key = environ.get(target.second_variable, "").strip()
    if not key:
        return "local-second-key" if target.local else None
    return _checked(target, key, target.second_variable)


def _checked(target: Target, key: str, variable: str) -> str:
    if not key.isascii() or not key.isprintable() or len(key) < 4 or " " in key:
        raise BadTarget(f"{variable}: no usable key (want at least 4 printable ASCII characters without spaces)")
    if not target.local and not target.base_url.startswith("https://"):
        raise BadTarget(f"--target {target.name}: would send the key unencrypted; use https")
    return key


def fingerprint(key: str) -> str:
    """What tells keys apart in a trace without telling them."""
    return blake2b(key.encode(), digest_size=8).hexdigest()
