"""Whom a recorded HTTP request went to: provider, API and key by URL and headers. No secret leaves this module."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from traces.schema import JsonObject

# Part of a host name -> provider, the first that fits.
_HOSTS = (
    ("bedrock", "bedrock"),
    ("aiplatform.googleapis", "vertex"),
    ("generativelanguage.googleapis", "gemini"),
    ("cloudcode-pa.googleapis", "gemini"),
    ("api.anthropic.", "anthropic"),
    ("openai.azure.", "azure"),
    ("services.ai.azure.", "azure_foundry"),
    ("api.openai.", "openai"),
    ("chatgpt.com", "openai"),
    ("openrouter.", "openrouter"),
    ("deepseek.", "deepseek"),
    ("dashscope", "qwen"),
    ("moonshot.", "kimi"),
    ("minimax", "minimax"),
    ("api.z.ai", "zai"),
    ("bigmodel.cn", "zai"),
    ("api.x.ai", "xai"),
    ("githubcopilot.", "copilot"),
)
# Other tools' words for a provider -> ours.
_NAMES = {
    "amazon-bedrock": "bedrock",
    "aws.bedrock": "bedrock",
    "aws_bedrock": "bedrock",
    "google": "gemini",
    "google-gemini": "gemini",
    "google-vertex": "vertex",
    "google-vertex-anthropic": "vertex",
    "vertex_ai": "vertex",
    "gcp.gemini": "gemini",
    "gcp.gen_ai": "gemini",
    "gcp.vertex_ai": "vertex",
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure_foundry",
    "az.ai.openai": "azure",
    "openai-codex": "openai",
    "moonshot": "kimi",
    "moonshotai": "kimi",
    "moonshot_ai": "kimi",
    "alibaba": "qwen",
    "dashscope": "qwen",
    "x_ai": "xai",
    "x-ai": "xai",
    "z-ai": "zai",
    "github-copilot": "copilot",
}
# Model names that only one maker gives.
_MODELS = (
    ("claude", "anthropic"),
    ("gpt-", "openai"),
    ("deepseek", "deepseek"),
    ("gemini", "gemini"),
    ("qwen", "qwen"),
    ("kimi", "kimi"),
    ("minimax", "minimax"),
    ("glm-", "zai"),
    ("grok", "xai"),
)
_APIS = (
    (re.compile(r"/messages/count_tokens$"), "count"),
    (re.compile(r"/messages$"), "messages"),
    (re.compile(r"/model/[^/]+/(invoke|invoke-with-response-stream)$"), "messages"),
    (re.compile(r":(rawPredict|streamRawPredict)$"), "messages"),
    (re.compile(r"/model/[^/]+/(converse|converse-stream)$"), "converse"),
    (re.compile(r"/chat/completions$"), "chat"),
    (re.compile(r"/responses(/compact)?$"), "responses"),
    (re.compile(r":(generateContent|streamGenerateContent)$"), "generate_content"),
    (re.compile(r"/completions?$"), "completions"),
)
_KEY_HEADERS = ("x-api-key", "authorization", "api-key", "x-goog-api-key")
_MASKED = re.compile(r"\.\.\.|\*\*|…|redacted|masked|^\[m:|^<", re.IGNORECASE)


class Endpoint(NamedTuple):
    """`api` is `None` where no model is asked by this request; `model` where the path names one."""

    provider: str
    host: str | None
    api: str | None
    model: str | None


def endpoint(url: str, headers: Mapping[str, str], body: JsonObject) -> Endpoint:
    """Provider, host, API and model of a request; `url` may be a path alone. Query and user part are dropped."""
    try:
        split = urlsplit(url)
        host = split.hostname or _host_header(headers.get("host", ""))
        path = split.path.rstrip("/")
    except ValueError:
        return Endpoint("unknown", None, None, None)
    host = None if host is None or _MASKED.search(host) else host
    api = next((name for pattern, name in _APIS if pattern.search(path)), None)
    found = re.search(r"/models?/([^/:]+)[/:]", path)
    model = body.get("model")
    model = model if isinstance(model, str) else found[1] if found else None
    return Endpoint(_provider(host, api, model or "", headers), host, api, model)


def provider_named(name: str | None, model: str | None = None) -> str:
    """Our word for a provider that a tool names; without a name, the maker that the model's name tells, else
    "unknown"."""
    if name:
        lower = name.lower()
        return _NAMES.get(lower, lower)
    return maker_of(model or "") or "unknown"


def maker_of(model: str) -> str | None:
    """The maker of a model by its name, which is not always who serves it."""
    lower = model.lower().rpartition("/")[2]
    return next((maker for word, maker in _MODELS if lower.startswith(word)), None)


def counts_writes(provider: str, model: str | None, api: str | None = None) -> bool:
    """Whether a provider reports written tokens for this model, so that a 0 in a tool's row is a 0."""
    if api is not None and ("anthropic" in api or api == "messages"):
        return True
    return provider == "anthropic" or "claude" in (model or "").lower()


def fingerprint(headers: Mapping[str, str]) -> str | None:
    """What tells the keys of one recorder apart and gives none away: 32 bits of a keyed digest.

    `headers` by lower-case name. `None` without a key, and for a masked one, since equal masks hide different keys.
    """
    for name in _KEY_HEADERS:
        value = headers.get(name, "").strip()
        if value and not _MASKED.search(value):
            secret = value.rpartition(" ")[2].encode(errors="replace")
            return hashlib.blake2b(secret, digest_size=4, key=b"cachewright key_fp").hexdigest()
    return None


def flat_headers(raw: object) -> dict[str, str]:
    """Headers by lower-case name from any shape that recorders use: an object, or a list of pairs or of objects."""
    pairs: Iterable[object] = raw.items() if isinstance(raw, dict) else raw if isinstance(raw, list) else ()
    found: dict[str, str] = {}
    for pair in pairs:
        if isinstance(pair, dict):
            pair = (pair.get("name"), pair.get("value"))
        if isinstance(pair, tuple | list) and len(pair) == 2:
            name, value = pair
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(name, str) and isinstance(value, str):
                found.setdefault(name.lower(), value)
    return found


def betas_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Names in the `anthropic-beta` header, in its order."""
    return tuple(name.strip() for name in headers.get("anthropic-beta", "").split(",") if name.strip())


def _provider(host: str | None, api: str | None, model: str, headers: Mapping[str, str]) -> str:
    known = next((name for word, name in _HOSTS if word in (host or "")), None)
    if known:
        return known
    if api in ("messages", "count") and (maker_of(model) == "anthropic" or (host is None and not model)):
        return "anthropic"  # through a gateway
    if api == "generate_content":
        return "gemini"
    maker = maker_of(model)
    if maker is None and "anthropic-version" in headers and host is None:
        maker = "anthropic"
    return maker or "unknown"


def _host_header(value: str) -> str | None:
    return None if not value or _MASKED.search(value) else value.partition(":")[0] or None
