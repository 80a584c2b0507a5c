"""Static checks of one Messages body: what the provider refuses with an error (HTTP 400).

Each check takes a `View` and yields findings. Which shapes are refused, and the numbers, are rule data; see
`localmodel/rules/anthropic.toml`. The checks of requests that work but cache badly are in `lint_warnings.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from localmodel.rules.step import DatedRules, breakpoints
from localmodel.rules.types import Breakpoint, Rules, RuleValue
from traces.canonical import Interner, canonical
from traces.errors import MalformedRow
from traces.schema import Call, JsonObject, Prompt
from traces.tokens import Meter, estimate
from traces.wire import anthropic

AUTOMATIC_PATH = "/cache_control"
SHOWN = 40
"""Paths that one message spells out; all of them stand in the finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change in a request before it is sent.

    paths   JSON pointers into the body, in prompt order; the first is where the finding is shown
    message place, fact with its numbers; `remedy` says what to do about it
    rule    the rule value that it rests on, `None` where it rests on no number of the provider's
    """

    code: str
    severity: Literal["error", "warning", "info"]
    paths: tuple[str, ...]
    message: str
    remedy: str
    rule: RuleValue | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A body as the checks see it.

    parts   the blocks of the prompt in its order (n); deferred tools are not among them
    prompt  the same, with `ends` as the call recorded them, else estimated with their `errors`
    points  the breakpoints that the provider would take, in prompt order: markers on blocks that can carry one,
            and the automatic one last
    """

    body: JsonObject
    parts: tuple[anthropic.Part, ...]
    prompt: Prompt
    rules: Rules
    points: tuple[Breakpoint, ...]

    def path(self, point: Breakpoint) -> str:
        """Where the marker of a breakpoint stands."""
        return AUTOMATIC_PATH if point.origin == "automatic" else self.prompt.paths[point.index]

    def rule(self, name: str) -> RuleValue | None:
        """Provenance of a rule, where the ruleset gives it."""
        return self.rules.values.get(name)


def view(call: Call, ruleset: DatedRules, moment: datetime | None, platform: str) -> View:
    """Take the body of a call apart. Raises `MalformedRow` for a shape that no Messages request has."""
    body, model = call.request or {}, call.model or ""
    if not anthropic.is_request(body, "anthropic", None):
        raise MalformedRow("messages is not a list; a Messages request has a list of messages")
    prompt = canonical(call, Interner(estimate))
    assert prompt is not None, "is_request has looked"
    prompt = Meter().measure(prompt, call)
    parts, rules = tuple(anthropic.parts(body)), ruleset.at(model, platform, moment)
    able = tuple(mark for mark in prompt.marks if _refusal(parts[mark.index].value, rules) is None)
    points, _ = breakpoints(replace(prompt, marks=able), rules)
    taken = tuple(point for point in points if point.origin != "implicit")
    return View(body, parts, prompt, rules, taken)


def too_many_breakpoints(view: View) -> Iterator[Finding]:
    """More explicit markers than the provider takes."""
    limit = view.rules.max_breakpoints
    explicit = sum(point.origin == "explicit" for point in view.points)
    if explicit <= limit:
        return
    paths = tuple(map(view.path, view.points))
    yield Finding(
        "too_many_breakpoints",
        "error",
        paths,
        f"request has {len(paths)} breakpoints, anthropic allows {limit}: {listed(paths)}",
        f"remove {len(paths) - limit}; one at the end of the tools or system text and one or two in the last "
        "messages are enough",
        view.rule("max_breakpoints"),
    )


def ttl_order(view: View) -> Iterator[Finding]:
    """A 1h marker behind a 5m one."""
    brief = next((point for point in view.points if point.ttl == "5m"), None)
    if brief is None:
        return
    late = [point for point in view.points[view.points.index(brief) :] if point.ttl == "1h"]
    if late:
        paths = (view.path(brief), *map(view.path, late))
        yield Finding(
            "ttl_order",
            "error",
            paths,
            f"the 1h breakpoint at {listed(paths[1:])} follows the 5m one at {paths[0]} (a marker without ttl asks "
            "for 5m), longer lifetimes must come first",
            f'give {paths[0]} "ttl": "1h" too, or the later one 5m',
            view.rule("ttl_order"),
        )


def defer_loading(view: View) -> Iterator[Finding]:
    """A marker on a tool that is not in the prompt."""
    tools = view.body.get("tools") or []
    for index, tool in enumerate(tools if "deferred_tool" in view.rules.cannot_mark else []):
        if tool.get("defer_loading") is True and tool.get("cache_control") is not None:
            yield Finding(
                "defer_loading_with_cache_control",
                "error",
                (f"/tools/{index}",),
                f"tool {short(tool.get('name'))} has both defer_loading and cache_control, the provider refuses that",
                "move the marker to the last tool without defer_loading",
                view.rule("cannot_mark"),
            )


def unmarkable(view: View) -> Iterator[Finding]:
    """Markers on blocks, parts of blocks and messages that cannot carry one."""
    for part in view.parts:
        if part.value.get("cache_control") is not None and (why := _refusal(part.value, view.rules)):
            yield _unmarkable(view, part.path, f"{why} cannot carry cache_control")
        for path in _marked_below(part):
            yield _unmarkable(view, path, "a part of a block cannot carry cache_control")
    for index, message in enumerate(view.body["messages"]):
        if message.get("cache_control") is not None:
            yield _unmarkable(view, f"/messages/{index}", "a message cannot carry cache_control, its blocks can")


def _unmarkable(view: View, path: str, why: str) -> Finding:
    remedy = "mark the block around it, or the last block in front of it that can be marked"
    if path.count("/") == 2:
        remedy = "make its content a list of blocks and mark the last one"
    return Finding("marker_on_unmarkable", "error", (path,), why, remedy, view.rule("cannot_mark"))


def _refusal(value: JsonObject, rules: Rules) -> str | None:
    """What makes a block unfit for a marker, or `None`."""
    kind = value.get("type")
    if kind == "text" and value.get("text") == "" and "empty_text" in rules.cannot_mark:
        return "an empty text block"
    return f"a {kind} block" if isinstance(kind, str) and kind in rules.cannot_mark else None


def _marked_below(part: anthropic.Part) -> Iterator[str]:
    """Marked sub-content of a block (citations, blocks two levels down); its own inner blocks have another check."""
    yield from _marked(part.value.get("citations"), f"{part.path}/citations")
    for _, items, path in inner(part):
        for index, item in enumerate(items):
            if isinstance(item, dict):
                for key in ("citations", "content"):
                    yield from _marked(item.get(key), f"{path}/{index}/{key}")


def _marked(items: Any, path: str) -> Iterator[str]:
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, dict) and item.get("cache_control") is not None:
            yield f"{path}/{index}"


def inner(part: anthropic.Part) -> Iterator[tuple[str, list[Any], str]]:
    """Lists of blocks inside a block: (kind of the block, the list, its pointer)."""
    source, kind = part.value.get("source"), part.value.get("type")
    for owner, path in ((part.value, "/content"), (source, "/source/content")):
        if isinstance(owner, dict) and isinstance(owner.get("content"), list):
            yield kind if isinstance(kind, str) else "", owner["content"], part.path + path


def inside_tool_result(view: View) -> Iterator[Finding]:
    """Markers on inner blocks other than the last: only the last one's counts, for the outer block."""
    for part in view.parts:
        for kind, items, path in inner(part):
            for found in _marked(items[:-1], path):
                yield Finding(
                    "marker_inside_tool_result",
                    "error",
                    (found,),
                    f"a marker inside a {kind or 'block'} on inner block {int(found.rsplit('/', 1)[1]) + 1} of "
                    f"{len(items)}, only the last one may carry it",
                    f"move it to the {kind or 'block'} itself, {part.path}",
                )


def automatic_conflict(view: View) -> Iterator[Finding]:
    """A top-level marker for which there is no room, or that contradicts the last block's own."""
    asked, rules = view.prompt.automatic, view.rules
    if asked is None:
        return
    if not rules.automatic:
        why, remedy = "the platform has no automatic caching for this model", "mark the last block instead"
        yield Finding("automatic_conflict", "error", (AUTOMATIC_PATH,), why, remedy, view.rule("automatic_breakpoint"))
        return
    explicit = [point for point in view.points if point.origin == "explicit"]
    if len(explicit) < len(view.points):
        if len(explicit) == rules.max_breakpoints:
            why = f"automatic caching needs one of {rules.max_breakpoints} breakpoints, {len(explicit)} are explicit"
            paths = (AUTOMATIC_PATH, *map(view.path, explicit))
            remedy = "remove the top-level cache_control or one marker"
            yield Finding("automatic_conflict", "error", paths, why, remedy, view.rule("max_breakpoints"))
    elif explicit and explicit[-1].ttl != asked:
        path = view.path(explicit[-1])
        why = f"automatic caching asks for {asked} at the last block, whose own marker at {path} differs"
        remedy = "give both the same ttl, or remove one"
        paths = (AUTOMATIC_PATH, path)
        yield Finding("automatic_conflict", "error", paths, why, remedy, view.rule("max_breakpoints"))


def invalid_marker(view: View) -> Iterator[Finding]:
    """Markers that are not `{"type": "ephemeral"}` with a known lifetime, if any."""
    for path, mark in _all_markers(view):
        if mark is not None and (why := _invalid(mark, view.rules.ttl_s)):
            known = " or ".join(f'"{ttl}"' for ttl in view.rules.ttl_s)
            remedy = f'write {{"type": "ephemeral"}}, with "ttl": {known} if needed'
            yield Finding("invalid_marker", "error", (path,), why, remedy, view.rule("default_ttl"))


def _all_markers(view: View) -> Iterator[tuple[str, Any]]:
    yield AUTOMATIC_PATH, view.body.get("cache_control")
    for part in view.parts:
        if "cache_control" in part.value:
            yield f"{part.path}/cache_control", part.value["cache_control"]
        for _, items, path in inner(part):
            if items and isinstance(items[-1], dict):
                yield f"{path}/{len(items) - 1}/cache_control", items[-1].get("cache_control")


def _invalid(mark: Any, lifetimes: Mapping[Any, int]) -> str | None:
    if not isinstance(mark, dict):
        return f"cache_control is {short(mark)}, it should be an object"
    if mark.get("type") != "ephemeral":
        return f'cache_control has type {short(mark.get("type"))}, the only type is "ephemeral"'
    ttl = mark.get("ttl")
    known = ttl is None or (isinstance(ttl, str) and ttl in lifetimes)
    return None if known else f"cache_control has ttl {short(ttl)}, known are {', '.join(lifetimes)}"


def short(value: Any) -> str:
    """A value of the body for a message: its beginning, or its kind where it is not a plain value."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = f'"{value[:60]}"' if isinstance(value, str) else str(value)[:60]
    return {"None": "null", "True": "true", "False": "false"}.get(text, text)


def listed(paths: tuple[str, ...]) -> str:
    """Paths for a message, at most `SHOWN` of them."""
    rest = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


ERRORS = (
    too_many_breakpoints,
    ttl_order,
    defer_loading,
    unmarkable,
    inside_tool_result,
    automatic_conflict,
    invalid_marker,
)
