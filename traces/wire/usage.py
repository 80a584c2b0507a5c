"""Providers' usage fields -> `Usage` with one meaning: `input_tokens` is the whole input, unknown is `None`.

| shape                       | recognised by                            | its input figure                     |
|-----------------------------|------------------------------------------|--------------------------------------|
| this project's own          | `read_tokens`, `write_tokens`            | whole                                |
| Gemini `usageMetadata`      | `promptTokenCount` and relatives         | whole                                |
| Gemini Interactions         | `total_input_tokens`                     | whole                                |
| OpenAI Chat and compatible  | `prompt_tokens`, `completion_tokens`     | whole                                |
| DeepSeek                    | `prompt_cache_hit_tokens` (+ Chat)       | whole = hit + miss                   |
| llama.cpp `timings`         | `prompt_n`                               | only what was computed               |
| OpenAI Responses            | `input_tokens_details`                   | whole                                |
| Anthropic Messages          | `cache_*_input_tokens`, `cache_creation` | only what was neither read nor written |

The field names decide, since a row of a compatible server may carry any label. The provider's name only breaks the
tie of a bare `{input_tokens, output_tokens}`: Anthropic's figure is then a remainder of an unknown whole, any other
provider's is the whole. Sources: the providers' API references and SDK types (Anthropic 2.14.0, OpenAI 3.57.0).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from traces.errors import MalformedRow
from traces.schema import JsonObject, Usage

MAX_COUNT = 2**53
"""Largest count accepted: above it JSON readers that use doubles would already have changed the number."""

_Raw: TypeAlias = Mapping[str, Any]
_Path: TypeAlias = tuple[str, ...]

_NATIVE = frozenset(("read_tokens", "write_tokens", "write_5m_tokens", "write_1h_tokens"))
_GEMINI = frozenset(("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "totalTokenCount"))
_INTERACTIONS = frozenset(("total_input_tokens", "total_cached_tokens"))
_CHAT = frozenset(("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens"))
_TIMINGS = frozenset(("prompt_n", "cache_n"))
_ANTHROPIC = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation"))
_REMAINDER_PROVIDERS = ("anthropic", "claude", "bedrock", "minimax")


def counts_remainder(provider: str) -> bool:
    """Whether this provider's `input_tokens` leaves out what was read from or written to the cache."""
    name = provider.lower()
    return any(known in name for known in _REMAINDER_PROVIDERS)


def normalise(raw: object, provider: str) -> Usage:
    """Usage as one provider reported it, in this project's names. `None` and unknown shapes give all unknown.

    Parts are never added twice: a lifetime split lies inside the written total, reasoning inside the output, a nested
    `cached_tokens` names the same tokens as a top-level hit count. Raises `MalformedRow` for a count that is no whole
    number from 0 to 2**53, and for parts larger than their total.
    """
    if raw is None:
        return Usage()
    if not isinstance(raw, dict):
        raise MalformedRow(f"usage: want an object, got {shown(raw)}")
    if not _NATIVE.isdisjoint(raw):
        return _native(raw)
    for names, convert in ((_GEMINI, _gemini), (_INTERACTIONS, _interactions), (_CHAT, _chat), (_TIMINGS, _timings)):
        if not names.isdisjoint(raw) and any(raw.get(name) is not None for name in names):
            return convert(raw)
    return _anthropic(raw) if _is_remainder(raw, provider) else _responses(raw)


def of_response(response: JsonObject, provider: str) -> Usage:
    """Usage found in a whole response: `usage`, Gemini's `usageMetadata`, or llama.cpp's `timings`.

    llama.cpp builds whose `usage` says nothing about the cache still count reused tokens in `timings.cache_n`.
    """
    raw = response.get("usage", response.get("usageMetadata"))
    timings = response.get("timings")
    usage = normalise(raw, provider)
    if usage.read_tokens is not None or not isinstance(timings, dict) or timings.get("cache_n") is None:
        return usage
    timed = normalise(timings, provider)
    if usage.input_tokens in (None, timed.input_tokens):
        return Usage(timed.input_tokens, timed.read_tokens, output_tokens=_either(usage, timed))
    return usage


def merge_stream(start: JsonObject, deltas: Iterable[JsonObject]) -> JsonObject:
    """One usage object of a streamed Anthropic reply: `message_start`'s, each field overwritten by later values.

    `message_delta` usage is cumulative, so the last value that is not null wins and nothing is added; null and absent
    leave the earlier value, an explicit 0 is a value. A delta may restate the written total but never its lifetime
    split, so a restated total drops the split of the old one.
    """
    merged = dict(start)
    for delta in deltas:
        total = delta.get("cache_creation_input_tokens")
        if total is not None and total != merged.get("cache_creation_input_tokens"):
            merged.pop("cache_creation", None)
        for name, value in delta.items():
            merged[name] = _overwrite(merged.get(name), value)
    return merged


def shown(value: object) -> str:
    """A JSON value for a message: its type, and the value itself where that is short; one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def checked(usage: Usage) -> Usage:
    """The same usage, or `MalformedRow` where its parts exceed their total."""
    read, write, short, long = usage.read_tokens, usage.write_tokens, usage.write_5m_tokens, usage.write_1h_tokens
    if usage.input_tokens is not None and (read or 0) + (write or 0) > usage.input_tokens:
        raise _too_large("the whole input", usage.input_tokens, read=read, write=write)
    if write is not None and (short or 0) + (long or 0) > write:
        raise _too_large("the written total", write, write_5m=short, write_1h=long)
    return usage


def count(value: object, name: str) -> int | None:
    """A token count, or `None` for null. `name` is the field for the message of `MalformedRow`."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedRow(f"{name}: want a whole number of tokens, got {shown(value)}")
    if value < 0:
        raise MalformedRow(f"{name} is {shown(value)}, a count is 0 or more")
    if value > MAX_COUNT:
        raise MalformedRow(f"{name} is {shown(value)}, more than {MAX_COUNT} (2**53)")
    return value


def _native(raw: _Raw) -> Usage:
    names = ("input_tokens", "read_tokens", "write_tokens", "write_5m_tokens", "write_1h_tokens", "output_tokens")
    return checked(Usage(*(_at(raw, name) for name in names)))


def _gemini(raw: _Raw) -> Usage:
    """Thinking is counted beside the candidates, so the output is their sum."""
    output, thoughts = _at(raw, "candidatesTokenCount"), _at(raw, "thoughtsTokenCount")
    if thoughts is not None:
        output = (output or 0) + thoughts
    return checked(Usage(_at(raw, "promptTokenCount"), _at(raw, "cachedContentTokenCount"), output_tokens=output))


def _interactions(raw: _Raw) -> Usage:
    whole, read = _at(raw, "total_input_tokens"), _at(raw, "total_cached_tokens")
    return checked(Usage(whole, read, output_tokens=_at(raw, "total_output_tokens")))


def _chat(raw: _Raw) -> Usage:
    """OpenAI Chat, DeepSeek, and servers like them; several names of one figure are alternatives, never summands.

    Kimi puts `cached_tokens` at the top; gateways that translate Anthropic repeat its names beside a whole
    `prompt_tokens`. DeepSeek has no write class: a miss is plain input.
    """
    hit, miss = _at(raw, "prompt_cache_hit_tokens"), _at(raw, "prompt_cache_miss_tokens")
    whole = _at(raw, "prompt_tokens")
    if whole is None and hit is not None and miss is not None:
        whole = hit + miss
    details = "prompt_tokens_details"
    nested = _first(raw, (details, "cached_tokens"), ("cached_tokens",), ("cache_read_input_tokens",))
    written = ((details, "cache_write_tokens"), (details, "cache_creation_tokens"), ("cache_creation_input_tokens",))
    read = nested if hit is None else hit
    return checked(Usage(whole, read, _first(raw, *written), output_tokens=_at(raw, "completion_tokens")))


def _responses(raw: _Raw) -> Usage:
    details = "input_tokens_details"
    read, write = _at(raw, details, "cached_tokens"), _at(raw, details, "cache_write_tokens")
    return checked(Usage(_at(raw, "input_tokens"), read, write, output_tokens=_at(raw, "output_tokens")))


def _timings(raw: _Raw) -> Usage:
    """llama.cpp: `prompt_n` tokens were computed, `cache_n` were reused in front of them."""
    computed, reused = _at(raw, "prompt_n"), _at(raw, "cache_n")
    whole = None if computed is None or reused is None else computed + reused
    return Usage(whole, reused, output_tokens=_at(raw, "predicted_n"))


def _anthropic(raw: _Raw) -> Usage:
    """Whole = remainder + read + written. Without a read figure the whole is unknown; a server that reports reads but
    no writes has no write class (as `Usage.uncached_tokens` takes it too)."""
    rest, read = _at(raw, "input_tokens"), _at(raw, "cache_read_input_tokens")
    short = _at(raw, "cache_creation", "ephemeral_5m_input_tokens")
    long = _at(raw, "cache_creation", "ephemeral_1h_input_tokens")
    write = _at(raw, "cache_creation_input_tokens")
    if short is not None and long is not None:
        write = short + long if write is None else write
        if short + long < write:
            short = long = None  # a split that leaves tokens out says nothing about them
    whole = None if rest is None or read is None else rest + read + (write or 0)
    return checked(Usage(whole, read, write, short, long, _at(raw, "output_tokens")))


def _is_remainder(raw: _Raw, provider: str) -> bool:
    anthropic = not _ANTHROPIC.isdisjoint(raw)
    if anthropic != ("input_tokens_details" in raw):
        return anthropic
    return counts_remainder(provider)


def _at(raw: _Raw, *path: str) -> int | None:
    """The count at a path of field names; `None` where any step is absent or null."""
    value: object = raw.get(path[0])
    for depth, name in enumerate(path[1:], 1):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise MalformedRow(f"usage.{'.'.join(path[:depth])}: want an object, got {shown(value)}")
        value = value.get(name)
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return value  # nearly always; the name for the message is not built in vain
    return count(value, f"usage.{'.'.join(path)}")


def _first(raw: _Raw, *paths: _Path) -> int | None:
    return next((found for path in paths if (found := _at(raw, *path)) is not None), None)


def _too_large(name: str, total: int, **parts: int | None) -> MalformedRow:
    words = " + ".join(f"{part} {tokens}" for part, tokens in parts.items() if tokens is not None)
    return MalformedRow(f"usage: {words} is more than {name}, {total}")


def _overwrite(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: value for name, value in new.items() if value is not None}
    return old if new is None else new


def _either(usage: Usage, other: Usage) -> int | None:
    return other.output_tokens if usage.output_tokens is None else usage.output_tokens
