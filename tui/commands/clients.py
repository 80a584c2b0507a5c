"""How the known clients are pointed at the proxy, for one child process only.

Most read a base URL from the environment. Codex takes `-c` options, opencode a configuration in its environment, Pi a
folder: its own is linked into a temporary one, in which only `models.json` differs. The base URLs that the user has set
already are where the proxy forwards to.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from harness.proxy.routes import KNOWN, Origin, origin_of

# Upstream, the environment's names of its base URL, and the path that such a URL ends with.
_BASES = (
    ("anthropic", ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), ""),
    ("openai", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "/v1"),
    ("deepseek", ("DEEPSEEK_BASE_URL", "DEEPSEEK_API_BASE"), ""),
)
_AIDER = {"anthropic": "AIDER_ANTHROPIC_API_BASE", "openai": "AIDER_OPENAI_API_BASE"}
_NO_PROXY = "127.0.0.1,localhost"


def upstreams_of(environment: Mapping[str, str], upstream: str | None) -> list[Origin]:
    """The upstream of each provider: `--upstream`, else the base URL that is set already, else the provider's own.

    Of a base URL only scheme, host and port make the upstream: its path stays in the URL that the child gets. Raises
    BadRoute.
    """
    found = []
    for name, variables, _ in _BASES:
        url = upstream or _set_url(environment, variables)
        if url is not None and upstream is None:
            parts = urlsplit(url)
            url = f"{parts.scheme}://{parts.netloc}"
        found.append(origin_of(f"{name}={url or KNOWN[name]}"))
    return found


def base_urls(environment: Mapping[str, str], proxy: str, upstream: str | None) -> dict[str, str]:
    """The child's base URL for each provider, with the path of the one that was set before."""
    urls = {}
    for name, variables, path in _BASES:
        known = None if upstream else _set_url(environment, variables)
        urls[name] = f"{proxy}/to/{name}" + (path if known is None else urlsplit(known).path.rstrip("/"))
    return urls


@contextlib.contextmanager
def prepared(
    words: tuple[str, ...], environment: Mapping[str, str], proxy: str, upstream: str | None
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command's words and environment, changed so that its calls go through the proxy at the URL `proxy`."""
    urls = base_urls(environment, proxy, upstream)
    changed = dict(environment)
    for name, variables, _ in _BASES:
        changed |= dict.fromkeys(variables, urls[name])
    changed |= {variable: urls[name] for name, variable in _AIDER.items()}
    # An HTTP proxy in between would not find this machine's own address.
    for variable in ("NO_PROXY", "no_proxy"):
        changed[variable] = ",".join(filter(None, (changed.get(variable), _NO_PROXY)))
    program = Path(words[0]).name
    if program == "codex":
        yield [words[0], *_codex(urls["openai"]), *words[1:]], changed
    elif program == "opencode":
        yield list(words), changed | {"OPENCODE_CONFIG_CONTENT": _opencode(changed, urls)}
    elif program == "pi":
        with _pi(changed, urls) as folder:
            yield list(words), changed | {"PI_CODING_AGENT_DIR": str(folder)}
    else:
        yield list(words), changed


def _set_url(environment: Mapping[str, str], variables: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in variables if environment.get(name)), None)


def _codex(url: str) -> list[str]:
    """Codex speaks Responses only; options in front of the user's own, which win."""
    return ["-c", f'openai_base_url="{url}"']


def _opencode(environment: Mapping[str, str], urls: Mapping[str, str]) -> str:
    """Its base URLs end in /v1 for both APIs. What the user has in that variable stays."""
    try:
        config = json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
    except json.JSONDecodeError:
        config = {}
    providers = config.setdefault("provider", {})
    for name, url in (("anthropic", f"{urls['anthropic']}/v1"), ("openai", urls["openai"])):
        providers.setdefault(name, {}).setdefault("options", {})["baseURL"] = url
    return json.dumps(config)


@contextlib.contextmanager
def _pi(environment: Mapping[str, str], urls: Mapping[str, str]) -> Iterator[Path]:
    """A folder that is the user's own but for `models.json`, in which providers get the proxy's URL."""
    home = Path(environment.get("HOME", "~")).expanduser()
    own = Path(environment.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent")
    own.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cachewright-pi-") as name:
        folder = Path(name)
        for entry in own.iterdir():
            if entry.name != "models.json":
                (folder / entry.name).symlink_to(entry)
        for kept in ("sessions",):  # what it makes for the first time must not go with the folder
            (own / kept).mkdir(exist_ok=True)
            if not (folder / kept).exists():
                (folder / kept).symlink_to(own / kept)
        (folder / "models.json").write_text(json.dumps(_pi_models(own / "models.json", urls)))
        yield folder


def _pi_models(path: Path, urls: Mapping[str, str]) -> dict[str, object]:
    try:
        models = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        models = {}
    providers = models.setdefault("providers", {})
    for name, url in urls.items():
        providers.setdefault(name, {})["baseUrl"] = url
    return dict(models)
