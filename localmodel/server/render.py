"""A request as the cache and the model see it: ordered blocks, exact tokens of each, the whole as one list of tokens.

Each block is rendered by itself, so that a block has the same tokens wherever it stands. The prompt is their sum, with
what the model's template puts in front (counted to the first block) and behind (the prompt's tail).
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from localmodel.server.canon import canonical_body
from localmodel.server.model import Backend
from traces.canonical import Interner, canonical
from traces.schema import Call, JsonObject, Level, Prompt
from traces.wire import anthropic

PROVIDER, HOST = "anthropic", "localhost"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `key` is the fingerprint of the API key, `space` that of the namespace in which entries are shared."""

    key: str
    space: str
    betas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """`counts` maps JSON pointers into the body as sent (after mapping from another dialect) to tokens."""

    body: JsonObject
    prompt: Prompt
    tokens: "array[int]"
    counts: Mapping[str, int]


def caller(key: str | None, cache_key: Any = None, betas: tuple[str, ...] = ()) -> Caller:
    """The caller behind an API key (`None`: none was sent) and a `prompt_cache_key`. Keys are kept as digests only."""
    name = "anonymous" if key is None else blake2b(key.encode(errors="replace"), digest_size=8).hexdigest()
    if not isinstance(cache_key, str) or not cache_key:
        return Caller(name, name, betas)
    part = blake2b(cache_key.encode(errors="replace"), digest_size=8).hexdigest()
    return Caller(name, f"{name}-{part}", betas)


def render(sent: JsonObject, backend: Backend, who: Caller) -> Rendered:
    """The Messages body `sent` rendered for `backend`. Raises `MalformedRow` for shapes that no request has."""
    body, dropped = canonical_body(sent)
    tokens, counts = array("q"), {}
    parts = list(anthropic.parts(body))
    tokens.extend(backend.opening(bare=not parts or parts[0].level == Level.MESSAGES))
    start = 0
    for part in parts:
        tokens.extend(backend.block(part))
        counts[part.path], start = len(tokens) - start, len(tokens)
    tokens.extend(backend.asking())
    call = Call("", "", PROVIDER, None, api="messages", host=HOST, key_fp=who.space, model=body.get("model"),
                betas=who.betas, request=body, tokens=counts)  # fmt: skip
    # The interner keeps all it has seen, so each request gets its own: a server must not grow with its clients.
    prompt = canonical(call, Interner(lambda raw: 0))
    assert prompt is not None
    prompt = replace(prompt, tail=len(tokens) - start)
    return Rendered(body, prompt, tokens, _as_sent(counts) if dropped else counts)


def _as_sent(counts: Mapping[str, int]) -> dict[str, int]:
    """Pointers of the canonical body moved back to those of the body from which the first system block was dropped."""
    moved = {"/system/0": 0}
    for path, count in counts.items():
        head, _, index = path.rpartition("/")
        moved[f"/system/{int(index) + 1}" if head == "/system" else path] = count
    return moved
