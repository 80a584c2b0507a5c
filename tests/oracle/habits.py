"""A prompt cache with habits of one's choosing, written as plainly as possible: what probes must find out by asking.

Tokens are words. Nothing of the product is used here, so that a mistake in it cannot hide in both.
"""

import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

Json = dict[str, Any]


@dataclass
class Habits:
    """How the cache behaves. Times in seconds; `shared`: all keys read the same entries."""

    minimum: int = 64
    lookback: int = 20
    ttl_5m: float = 300.0
    ttl_1h: float = 3600.0
    clock: Literal["start", "end"] = "start"
    refreshes: bool = True
    readable: Literal["sent", "begun", "ended"] = "begun"
    shared: bool = False
    prewarm: Literal["writes", "refused", "ignored"] = "writes"
    marks: int = 4
    caches: bool = True


@dataclass
class Entry:
    ttl: float
    used: float
    readable: float


@dataclass
class Asked:
    """One request in work: its usage, and the entries that it wrote or read."""

    usage: Json
    entries: list[Entry] = field(default_factory=list)
    written: list[Entry] = field(default_factory=list)


class Refused(Exception):
    """The request is refused with HTTP 400."""


class MessagesCache:
    """Entries of a Messages API: looked up backwards from each marker, written at markers only."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self._entries: dict[str, Entry] = {}
        self._lock = Lock()

    def ask(self, key: str, body: Json, now: float) -> Asked:
        with self._lock:
            return self._ask("" if self.habits.shared else key, body, now)

    def _ask(self, key: str, body: Json, now: float) -> Asked:
        habits = self.habits
        if body["max_tokens"] == 0 and habits.prewarm == "refused":
            raise Refused("max_tokens: must be at least 1")
        blocks = [_block(block) for block in _blocks(body)]
        marks = [number for number, (_, _, ttl) in enumerate(blocks) if ttl]
        if len(marks) > habits.marks:
            raise Refused(f"{len(marks)} cache markers, at most {habits.marks} are allowed")
        ends: list[int] = []
        names: list[str] = []
        total = 0
        for text, words, _ in blocks:
            total += words
            ends.append(total)
            names.append(f"{key}\n{names[-1] if names else ''}\n{text}")
        marks = [number for number in marks if ends[number] >= habits.minimum and habits.caches]
        hit = next((n for mark in reversed(marks) for n in self._window(mark) if self._live(names[n], now)), -1)
        asked = Asked({})
        if hit >= 0:
            self._use(self._entries[names[hit]], asked, now)
        if body["max_tokens"] or habits.prewarm == "writes":
            self._write(marks, names, [blocks[n][2] for n in marks], asked, now)
        read = ends[hit] if hit >= 0 else 0
        last = max(ends[marks[-1]], read) if marks else read
        asked.usage = {
            "input_tokens": total - last,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": last - read,
            "output_tokens": 1 if body["max_tokens"] else 0,
        }
        return asked

    def _window(self, mark: int) -> list[int]:
        return list(range(mark, max(-1, mark - self.habits.lookback), -1))

    def _live(self, name: str, now: float) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.readable <= now < entry.used + entry.ttl

    def _use(self, entry: Entry, asked: Asked, now: float) -> None:
        if self.habits.refreshes:
            entry.used = now
            asked.entries.append(entry)

    def _write(self, marks: list[int], names: list[str], ttls: list[str], asked: Asked, now: float) -> None:
        for mark, ttl in zip(marks, ttls, strict=True):
            if self._live(names[mark], now):
                continue
            habits = self.habits
            entry = Entry(habits.ttl_1h if ttl == "1h" else habits.ttl_5m, now, now)
            # Whoever asks next may have looked at the clock before this request did.
            entry.readable = float("-inf") if habits.readable == "sent" else float("inf")
            self._entries[names[mark]] = entry
            asked.entries.append(entry)
            asked.written.append(entry)

    def begun(self, asked: Asked, now: float) -> None:
        """The response begins."""
        if self.habits.readable == "begun":
            for entry in asked.written:
                entry.readable = min(entry.readable, now)

    def ended(self, asked: Asked, now: float) -> None:
        """The response is complete."""
        for entry in asked.entries:
            if self.habits.clock == "end":
                entry.used = now
            if self.habits.readable == "ended" and entry in asked.written:
                entry.readable = min(entry.readable, now)


def _blocks(body: Json) -> list[Json]:
    found = [*body.get("tools", []), *body.get("system", [])]
    for message in body["messages"]:
        content = message["content"]
        found += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return found


def _block(block: Json) -> tuple[str, int, str]:
    """(identity, tokens, lifetime asked for or "") of a block."""
    mark = block.get("cache_control")
    rest = {name: value for name, value in block.items() if name != "cache_control"}
    text = json.dumps(rest, sort_keys=True)
    return text, len(text.split()), (mark or {}).get("ttl", "5m") if mark else ""


class AutomaticCache:
    """OpenAI's two generations: any common beginning in steps of tokens, or only the ends of messages and markers."""

    def __init__(self, step: int = 128, minimum: int = 1024, boundaries: bool = False) -> None:
        self.step, self.minimum, self.boundaries = step, minimum, boundaries
        self._seen: list[list[str]] = []

    def ask(self, key: str, body: Json, now: float) -> Asked:
        words, ends = _words(body)
        read = max((self._common(words, old) for old in self._seen), default=0)
        if self.boundaries:
            read = max((end for end in ends if words[:end] in self._seen), default=0)
            self._seen += [words[:end] for end in ends[-1:] + _marked(body, ends)]
        else:
            self._seen.append(words)
        return Asked(_chat_usage(len(words), read if read >= self.minimum else 0))

    def _common(self, one: list[str], two: list[str]) -> int:
        common = 0
        for left, right in zip(one, two, strict=False):
            if left != right:
                break
            common += 1
        return common - common % self.step

    def begun(self, asked: Asked, now: float) -> None:
        """Nothing happens: these caches are filled when a request comes in."""

    def ended(self, asked: Asked, now: float) -> None:
        """Nothing happens."""


class UnitsCache:
    """DeepSeek: whole units only; they end where inputs end, and where two requests were seen to part."""

    def __init__(self) -> None:
        self._units: set[tuple[str, ...]] = set()
        self._seen: list[tuple[tuple[str, ...], ...]] = []

    def ask(self, key: str, body: Json, now: float) -> Asked:
        messages = tuple((m["role"], *str(m["content"]).split()) for m in body["messages"])
        prefixes = [sum(messages[:end], ()) for end in range(1, len(messages) + 1)]
        read = max((len(prefix) for prefix in prefixes if prefix in self._units), default=0)
        for old in self._seen:
            same = 0
            while same < min(len(old), len(messages)) and old[same] == messages[same]:
                same += 1
            if same:
                self._units.add(prefixes[same - 1])
        self._units.add(prefixes[-1])
        self._seen.append(messages)
        total = len(prefixes[-1])
        usage = {**_chat_usage(total, read), "prompt_cache_hit_tokens": read, "prompt_cache_miss_tokens": total - read}
        return Asked(usage)

    def begun(self, asked: Asked, now: float) -> None:
        """Nothing happens."""

    def ended(self, asked: Asked, now: float) -> None:
        """Nothing happens: building takes no time here."""


def _words(body: Json) -> tuple[list[str], list[int]]:
    """All words of a Chat or Responses body, and where each message ends."""
    words: list[str] = []
    ends = []
    for message in body.get("messages") or body["input"]:
        content = message["content"]
        text = content if isinstance(content, str) else " ".join(part["text"] for part in content)
        words += [message["role"], *text.split()]
        ends.append(len(words))
    return words, ends


def _marked(body: Json, ends: list[int]) -> list[int]:
    rows = zip(body.get("messages") or body["input"], ends, strict=True)
    return [end for message, end in rows if "prompt_cache_breakpoint" in json.dumps(message)]


def _chat_usage(total: int, read: int) -> Json:
    return {
        "prompt_tokens": total,
        "completion_tokens": 1,
        "total_tokens": total + 1,
        "prompt_tokens_details": {"cached_tokens": read},
    }
