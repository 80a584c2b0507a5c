"""Codemode: the model sends a script that arranges tool calls; only what it chooses comes back into the conversation.

One call and one result stand for many, so that a turn stays within the cache's lookback and whole outputs never enter
the prefix. Nested calls pass the same checks and permissions as direct ones. Everything else (each nested call with its
whole result, all that was printed) is kept in files that `read_output` reads. What was done before an error is reported
too: calls that were made are not undone.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from harness.attempt import Emit
from harness.errors import BadSetting, ToolFailed
from harness.sandbox import Sandbox, sandbox
from harness.tools.base import Tool, schema
from harness.tools.index import find
from harness.tools.toolbox import Toolbox, described
from harness.wire import ToolSpec
from traces.schema import JsonObject

COMPUTE_S = 30.0
LONGEST_S = 120.0
MEMORY_BYTES = 256 * 2**20
MOST_CALLS = 100
MOST_SUSPENSIONS = 2_000
PRINT_BYTES = 4 * 2**20
EVIDENCE_CHARS = 8_000
MOST_EVIDENCE = 1_000
TAIL_CHARS = 2_000
STORED_BYTES = 256 * 2**10
MOST_STORED = 4 * STORED_BYTES
KEPT_CHARS = 2**20
"""Of each nested result in the log; with this and the number of calls the log is bounded too."""


_DESCRIPTION = f"""Run a Python script that arranges tool calls. Only what it emits and its last expression come back.
In the script: call_tool(name, **arguments) returns a tool's output as text and raises RuntimeError where it fails; \
search_tools(query) returns further tools as text; emit(value, label="") puts evidence into the result; \
store(name, value) and load(name) keep JSON values between scripts; print() goes to a file, its end is shown.
A subset of Python: no files, network or processes, no classes with inheritance, no generators, no "with"; modules \
re, json, math, datetime, collections, itertools, functools, hashlib, dataclasses. Limits: {COMPUTE_S:.0f} s of \
computing, {MEMORY_BYTES >> 20} MiB, {MOST_CALLS} calls."""


def code_tool(box: Toolbox, folder: Path, emit: Emit) -> Tool:
    """The tool `run_code`. Raises `BadSetting` where Monty is not installed."""
    try:
        import pydantic_monty  # noqa: F401
    except ImportError:
        raise BadSetting("--codemode needs pydantic-monty; pip install 'cachewright[codemode]'") from None
    place = sandbox(folder)
    emit("sandbox", words=place.words, isolated=place.isolated)
    stored: dict[str, Any] = {}
    spec = ToolSpec(
        "run_code",
        _DESCRIPTION,
        schema("code", code=("string", "The script."), timeout_s=("number", "Seconds of computing it may take.")),
    )

    def run(arguments: JsonObject) -> str:
        limit = min(float(arguments.get("timeout_s", COMPUTE_S)), LONGEST_S)
        return Script(box, place, stored, limit).run(arguments["code"])

    return Tool(spec, "read", run, whole=True)


@dataclass(slots=True)
class Script:
    """One run of one script."""

    box: Toolbox
    place: Sandbox
    stored: dict[str, Any]
    limit_s: float = COMPUTE_S
    memory: int = MEMORY_BYTES
    calls: list[JsonObject] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    pieces: int = 0
    printed: list[str] = field(default_factory=list)
    _size: int = 0
    _new: dict[str, Any] = field(default_factory=dict)

    def run(self, code: str) -> str:
        """Run `code`; the report for the conversation. Never raises for what the script does."""
        start = time.monotonic()
        status, value, error = "ok", None, ""
        try:
            value = self._feed(code)
            self.stored.update(self._new)
        except Exception as failure:
            status, error = _status(failure), _words(failure)
        return self._report(status, value, error, time.monotonic() - start)

    def _feed(self, code: str) -> Any:
        import pydantic_monty

        limits: pydantic_monty.ResourceLimits = {
            "max_memory": self.memory, "max_feed_duration_secs": self.limit_s, "max_suspensions": MOST_SUSPENSIONS,
            "max_total_sleep_secs": self.limit_s,
        }  # fmt: skip
        pool = pydantic_monty.Monty(binary_path=self.place.binary, min_processes=1, max_processes=1)
        with pool, pool.checkout(script_name="script.py", limits=limits) as session:
            relay, worker = Relay(), session.worker_pid
            names = {name: relay.here(function) for name, function in self._names().items()}
            return relay.run(
                lambda: session.feed_run(code, external_lookup=names, print_callback=self._print),
                partial(_kill, worker),
            )

    def _names(self) -> dict[str, Callable[..., Any]]:
        return {
            "call_tool": self._call, "search_tools": self._search, "emit": self._emit,
            "store": self._store, "load": lambda name: {**self.stored, **self._new}.get(name),
        }  # fmt: skip

    def _call(self, name: str, /, **arguments: Any) -> str:
        if len(self.calls) >= MOST_CALLS:
            raise RuntimeError(f"limit of {MOST_CALLS} calls reached")
        if name == "run_code":
            raise RuntimeError("a script cannot run another one")
        row: JsonObject = {"name": name, "arguments": arguments}
        self.calls.append(row)
        try:
            result = self.box.run(name, arguments, whole=True)
            row["result"] = _cut(result, KEPT_CHARS)
        except ToolFailed as error:
            row["error"] = str(error)
            raise RuntimeError(str(error)) from None
        return result

    def _search(self, query: str, limit: int = 5) -> str:
        known = [tool.spec for tool in (*self.box.builtin.values(), *self.box.others.values())]
        return "\n".join(described(spec) for spec in find(known, query, limit)) or "nothing found"

    def _emit(self, value: Any, label: str = "") -> None:
        self.pieces += 1
        if len(self.evidence) <= MOST_EVIDENCE:  # a script that emits without end must not fill our memory
            self.evidence.append(_cut(f"[{label or self.pieces}] {_shown(value)}", EVIDENCE_CHARS))

    def _store(self, name: str, value: Any) -> None:
        if len(json.dumps(value, default=str)) > STORED_BYTES:
            raise RuntimeError(f"a stored value may have {STORED_BYTES} bytes")
        if len(json.dumps({**self.stored, **self._new, name: value}, default=str)) > MOST_STORED:
            raise RuntimeError(f"all stored values may have {MOST_STORED} bytes together")
        self._new[name] = value

    def _print(self, stream: str, text: str) -> None:
        self._size += len(text)
        if self._size > PRINT_BYTES:
            raise MemoryError(f"more than {PRINT_BYTES >> 20} MiB printed")
        self.printed.append(text)

    def _report(self, status: str, value: Any, error: str, seconds: float) -> str:
        failed = sum("error" in row for row in self.calls)
        lines = [f"status {status}, {seconds:.1f} s, {len(self.calls)} tool calls ({failed} failed)"]
        lines += self._most(self.evidence)
        if value is not None:
            lines.append(f"value: {_cut(_shown(value), EVIDENCE_CHARS)}")
        out = "".join(self.printed)
        if out:
            lines.append(f"printed{' (its end)' if len(out) > TAIL_CHARS else ''}:\n{out[-TAIL_CHARS:].rstrip()}")
        if error:
            lines.append(f"error: {_cut(error, TAIL_CHARS)}")
            if self.calls:
                lines.append("Calls made before it are not undone.")
        return "\n".join(lines + self._files(out))

    def _most(self, evidence: list[str]) -> list[str]:
        """Evidence up to the limit of a result; what is left out is said."""
        kept: list[str] = []
        size = 0
        for number, one in enumerate(evidence):
            size += len(one)
            if size > 4 * EVIDENCE_CHARS or number == MOST_EVIDENCE:
                return [*kept, f"… {self.pieces - number} more pieces of evidence left out: emit less"]
            kept.append(one)
        return kept

    def _files(self, out: str) -> list[str]:
        """Whole outputs in files; failing to write one does not fail the script."""
        texts = []
        if self.calls:
            log = "\n".join(_dumped(row) for row in self.calls)
            texts.append((log, f"the {len(self.calls)} calls with their whole results, one a line"))
        if len(out) > TAIL_CHARS:
            texts.append((out, "all that was printed"))
        lines = []
        for text, what in texts:
            try:
                lines.append(f"file {self.box.spill.keep(text)}: {what}, {len(text):,} characters")
            except OSError as error:
                lines.append(f"not kept ({error.strerror}): {what}")
        return lines


class Relay:
    """Runs something that cannot be interrupted in a thread of its own, and the calls that it makes here: Ctrl-C is
    heard in our thread only, and what a script calls has to hear it too."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def here(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` for the other thread; it runs in ours."""

        def call(*arguments: Any, **named: Any) -> Any:
            answer: Future[Any] = Future()
            self._asked.put((answer, partial(function, *arguments, **named)))
            return answer.result()

        return call

    def run(self, work: Callable[[], Any], stop: Callable[[], None]) -> Any:
        """What `work` gives. `stop` ends it where we are interrupted."""
        with ThreadPoolExecutor(1, "script") as threads:
            done = threads.submit(work)
            done.add_done_callback(lambda _: self._asked.put(None))
            answer: Future[Any] = Future()
            try:
                while (asked := self._asked.get()) is not None:
                    answer, function = asked
                    _settle(answer, function)
            except BaseException as error:
                stop()
                if not answer.done():
                    answer.set_exception(RuntimeError(type(error).__name__))
                raise
            return done.result()


def _settle(answer: "Future[Any]", function: Callable[[], Any]) -> None:
    try:
        answer.set_result(function())
    except Exception as error:
        answer.set_exception(error)


def _kill(process: int | None) -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _dumped(value)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n… {len(text) - most:,} characters left out …\n{text[-most // 2 :]}"


def _status(error: Exception) -> str:
    """ok, error, timeout, memory, limit or crashed."""
    text = str(error)
    for word, status in (("TimeoutError", "timeout"), ("MemoryError", "memory"), ("limit of", "limit"),
                         ("suspension", "limit")):  # fmt: skip
        if word in text or word in type(error).__name__:
            return status
    return "crashed" if type(error).__name__ == "MontyCrashedError" else "error"


def _words(error: Exception) -> str:
    """The error with its place in the script, where Monty tells it."""
    frames = getattr(error, "traceback", None)
    try:
        place = frames()[-1] if callable(frames) else None
        line = f" (line {place.line})" if place is not None and hasattr(place, "line") else ""
    except (IndexError, TypeError):
        line = ""
    return f"{error}{line}"
