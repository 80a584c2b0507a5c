"""Which ruleset a call is judged by: its provider's own, as far as one is built in, or the one that the user forces."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path

from localmodel.rules.load import Ruleset, load
from localmodel.rules.types import Rules

PROVIDERS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "claude_platform_aws": "anthropic",
    "bedrock": "bedrock",
    "amazon-bedrock": "bedrock",
    "aws": "bedrock",
    "google_cloud": "google_claude",
    "vertex": "gemini",
    "vertex_ai": "gemini",
    "google-vertex": "gemini",
    "gemini": "gemini",
    "google": "gemini",
    "openai": "openai",
    "openai-codex": "openai",
    "codex": "openai",
    "azure": "openai",
    "azure_openai": "openai",
    "azure_foundry": "openai",
    "deepseek": "deepseek",
    "qwen": "qwen",
    "alibaba": "qwen",
    "dashscope": "qwen",
    "moonshotai": "kimi",
    "moonshot": "kimi",
    "kimi": "kimi",
    "zai": "zai",
    "zhipu": "zai",
    "z-ai": "zai",
    "xai": "xai",
    "x-ai": "xai",
    "minimax": "minimax",
    "openrouter": "openrouter",
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "llama.cpp": "llamacpp",
}
"""Names under which recorders know the providers, each with its ruleset."""

_CLOUDS = {"vertex": "google_claude", "vertex_ai": "google_claude", "google-vertex": "google_claude",
           "azure_foundry": "anthropic"}  # fmt: skip
# Behind a router a model keeps the rules of its maker.
_MAKERS = (("claude", "anthropic"), ("gpt-", "openai"), ("deepseek", "deepseek"), ("gemini", "gemini"),
           ("qwen", "qwen"), ("kimi", "kimi"), ("glm-", "zai"), ("grok-", "xai"), ("minimax", "minimax"))  # fmt: skip


def ruleset_name(provider: str, model: str) -> str | None:
    """The built-in ruleset for a provider's model, `None` where there is none."""
    word, plain = provider.lower(), model.lower().rsplit("/", 1)[-1]
    if "claude" in plain and word in _CLOUDS:
        return _CLOUDS[word]
    if word == "openrouter":
        return next((name for start, name in _MAKERS if plain.startswith(start)), "openrouter")
    return PROVIDERS.get(word)


@cache
def built_in(name: str) -> Ruleset:
    """A ruleset that comes with the package, read once."""
    return load(name)


@cache
def _built_in_digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return blake2b(b"\0".join(file.read_bytes() for file in files), digest_size=16).hexdigest()


class Rulebook:
    """Rulesets by provider. `forced` judges every call instead, whoever served it."""

    def __init__(self, forced: Ruleset | None = None) -> None:
        self._forced = forced
        self._loaded: dict[str, Ruleset] = {}
        self._names: dict[tuple[str, str], str | None] = {}

    def of(self, provider: str, model: str) -> Ruleset | None:
        """The ruleset of a provider's model, `None` where none is known."""
        if self._forced is not None:
            return self._forced
        key = (provider, model)
        if key not in self._names:
            self._names[key] = ruleset_name(provider, model)
        name = self._names[key]
        if name is not None and name not in self._loaded:
            self._loaded[name] = built_in(name)
        return None if name is None else self._loaded[name]

    def rules(self, provider: str, model: str, platform: str, moment: datetime | None) -> Rules | None:
        """The rules in force for one call, `None` where no ruleset is known."""
        found = self.of(provider, model)
        return None if found is None else found.at(model, platform, moment)

    @property
    def used(self) -> tuple[Ruleset, ...]:
        """The rulesets asked for so far."""
        return (self._forced,) if self._forced is not None else tuple(self._loaded.values())

    @property
    def provider(self) -> str:
        """The providers that the rulesets are about, in one word or several."""
        return "+".join(each.provider for each in self.used) or "none"

    @property
    def basis(self) -> str:
        """Names all rulesets that a call could be judged by; what was worked out under others holds no more."""
        return self._forced.digest if self._forced is not None else _built_in_digest()

    @property
    def digest(self) -> str:
        """Names the rulesets used: that of the only one, else all of them."""
        return "+".join(each.digest for each in self.used)
