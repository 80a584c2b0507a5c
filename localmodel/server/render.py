"""A request as the cache and the model see it: ordered blocks, exact tokens of each, the whole as one list of tokens.

Each block is rendered by itself, so that a block has the same tokens wherever it stands and the sum over the blocks is
the prompt. A model with a chat template of its own replaces `text_of`.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from localmodel.server.canon import canonical_body
from localmodel.server.model import Backend
from traces.canonical import Interner, canonical, dump
from traces.schema import Call, JsonObject, Prompt
from traces.wire import anthropic

PROVIDER, HOST = "anthropic", "localhost"
_MEDIA = ("image", "document", "input_audio", "input_file")


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
    for part in anthropic.parts(body):
        found = backend.tokenise(text_of(part))
        tokens.extend(found)
        counts[part.path] = len(found)
    call = Call("", "", PROVIDER, None, api="messages", host=HOST, key_fp=who.space, model=body.get("model"),
                betas=who.betas, request=body, tokens=counts)  # fmt: skip
    # The interner keeps all it has seen, so each request gets its own: a server must not grow with its clients.
    prompt = canonical(call, Interner(lambda raw: 0))
    assert prompt is not None
    return Rendered(body, prompt, tokens, _as_sent(counts) if dropped else counts)


def _as_sent(counts: Mapping[str, int]) -> dict[str, int]:
    """Pointers of the canonical body moved back to those of the body from which the first system block was dropped."""
    moved = {"/system/0": 0}
    for path, count in counts.items():
        head, _, index = path.rpartition("/")
        moved[f"/system/{int(index) + 1}" if head == "/system" else path] = count
    return moved


def text_of(part: anthropic.Part) -> str:
    """A block's text for the model: what it is, then its content; markers are not content."""
    value, _ = anthropic.strip_marks(part.value)
    kind = value.get("type")
    if part.path.startswith("/tools/"):
        return f"<tool>\n{_json(value)}\n"
    if kind == "text" and isinstance(value.get("text"), str):
        return f"<{part.role or 'system'}>\n{value['text']}\n"
    if kind == "tool_use":
        return f"<call {value.get('name')}>\n{_json(value.get('input'))}\n"
    if kind == "tool_result":
        return f"<result>\n{_result_text(value.get('content'))}\n"
    return f"<{part.role or 'system'}>\n{_json(_without_media(value))}\n"


def _result_text(content: Any) -> str:
    blocks = content if isinstance(content, list) else []
    texts = [
        str(block.get("text")) if isinstance(block, dict) and block.get("type") == "text" else _json(block)
        for block in map(_without_media, blocks)
    ]
    return "\n".join(texts)


def _without_media(block: Any) -> Any:
    """Media by digest: the scripted model reads no images, but another image is another prompt."""
    if not isinstance(block, dict) or block.get("type") not in _MEDIA:
        return block
    return {"type": block["type"], "digest": blake2b(dump(block), digest_size=8).hexdigest()}


def _json(value: Any) -> str:
    return dump(value).decode(errors="replace")
