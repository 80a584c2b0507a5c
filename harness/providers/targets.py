"""`--target` -> who is asked, where, and in which dialect.

A URL speaks Messages unless it ends in `/chat/completions` or `/responses`: the path says what is spoken, nothing is
guessed.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.dialects.chat import Chat
from harness.dialects.messages import Messages
from harness.dialects.responses import Responses
from harness.errors import BadSetting
from harness.wire import Dialect


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `base` is what the SDK takes, `path` is appended to it."""

    name: str
    base: str
    path: str
    dialect: Dialect
    key_variable: str

    @property
    def host(self) -> str:
        """Host of the base URL, with its port where it has one."""
        return urlsplit(self.base).netloc


HOSTED = {
    "anthropic": Target("anthropic", "https://api.anthropic.com", "/v1/messages", Messages(), "ANTHROPIC_API_KEY"),
    "openai": Target("openai", "https://api.openai.com/v1", "/responses", Responses(), "OPENAI_API_KEY"),
    "deepseek": Target(
        "deepseek", "https://api.deepseek.com", "/chat/completions", Chat(deepseek=True), "DEEPSEEK_API_KEY"
    ),
}
"""APIs by name."""


def target(text: str) -> Target:
    """The target of that name or URL. Raises `BadSetting`."""
    if text in HOSTED:
        return HOSTED[text]
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadSetting(f"--target {text!r}: want {', '.join(HOSTED)} or an http(s) URL")
    base, owner = text.rstrip("/"), hosted(parts.netloc)
    for end, dialect in (
        ("/chat/completions", Chat(deepseek=owner == HOSTED["deepseek"])),
        ("/responses", Responses()),
    ):
        if base.endswith(end):
            return _at(owner or HOSTED["openai"], base.removesuffix(end), end, dialect)
    base = base.removesuffix("/messages").removesuffix("/v1")
    return _at(owner or HOSTED["anthropic"], base, "/v1/messages", Messages())


def hosted(host: str) -> Target | None:
    """Whose API is at this host; `None` for servers of one's own and for others' that speak the same."""
    name = host.rsplit(":", 1)[0]
    return next((one for one in HOSTED.values() if f".{name}".endswith(f".{one.name}.com")), None)


def _at(owner: Target, base: str, path: str, dialect: Dialect) -> Target:
    """Named after the owner, else after the maker of the dialect that is spoken, whose key is used too."""
    return Target(owner.name, base, path, dialect, owner.key_variable)
