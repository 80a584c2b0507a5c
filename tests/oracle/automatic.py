"""A slow and plain model of caches that place their boundaries themselves: the oracle for `localmodel.rules.automatic`.

Written from the providers' pages alone; lists instead of digests, every earlier request compared with every new one.
Tokens are exact. It says what could be read: no such provider promises its hits.

* OpenAI before GPT-5.6: any common beginning of at least 1,024 tokens, in steps of 128 (gpt-5.5: of 2,048); no write
  fee; in memory for at most an hour, or 24 hours.
* OpenAI from GPT-5.6 on: read at ends of messages and explicit breakpoints that an earlier request wrote; written are
  the end of the latest eligible message and the latest three explicit ones, or four in explicit mode.
* DeepSeek: units that end with an input, with the output behind it, or where two earlier requests parted.
* Paged engines: whole pages of a common beginning, the last token always computed.

Readings chosen where the pages are silent: a common beginning counts in whole blocks; entries live to the end of the
longest lifetime that is documented; an entry can be read from the end of the response that wrote it.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from chats import Piece, Request

Block: TypeAlias = tuple[int, str, Piece]
BREAKING = ("parallel_tool_calls", "effort", "format", "verbosity", "service_tier")


@dataclass
class Kept:
    """Something cached: the texts up to its end, its key, and until when it lives after its last use."""

    texts: list[Any]
    key: tuple[Any, ...]
    used_at: datetime
    ready_at: datetime
    lives_s: float
    by: str = "unit"

    def live(self, now: datetime) -> bool:
        return (now - self.used_at).total_seconds() < self.lives_s

    def ready(self, now: datetime) -> bool:
        return self.live(now) and self.ready_at <= now


def texts_of(request: Request) -> list[Any]:
    """What identifies each block, markers apart."""
    return [(role, piece.kind, piece.text) for _, role, piece in request.blocks()]


def ends_of(request: Request) -> list[int]:
    sizes = [piece.tokens for _, _, piece in request.blocks()]
    return [sum(sizes[: n + 1]) for n in range(len(sizes))]


def common(one: list[Any], two: list[Any]) -> int:
    count = 0
    while count < min(len(one), len(two)) and one[count] == two[count]:
        count += 1
    return count


@dataclass
class Prefixes:
    """Any common beginning: every earlier request is remembered whole."""

    step: int = 128
    minimum: int = 1024
    page: bool = False
    sent: list[Kept] = field(default_factory=list)

    def serve(self, request: Request) -> tuple[int, int | None]:
        """(tokens read, `None`: there is no class of writes)."""
        texts, ends, now, key = texts_of(request), ends_of(request), request.at, self.key(request)
        mine = [kept for kept in self.sent if kept.key == key]
        best = max((common(texts, kept.texts) for kept in mine if kept.ready(now)), default=0)
        tokens = ends[best - 1] if best else 0
        tokens = min(tokens, ends[-1] - 1) if self.page else tokens
        read = tokens - tokens % self.step
        hit = read >= max(1, self.minimum)
        ready = request.ended
        for kept in mine:
            # What is read was used, by whichever request it was sent; what is sent again while it lives is ready when
            # the earlier of both is.
            shared = common(texts, kept.texts)
            if shared and kept.live(now):
                self.sent.append(Kept(kept.texts[:shared], key, now, kept.ready_at, kept.lives_s))
        self.sent.append(Kept(texts, key, now, ready, self.lives(request)))
        return (read if hit else 0), None

    def key(self, request: Request) -> tuple[Any, ...]:
        # An engine compares tokens; what decides how they are decoded does not change them.
        breaking = () if self.page else BREAKING
        return (request.model, request.key, *(repr(request.param(name)) for name in breaking))

    def lives(self, request: Request) -> float:
        if self.page:
            return float("inf")
        return 3600 if request.param("prompt_cache_retention") == "in_memory" else 86400


@dataclass
class Ends:
    """Ends of messages and explicit breakpoints, written for a fee."""

    entries: list[Kept] = field(default_factory=list)

    def serve(self, request: Request) -> tuple[int, int | None]:
        texts, ends, now = texts_of(request), ends_of(request), request.at
        key = (request.model, request.key, request.param("prompt_cache_key"),
               *(repr(request.param(name)) for name in BREAKING))  # fmt: skip
        explicit = [n for n, (_, _, piece) in enumerate(request.blocks()) if piece.mark]
        only = (request.param("prompt_cache_options") or {}).get("mode") == "explicit"
        eligible = eligible_ends(request)
        looked = set(explicit[:2] + explicit[-50:]) if explicit else set()
        if not only:
            looked |= set(eligible[-21:])
            looked |= {n for n, (message, _, p) in enumerate(request.blocks()) if message < 0 and p.kind == "system"}
        hit = max((n for n in looked if ends[n] >= 1024 and self.found(texts[: n + 1], key, now)), default=-1)
        writes = explicit[-4:] if only else explicit[-3:] + eligible[-1:]
        writes = [n for n in sorted(set(writes)) if ends[n] >= 1024]
        for n in sorted({*writes, hit} - {-1}):
            # An entry that is being written is not written a second time: it can be read when the first of both may.
            alive = [
                kept for kept in self.entries if kept.key == key and kept.texts == texts[: n + 1] and kept.live(now)
            ]
            for kept in alive:
                kept.used_at, kept.ready_at = now, min(kept.ready_at, request.ended)
            if not alive:
                self.entries.append(Kept(texts[: n + 1], key, now, request.ended, 86400))
        read = ends[hit] if hit >= 0 else 0
        top = max([read] + [ends[n] for n in writes])
        return read, top - read

    def found(self, texts: list[Any], key: tuple[Any, ...], now: datetime) -> bool:
        return any(kept.texts == texts and kept.key == key and kept.ready(now) for kept in self.entries)


def eligible_ends(request: Request) -> list[int]:
    """User messages, groups of tool results, and the instructions in front: the last block of each."""
    blocks = request.blocks()
    found = []
    for n, (message, role, piece) in enumerate(blocks):
        following = blocks[n + 1] if n + 1 < len(blocks) else None
        if message < 0:
            ends = piece.kind == "system" and (following is None or following[0] >= 0)
        elif role == "user":
            ends = following is None or following[0] != message
        else:
            ends = role == "tool" and (following is None or following[1] != "tool")
        if ends:
            found.append(n)
    return found


@dataclass
class Units:
    """DeepSeek's persisted units."""

    units: list[Kept] = field(default_factory=list)
    sent: list[Kept] = field(default_factory=list)

    def serve(self, request: Request) -> tuple[int, int | None]:
        texts, ends, now = texts_of(request), ends_of(request), request.at
        key = (request.model, request.key, request.param("user_id"), repr(request.param("thinking")))
        roles = [role for _, role, _ in request.blocks()]
        mine = [unit for unit in self.units if unit.key == key]
        hit = 0
        used: list[Kept] = []
        for unit in mine:
            size = self.size(unit, texts, roles)
            if size and unit.ready(now) and size >= hit:
                used = [unit] if size > hit else [*used, unit]
                hit = size
        parted = max((common(texts, old.texts) for old in self.sent if old.key == key and old.live(now)), default=0)
        ready = min((unit.ready_at for unit in used), default=request.ended)
        for unit in used:
            unit.used_at = now
        if used:
            self.keep(texts[:hit], key, now, ready)
        if hit < parted < len(texts):
            self.keep(texts[:parted], key, now, request.ended)
        self.keep(texts, key, now, request.ended)
        self.keep(texts, key, now, request.ended, "answer")
        self.sent.append(Kept(texts, key, now, request.ended, 259200))
        return (ends[hit - 1] if hit else 0), None

    @staticmethod
    def size(unit: Kept, texts: list[Any], roles: list[str]) -> int:
        """Blocks that a unit covers of a prompt, 0 where the prompt does not repeat all of it."""
        count = len(unit.texts)
        if texts[:count] != unit.texts:
            return 0
        if unit.by == "unit":
            return count
        end = count
        while end < len(roles) and roles[end] == "assistant":
            end += 1
        return end if end > count else 0

    def keep(self, texts: list[Any], key: tuple[Any, ...], now: datetime, ready: datetime, by: str = "unit") -> None:
        """Persist a unit, or use again the one that lives."""
        for unit in self.units:
            if unit.texts == texts and unit.key == key and unit.by == by and unit.live(now):
                unit.used_at, unit.ready_at = now, min(unit.ready_at, ready)
                return
        self.units.append(Kept(list(texts), key, now, ready, 259200, by))
