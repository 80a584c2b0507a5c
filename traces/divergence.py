"""Where two prompts first part, and what kind of change it is.

Compares block digests to find the place and looks at the bodies only there. The path points into the later body;
character offsets count in the changed text itself.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, AnyStr, Literal, NamedTuple, TypeAlias, overload

from traces import volatile
from traces.canonical import dump
from traces.schema import Block, JsonObject, Level, Prompt
from traces.wire.dialects import BY_NAME, MESSAGES, Dialect

Change: TypeAlias = Literal[
    "inserted",
    "removed",
    "reordered",
    "edited",
    "moved",
    "form",
    "serialisation",
    "date_or_clock",
    "relative_time",
    "identifier",
    "environment",
    "structure",
    "image_replaced",
    "tool_result_cleared",
    "thinking_stripped",
]
SHORT = 80
_CONTEXT = 64
# A bare HH:MM may be a line range or a score; one that differs between two requests in this very place is a clock.
_CLOCK = re.compile(r"(?<![\w:.])(?:[01]?\d|2[0-3]):[0-5]\d(?![\w:.]*\d)")
_PATH_LIKE = re.compile(r"[\w.-]+/[\w./-]+|[\w-]+\.[A-Za-z]{1,5}\b")


class Values(Sequence[JsonObject]):
    """Values of a body's blocks at `paths`, markers removed when one is asked for."""

    def __init__(self, body: JsonObject, paths: Sequence[str], dialect: Dialect = MESSAGES) -> None:
        self._strip = dialect.strip_marks
        self._parts = list(dialect.parts(body))
        if len(self._parts) != len(paths):
            kept = set(paths)
            self._parts = [part for part in self._parts if part.path in kept]

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> JsonObject: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[JsonObject]: ...
    def __getitem__(self, index: int | slice) -> JsonObject | Sequence[JsonObject]:
        if isinstance(index, slice):
            return [self._strip(part.value)[0] for part in self._parts[index]]
        return self._strip(self._parts[index].value)[0]


class Side(NamedTuple):
    """One of two prompts to compare, with the values of its blocks (markers removed)."""

    prompt: Prompt
    values: Values


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first change between two prompts.

    index                  block at which the prompts part (the length of the later one where that just ends)
    path                   JSON pointer into the later body (into the earlier one for a removed block)
    char_offset            characters into the text at `path`, `None` where the change is not inside a text
    token_offset           tokens in front of the change in the later prompt
    moved_to               where a moved block stands now; `names` the tools that a change at that level touches
    """

    change: Change
    level: Level
    index: int
    path: str
    char_offset: int | None
    token_offset: int
    before: str
    after: str
    moved_to: str | None = None
    names: tuple[str, ...] = ()


def side(prompt: Prompt, body: JsonObject) -> Side:
    """A prompt together with its block values, taken from the body it was made of.

    The prompt may lack blocks of the body, which the provider leaves out.
    """
    return Side(prompt, Values(body, prompt.paths, BY_NAME[prompt.dialect]))


def common_blocks(before: Prompt, after: Prompt) -> int:
    """Number of leading blocks that two prompts share."""
    low, high = 0, min(len(before.chain), len(after.chain))
    while low < high:
        middle = (low + high) // 2
        if before.chain[middle] == after.chain[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def first_divergence(before: Side, after: Side) -> Divergence | None:
    """The first change from `before` to `after`; `None` where `after` only appends."""
    index = common_blocks(before.prompt, after.prompt)
    if index == len(before.prompt.blocks):
        return None
    if index == len(after.prompt.blocks):
        return _whole_block("removed", before, after, index)
    old, new = before.prompt.blocks[index], after.prompt.blocks[index]
    if old.meaning == new.meaning and old.level == new.level and old.role == new.role:
        return _inside(before, after, index, "serialisation")
    if Level.TOOLS in (old.level, new.level):
        return _tools(before, after, index)
    if _same_text(before, after, min(old.level, new.level)):
        return _whole_block("structure", before, after, index)
    return _content(before, after, index)


def _tools(before: Side, after: Side, index: int) -> Divergence:
    old_names, new_names = _names(before), _names(after)
    old_tools, new_tools = _level(before, Level.TOOLS), _level(after, Level.TOOLS)
    if Counter(b.meaning for b in old_tools) == Counter(b.meaning for b in new_tools):
        first = [name for name, other in zip(new_names, old_names, strict=False) if name != other]
        return _whole_block("reordered", before, after, index, tuple(dict.fromkeys(first)))
    added = tuple(name for name in new_names if name not in old_names)
    gone = tuple(name for name in old_names if name not in new_names)
    here_old, here_new = old_names[index : index + 1], new_names[index : index + 1]
    if here_old and here_old == here_new:
        return _inside(before, after, index, None)
    if here_new and here_new[0] in added:
        return _whole_block("inserted", before, after, index, added)
    if here_old and here_old[0] in gone:
        return _whole_block("removed", before, after, index, gone)
    return _whole_block("reordered", before, after, index, added + gone or tuple(here_new))


def _content(before: Side, after: Side, index: int) -> Divergence:
    old, new = before.prompt.blocks[index], after.prompt.blocks[index]
    later_new = [block.wire for block in after.prompt.blocks[index:]]
    later_old = {block.wire for block in before.prompt.blocks[index:]}
    if old.wire in later_new and new.wire in later_old:
        if sorted(later_new) == sorted(block.wire for block in before.prompt.blocks[index:]):
            return _whole_block("reordered", before, after, index)
        return _whole_block("moved", before, after, index, moved_to=index + later_new.index(old.wire))
    if old.wire in later_new:
        return _whole_block("inserted", before, after, index)
    if new.wire in later_old:
        change: Change = "thinking_stripped" if "thinking" in old.kind else "removed"
        return _whole_block(change, before, after, index)
    if old.kind == new.kind and old.level == new.level:
        return _inside(before, after, index, None)
    if "thinking" in old.kind:
        return _whole_block("thinking_stripped", before, after, index)
    return _whole_block("edited", before, after, index)


def _whole_block(
    change: Change,
    before: Side,
    after: Side,
    index: int,
    names: tuple[str, ...] = (),
    moved_to: int | None = None,
) -> Divergence:
    """A change of whole blocks: the texts shown are the blocks that stand at the place."""
    gone = change in ("removed", "thinking_stripped")
    holder = before if gone or index >= len(after.prompt.blocks) else after
    return Divergence(
        change=change,
        level=holder.prompt.blocks[index].level,
        index=index,
        path=holder.prompt.paths[index],
        char_offset=None,
        token_offset=after.prompt.tokens_before(index) if after.prompt.ends else 0,
        before=_shown(before, index),
        after=_shown(after, index),
        moved_to=None if moved_to is None else after.prompt.paths[moved_to],
        names=names,
    )


def _inside(before: Side, after: Side, index: int, change: Change | None) -> Divergence:
    """A change inside one block that stands at the same place in both prompts."""
    old, new = before.values[index], after.values[index]
    path, one, two = _descend(old, new)
    offset: int | None = None
    shown = (_short(_text(one)), _short(_text(two)))
    if isinstance(one, str) and isinstance(two, str):
        start, stop_one, stop_two = changed_span(one, two)
        offset = start
        shown = (_short(one[start:stop_one]), _short(two[start:stop_two]))
        if change is None:
            change = _text_change(old, one, two, (start, stop_one, stop_two))
    if change is None:
        change = _value_change(before.prompt.blocks[index], one, two)
    prompt = after.prompt
    return Divergence(
        change=change,
        level=prompt.blocks[index].level,
        index=index,
        path=_join(prompt.paths[index], path),
        char_offset=offset,
        token_offset=_tokens_at(prompt, index, offset, two),
        before=shown[0],
        after=shown[1],
        names=(_name(new),) if prompt.blocks[index].level is Level.TOOLS else (),
    )


def _join(block: str, inner: str) -> str:
    """A content given as one text has no `/text` member of its own."""
    return block if inner == "/text" and not block[-1].isdigit() else block + inner


def _tokens_at(prompt: Prompt, index: int, offset: int | None, text: Any) -> int:
    if not prompt.ends:
        return 0
    inside = prompt.tokens_of(index) * offset // max(1, len(text)) if offset and isinstance(text, str) else 0
    return prompt.tokens_before(index) + inside


def _descend(old: Any, new: Any) -> tuple[str, Any, Any]:
    """Follow two values to the smallest place that differs: (JSON pointer below the block, old, new)."""
    path = ""
    while True:
        if isinstance(old, dict) and isinstance(new, dict):
            key = _first_key(old, new)
            if key is None:
                return path, list(old), list(new)
            if key not in old or key not in new:
                return f"{path}/{escape(key)}", old.get(key), new.get(key)
            path, old, new = f"{path}/{escape(key)}", old[key], new[key]
        elif isinstance(old, list) and isinstance(new, list):
            pairs = zip(old, new, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if not identical(a, b)), None)
            if at is None:
                return path, old[len(new) :], new[len(old) :]
            path, old, new = f"{path}/{at}", old[at], new[at]
        else:
            return path, old, new


def escape(key: object) -> str:
    """One reference token of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _first_key(old: JsonObject, new: JsonObject) -> str | None:
    """The first key whose value differs, or is missing on one side; `None` where only the order differs."""
    for key in old:
        if key not in new or old[key] != new[key]:
            return key
    for key in new:
        if key not in old:
            return key
    if list(old) != list(new):
        return None
    return next((key for key in old if not identical(old[key], new[key])), None)


def identical(old: Any, new: Any) -> bool:
    """Equal including key order and number type, as the JSON text would be."""
    return dump(old) == dump(new)


def changed_span(old: str, new: str) -> tuple[int, int, int]:
    """(start, end in old, end in new) of the smallest region outside which two texts are equal."""
    start = common_prefix(old, new)
    most = min(len(old), len(new)) - start
    same = common_prefix(old[::-1][:most], new[::-1][:most])
    return start, len(old) - same, len(new) - same


def common_prefix(old: AnyStr, new: AnyStr) -> int:
    """Length of the common beginning of two texts, in characters, or of two byte strings, in bytes."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text_change(block: JsonObject, old: str, new: str, span: tuple[int, int, int]) -> Change:
    start, stop_old, stop_new = span
    kinds = {_volatile(old, start, stop_old), _volatile(new, start, stop_new)}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind
    if block.get("type") == "tool_result" and len(new) < len(old) / 2:
        return "tool_result_cleared"
    changed = old[start:stop_old] + new[start:stop_new]
    if changed and all(_PATH_LIKE.search(line) for line in changed.splitlines() if line.strip()):
        return "environment"
    return "edited"


def _volatile(text: str, start: int, stop: int) -> Change | None:
    """The kind of volatile text (clock, age, id) that covers the changed region of `text`."""
    left = max(0, start - _CONTEXT)
    for kind, begin, end in volatile.find(text[left : stop + _CONTEXT]):
        if begin + left <= max(start, stop - 1) and end + left > start:
            if kind == "date_or_clock":
                return "date_or_clock"
            return "relative_time" if kind == "relative_time" else "identifier"
    clocks = _CLOCK.finditer(text, left, stop + _CONTEXT)
    return "date_or_clock" if any(c.start() <= start and c.end() >= stop and start < stop for c in clocks) else None


def _value_change(block: Block, old: Any, new: Any) -> Change:
    if block.image:
        return "image_replaced"
    if isinstance(old, list) and isinstance(new, list) and sorted(map(str, old)) == sorted(map(str, new)):
        return "reordered"
    if isinstance(old, str) != isinstance(new, str) and not (old is None or new is None):
        return "form"
    if old is None or new is None:
        return "inserted" if old is None else "removed"
    return "edited"


def _same_text(before: Side, after: Side, level: Level) -> bool:
    """Whether a level holds the same words, cut into other blocks."""
    one, two = _words(before, level), _words(after, level)
    return bool(one) and one == two and len(_level(before, level)) != len(_level(after, level))


def _words(of: Side, level: Level) -> str:
    if level is Level.MESSAGES:
        return ""
    pairs = zip(of.prompt.blocks, of.values, strict=True)
    return "".join("".join(str(value.get("text", "")).split()) for block, value in pairs if block.level is level)


def _level(of: Side, level: Level) -> list[Block]:
    return [block for block in of.prompt.blocks if block.level is level]


def _names(of: Side) -> list[str]:
    return [_name(of.values[index]) for index, block in enumerate(of.prompt.blocks) if block.level is Level.TOOLS]


def _name(value: JsonObject) -> str:
    inner = value.get("function")  # a Chat tool
    name = (inner if isinstance(inner, dict) else value).get("name", value.get("type", "?"))
    return name if isinstance(name, str) else "?"


def _shown(of: Side, index: int) -> str:
    return _short(_text(of.values[index])) if index < len(of.values) else ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return "" if value is None else json.dumps(value, ensure_ascii=False)[: 4 * SHORT]


def _short(text: str) -> str:
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"
