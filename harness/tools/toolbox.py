"""All tools of a session behind one gate, and the three ways in which the model gets to know them.

    fixed   built-in tools, `search_tools` and `call_tool`; the list never changes, found schemas come as text
    native  built-in tools and `search_tools`; all others are deferred: outside the cached prefix until a search's
            result refers to them (Messages API, models that have it); a placeholder engages this from request 1
    eager   everything up front, sorted by name; a tool that comes late changes the head and costs the whole prefix

When a server changes its list (`relist`), what can be found and called changes with it, and what a request says of its
tools does not: it was frozen when the session began. Only deferred tools, which are no part of the prefix, are added.

Whatever way a call comes (directly, through `call_tool`, from a script), it passes the same checks and permissions.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, TypeAlias

import orjson

from harness.errors import BadSetting, ToolFailed
from harness.spill import Spill
from harness.tools.base import Tool, check, schema
from harness.tools.index import find
from harness.tools.permissions import Permissions
from harness.wire import Result, ToolCall, ToolSpec
from localmodel.rules.models import normalise
from traces.canonical import dump
from traces.schema import JsonObject

Mode: TypeAlias = Literal["fixed", "native", "eager"]

SEARCH, CALL, READ_OUTPUT = "search_tools", "call_tool", "read_output"
PLACEHOLDER = ToolSpec("deferred_tools", "Placeholder; never called.", {"type": "object", "properties": {}}, True)

# Source: platform documentation, tool search; see docs/run.md.
_DEFERRING = (
    "claude-opus-4-8", "claude-opus-5", "claude-opus-5-5", "claude-fable-5", "claude-fable-5-1", "claude-fable-5-2",
    "claude-sonnet-5-5", "claude-haiku-5-5",
)  # fmt: skip


def check_mode(mode: Mode, api: str, provider: str, host: str, model: str) -> None:
    """Raises `BadSetting` where a model cannot defer tools. Local servers are taken at their word."""
    if mode != "native":
        return
    if api != "messages":
        raise BadSetting(f"--tools native: the {api} API has no deferred tools here; use --tools fixed")
    if host.endswith("anthropic.com") and normalise(model) not in _DEFERRING:
        raise BadSetting(f"--tools native: {model} cannot defer tools; use --tools fixed")


@dataclass(slots=True)
class Toolbox:
    """`builtin` tools are always offered; `others` (MCP servers) as `mode` says.

    `others` is never changed in place: servers speak up in the middle of a search. `news`: names that the model has
    not been told of.
    """

    builtin: dict[str, Tool]
    others: dict[str, Tool]
    mode: Mode
    permissions: Permissions
    spill: Spill
    news: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def specs(self) -> list[ToolSpec]:
        """Tools for the head of a request."""
        offered = [tool.spec for tool in self.builtin.values()]
        if self.mode != "eager":
            offered.append(_search_spec(self.mode))
        if self.mode == "fixed":
            offered.append(_CALL_SPEC)
        if self.mode == "eager":
            offered += [tool.spec for tool in self.others.values()]
        offered.sort(key=lambda spec: spec.name)
        if self.mode == "native":  # behind all others: these may grow without touching the prefix
            offered += [PLACEHOLDER, *self.deferred()]
        return offered

    def deferred(self) -> list[ToolSpec]:
        """All other tools as deferred ones, sorted."""
        others = self.others
        return [replace(others[name].spec, deferred=True) for name in sorted(others)]

    def relist(self, source: str, tools: Iterable[Tool]) -> list[str]:
        """`tools` are all that a server has now. Names of those that are new."""
        with self._lock:
            kept = {name: tool for name, tool in self.others.items() if tool.source != source}
            found = {tool.name: tool for tool in tools}
            new = sorted(found.keys() - self.others.keys())
            self.others = {**kept, **found}
            if self.mode != "eager":
                self.news += new
        return new

    def add(self, tools: Iterable[Tool]) -> list[str]:
        """Tools that come during the session besides those that are there."""
        with self._lock:
            new = {tool.name: tool for tool in tools if tool.name not in self.others}
            self.others = {**self.others, **new}
            if self.mode != "eager":
                self.news += new
        return list(new)

    def call(self, call: ToolCall) -> Result:
        """Run one call of the model. Failures are results too."""
        try:
            if call.arguments is None:
                raise ToolFailed(f"the arguments are no JSON object: {call.raw[:200]}")
            if call.name == SEARCH and self.mode != "eager":
                return self._search(call, call.arguments)
            name, arguments = call.name, call.arguments
            if name == CALL and self.mode == "fixed":
                name, arguments = unwrapped(arguments)
            return Result(call, self.run(name, arguments))
        except ToolFailed as error:
            return Result(call, self.spill.fit(str(error), "error"), failed=True)

    def run(self, name: str, arguments: JsonObject, *, whole: bool = False) -> str:
        """Check, ask, run, and fit the output. `whole`: the caller keeps long outputs itself. Raises `ToolFailed`."""
        tool = self.tool(name)
        check(tool.spec.schema, arguments)
        refusal = self.permissions.refusal(tool, arguments)
        if refusal is not None:
            raise ToolFailed(refusal)
        text = guarded(tool.run, arguments)
        return text if whole or tool.whole else self.spill.fit(text, f"output of {name}")

    def known(self) -> set[str]:
        """Names that a request may offer now."""
        return {*self.builtin, *self.others, SEARCH, CALL, PLACEHOLDER.name}

    def tool(self, name: str) -> Tool:
        """The tool of that name. Raises `ToolFailed` that names the nearest ones, with their schemas."""
        known = {**self.builtin, **self.others}
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
        shown = "\n".join(described(known[one].spec) for one in near)
        raise ToolFailed(f"there is no tool {name!r}." + (f" Nearest:\n{shown}" if near else f" Use {SEARCH}."))

    def _search(self, call: ToolCall, arguments: JsonObject) -> Result:
        check(_search_spec(self.mode).schema, arguments)
        specs = [tool.spec for tool in self.others.values()]
        found = find(specs, arguments["query"], min(arguments.get("limit", 5), 20))
        if not found:
            return Result(call, f"no tool found among {len(specs)}; try other words")
        if self.mode == "native":
            return Result(call, "", references=tuple(spec.name for spec in found))
        return Result(call, self.spill.fit("\n".join(map(described, found)), "tools"))


def guarded(run: Callable[[JsonObject], str], arguments: JsonObject) -> str:
    """A tool's own faults are its result; only Ctrl-C and the like pass."""
    try:
        return run(arguments)
    except ToolFailed:
        raise
    except Exception as error:
        raise ToolFailed(f"{type(error).__name__}: {error}") from error


def described(spec: ToolSpec) -> str:
    """A tool as text: name, description and full schema."""
    return f"{spec.name}: {spec.description}\n  arguments: {dump(spec.schema).decode()}"


def unwrapped(arguments: JsonObject) -> tuple[str, JsonObject]:
    """(name, arguments) that a `call_tool` means. Models wrap twice or send JSON text; both are understood.

    Raises `ToolFailed`.
    """
    check(_CALL_SPEC.schema | {"properties": {"name": {"type": "string"}, "arguments": {}}}, arguments)
    name, inner = arguments["name"], _parsed(arguments.get("arguments", {}))
    if set(inner) == {"name", "arguments"} and inner["name"] == name:
        inner = _parsed(inner["arguments"])
    return name, inner


def _parsed(value: Any) -> JsonObject:
    if isinstance(value, str):
        try:
            value = orjson.loads(value or "{}")
        except orjson.JSONDecodeError:
            raise ToolFailed(
                'arguments is text that is no JSON; send an object: {"name": …, "arguments": {…}}'
            ) from None
    if not isinstance(value, dict):
        raise ToolFailed('arguments must be an object: {"name": …, "arguments": {…}}')
    return value


def _search_spec(mode: Mode) -> ToolSpec:
    then = "Then call what was found." if mode == "native" else f"Then use {CALL} with a name and its arguments."
    return ToolSpec(
        SEARCH,
        f"Find further tools by words or by name; their schemas come back. {then}",
        schema("query", query=("string", "What the tool should do, or its exact name."),
               limit=("integer", "Most tools to return.")),
    )  # fmt: skip


_CALL_SPEC = ToolSpec(
    CALL,
    f"Call a tool that {SEARCH} found.",
    schema("name", "arguments", name=("string", "Exact name."), arguments=("object", "Its arguments, by its schema.")),
)


def read_output_tool(spill: Spill) -> Tool:
    """The built-in tool that reads spilled outputs."""

    def run(arguments: JsonObject) -> str:
        given = {name: arguments[name] for name in ("offset", "limit", "find") if name in arguments}
        return spill.read(arguments["file"], **given)

    spec = ToolSpec(
        READ_OUTPUT,
        "Read on in a long output that was kept in a file. find keeps only lines that hold a literal text.",
        schema("file", file=("string", "Name given in the result."), offset=("integer", "First line, from 0."),
               limit=("integer", "Most lines."), find=("string", "Literal text to look for.")),
    )  # fmt: skip
    return Tool(spec, "read", run, whole=True)
