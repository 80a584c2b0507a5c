"""Boundaries that the provider places: any common beginning, ends of messages, persisted units, handles.

Tokens of a prompt are known by block, so a hit ends at the last block that is wholly repeated: a provider that compares
tokens may find some more inside the first block that differs. None of these caches promises its hits (`guaranteed`):
what is predicted is what could have been read.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from localmodel.rules.plan import Bill, Lookup, Plan, Points, Updates, alive, point_at, readable, refreshed
from localmodel.rules.types import Breakpoint, Entry, EntryKey, Rules, writes_reported
from traces.schema import Level, Prompt, Ttl
from traces.wire.gemini import HANDLE


def class_of(prompt: Prompt, rules: Rules) -> Ttl:
    """The class of lifetime of what the provider caches by itself: as asked for, else the provider's default."""
    asked = next((text for name, text in prompt.params if name == "prompt_cache_retention"), None)
    if asked is not None and rules.boundaries == "every_block":
        return "1h" if asked == '"24h"' else "5m"
    return prompt.automatic if prompt.automatic == "1h" else rules.default_ttl


# ---- any common beginning (OpenAI before GPT-5.6, xAI, Z.ai, implicit Gemini, vLLM, SGLang, llama.cpp) ---------------


def all_blocks(prompt: Prompt, rules: Rules) -> Points:
    """An entry ends at each block: any beginning of the prompt can be read later."""
    return _every(len(prompt.blocks), class_of(prompt, rules)), ()


@lru_cache(maxsize=4096)
def _every(count: int, ttl: Ttl) -> tuple[Breakpoint, ...]:
    return tuple(point_at(index, ttl, "automatic") for index in range(count))


def find_any(lookup: Lookup, plan: Plan, at: datetime) -> int:
    """The last block of the longest live beginning, -1 where that is shorter than what can be read."""
    for point in reversed(plan.eligible):
        entry = lookup(plan.key(point.index))
        if entry is not None and readable(entry, at):
            return point.index if _whole_units(plan, point.index) >= max(1, plan.rules.min_tokens) else -1
    return -1


def _whole_units(plan: Plan, index: int) -> int:
    """Tokens that a hit ending with block `index` is reported as: whole intervals, and never the last token alone."""
    prompt, rules = plan.prompt, plan.rules
    tokens = prompt.ends[index]
    if rules.last_token_computed:
        tokens = min(tokens, prompt.total - 1)
    if rules.interval:
        tokens -= tokens % rules.interval
    return tokens - tokens % rules.granularity


def update_all(lookup: Lookup, plan: Plan, hit: int, at: datetime, readable_at: datetime) -> Updates:
    """Each beginning of the prompt is cached, and used anew where it was."""
    if not plan.eligible:
        return []
    ttl = plan.eligible[0].ttl
    ttl_s = plan.rules.ttl_s[ttl]
    found = lookup(plan.key(hit)) if hit >= 0 else None
    read = None if found is None else Entry(ttl, ttl_s, at, at, found.readable_at)
    fresh = Entry(ttl, ttl_s, at, at, readable_at)
    return [
        (key, _used(lookup(key), fresh if read is None or point.index > hit else read, plan.rules))
        for point in plan.eligible
        for key in (plan.key(point.index),)
    ]


def _used(old: Entry | None, new: Entry, rules: Rules) -> Entry:
    """An entry after a request that needs it: the longer lifetime and the earlier readiness of both count."""
    at = new.used_at
    if old is None or not alive(old, at):
        return new
    if not rules.refresh_on_read and old.readable_at <= at:
        return old
    if old.ttl_s <= new.ttl_s and new.readable_at <= old.readable_at:
        return new
    longer = old if old.ttl_s > new.ttl_s else new
    return Entry(longer.ttl, longer.ttl_s, old.written_at, at, min(old.readable_at, new.readable_at))


def bill(plan: Plan, hit: int) -> Bill:
    """Read is what was hit; the rest is written where the provider has a class for that, else plain input."""
    total, read = plan.prompt.total, 0
    if hit >= 0:
        read = plan.prompt.ends[hit] if plan.style in ("handles", "units") else _whole_units(plan, hit)
    if not writes_reported(plan.rules, plan.style) or not plan.eligible or plan.style == "handles":
        return read, 0, 0, total - read
    top, ttl = max(read, plan.prompt.ends[plan.eligible[-1].index]), plan.eligible[-1].ttl
    short, long = (top - read, 0) if ttl == "5m" else (0, top - read)
    return read, short, long, total - top


# ---- ends of messages (OpenAI from GPT-5.6 on) -----------------------------------------------------------------------


def message_ends(prompt: Prompt, rules: Rules) -> Points:
    """Where a request writes: the end of its latest eligible message, and its latest explicit breakpoints.

    Only `max_breakpoints` are written in all. In explicit mode (`prompt.automatic` is `None`) the client's alone count.
    """
    explicit = [point_at(mark.index, mark.ttl) for mark in prompt.marks]
    implicit = None if prompt.automatic is None else next(_ends(prompt), None)
    if implicit is None:
        return explicit[max(0, len(explicit) - rules.max_breakpoints) :], ()
    kept = explicit[max(0, len(explicit) - rules.max_breakpoints + 1) :]
    if all(point.index != implicit for point in kept):
        kept.append(point_at(implicit, class_of(prompt, rules), "automatic"))
    return sorted(kept, key=lambda point: point.index), ()


def _ends(prompt: Prompt) -> Iterator[int]:
    """Last blocks of eligible messages, latest first: of user messages, of groups of tool results.

    Behind them, the end of the instructions in front. Later instructions are not eligible.
    """
    blocks, paths = prompt.blocks, prompt.paths
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.level is not Level.MESSAGES:
            if block.level is Level.SYSTEM:
                yield index
            return
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        if block.role == "tool" or block.kind == "tool_result":
            if following is None or (following.role != "tool" and following.kind != "tool_result"):
                yield index
        elif block.role == "user" and (following is None or _message(paths[index]) != _message(paths[index + 1])):
            yield index


def _message(path: str) -> list[str]:
    """What names the message that a block belongs to."""
    return path.split("/", 3)[:3]


def find_listed(lookup: Lookup, plan: Plan, at: datetime) -> int:
    """The longest live entry at one of the boundaries that a request looks at."""
    prompt, rules = plan.prompt, plan.rules
    marked = [mark.index for mark in prompt.marks]
    places = {*marked[: rules.lookup_first], *marked[max(0, len(marked) - rules.lookup_latest) :]}
    if prompt.automatic is not None:
        places.update(islice(_ends(prompt), rules.lookup_ends + 1))
        head = next((at for at in range(len(prompt.blocks) - 1, -1, -1) if prompt.blocks[at].level is Level.SYSTEM), -1)
        places.update({head} - {-1})
    for index in sorted(places, reverse=True):
        if prompt.ends[index] < rules.min_tokens:
            break
        entry = lookup(plan.key(index))
        if entry is not None and readable(entry, at):
            return index
    return -1


# ---- persisted units (DeepSeek) --------------------------------------------------------------------------------------


def prompt_end(prompt: Prompt, rules: Rules) -> Points:
    """A request persists its whole input as one unit."""
    last = len(prompt.blocks) - 1
    return ([point_at(last, rules.default_ttl, "automatic")] if last >= 0 else []), ()


@lru_cache(maxsize=4096)
def _salt(salt: bytes, use: bytes) -> bytes:
    return blake2b(salt + use, digest_size=16).digest()


def _marked(plan: Plan, index: int, use: bytes) -> EntryKey:
    """Key of what is noted about a prefix beside its unit: that it was sent, or that an answer followed it."""
    chain, salt = plan.key(index)
    return chain, _salt(salt, use)


_SENT, _ANSWERED = b"sent", b"answered"


def find_unit(lookup: Lookup, plan: Plan, at: datetime) -> int:
    """The longest unit that the prompt repeats in full.

    A unit ends with an earlier input, with the output that followed it (the run of the assistant's blocks behind that
    input), or where the provider had seen several requests part.
    """
    prompt = plan.prompt
    blocks = prompt.blocks
    for index in range(len(blocks) - 1, -1, -1):
        if prompt.ends[index] < plan.rules.min_tokens:
            break
        if _unit(lookup, plan, index, at) is not None:
            return index
    return -1


def _unit(lookup: Lookup, plan: Plan, index: int, at: datetime) -> Entry | None:
    """The readable unit that ends with block `index`, by itself or as the output of an earlier input."""
    entry = lookup(plan.key(index))
    if entry is not None and readable(entry, at):
        return entry
    start = _answered(lookup, plan, index, at)
    return None if start < 0 else lookup(_marked(plan, start, _ANSWERED))


def _answered(lookup: Lookup, plan: Plan, index: int, at: datetime) -> int:
    """Last block of the earlier input whose output ends with block `index`, -1 where there is none to read."""
    blocks = plan.prompt.blocks
    if index + 1 < len(blocks) and blocks[index + 1].role == "assistant":
        return -1
    for start in range(index - 1, -1, -1):
        if blocks[start + 1].role != "assistant":
            break
        entry = lookup(_marked(plan, start, _ANSWERED))
        if entry is not None and readable(entry, at):
            return start
    return -1


def _before_answer(plan: Plan, index: int) -> int:
    while index >= 0 and plan.prompt.blocks[index].role == "assistant":
        index -= 1
    return index


def least(plan: Plan, hit: int) -> int:
    """Tokens of a hit that do not rest on the client having sent the output back unchanged."""
    start = _before_answer(plan, hit)
    return plan.prompt.ends[start] if start >= 0 else 0


def update_units(lookup: Lookup, plan: Plan, hit: int, at: datetime, readable_at: datetime) -> Updates:
    """Persist the input, the common beginning that it shows, and what it read; note all that was sent."""
    prompt, rules = plan.prompt, plan.rules
    last = len(prompt.blocks) - 1
    if last < 0 or prompt.ends[last] < rules.min_tokens:
        return []
    fresh = Entry(rules.default_ttl, rules.ttl_s[rules.default_ttl], at, at, readable_at)
    units = {last: fresh}
    common = next((i for i in range(last, -1, -1) if _lives(lookup(_marked(plan, i, _SENT)), at)), -1)
    if hit < common < last and prompt.ends[common] >= rules.min_tokens:
        units[common] = fresh
    updates: Updates = []
    if hit >= 0:
        read = _unit(lookup, plan, hit, at)
        assert read is not None
        units[hit] = refreshed(read, at, read.readable_at)
        updates += _refreshed_answer(lookup, plan, hit, at)
    updates += [(plan.key(i), _used(lookup(plan.key(i)), unit, rules)) for i, unit in units.items()]
    answered = _marked(plan, last, _ANSWERED)
    updates.append((answered, _used(lookup(answered), fresh, rules)))
    updates += [(_marked(plan, i, _SENT), fresh) for i in range(last + 1)]
    return updates


def _refreshed_answer(lookup: Lookup, plan: Plan, hit: int, at: datetime) -> Updates:
    """The note of an output that was read through, used anew."""
    start = _answered(lookup, plan, hit, at)
    found = lookup(_marked(plan, start, _ANSWERED)) if start >= 0 else None
    return [] if found is None else [(_marked(plan, start, _ANSWERED), refreshed(found, at, found.readable_at))]


def _lives(entry: Entry | None, at: datetime) -> bool:
    return entry is not None and alive(entry, at)


# ---- handles (Gemini's cachedContents) -------------------------------------------------------------------------------


def has_handle(prompt: Prompt) -> bool:
    """Whether the request names content that was cached beforehand."""
    return bool(prompt.blocks) and prompt.blocks[0].kind == HANDLE


def handle(prompt: Prompt, rules: Rules) -> Points:
    """The handle itself is the only boundary; the request writes none."""
    return [point_at(0, rules.default_ttl, "explicit")], ()


def find_handle(lookup: Lookup, plan: Plan, at: datetime) -> int:
    """A request that names a dead handle is refused, so one that was served read it."""
    return 0


def update_nothing(lookup: Lookup, plan: Plan, hit: int, at: datetime, readable_at: datetime) -> Updates:
    """Reading a handle neither writes nor extends it."""
    return []
