"""Built-in tool: one shell command in the working folder. It ends in time, and what it started ends with it."""

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ToolFailed
from harness.tools.base import Tool, schema
from harness.wire import ToolSpec
from traces.schema import JsonObject

DEFAULT_S = 120
LONGEST_S = 1800
MOST_BYTES = 16 * 2**20
_POLL_MS = 50
_LATE_S = 0.3
"""How long output is still read after the command's end: children in the background may never close it."""


def shell_tool(root: Path) -> Tool:
    """The tool `shell`, running in `root`."""

    def run(arguments: JsonObject) -> str:
        limit = min(arguments.get("timeout_s", DEFAULT_S), LONGEST_S)
        process = subprocess.Popen(
            ["/bin/sh", "-c", arguments["command"]], cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        kept = Kept()
        try:
            ended = _read(process, kept, limit)
        finally:  # in time, too late, or Ctrl-C: nothing outlives the call
            _end(process)
        if not ended:
            raise ToolFailed(f"ended after {limit} s; output so far:\n{kept.text()}")
        return f"exit status {process.returncode}\n{kept.text()}".rstrip()

    spec = ToolSpec(
        "shell",
        "Run a shell command in the working folder. Output and errors come back together, after the exit status. "
        "Processes left in the background are ended with it.",
        schema("command", command=("string", "Command line for /bin/sh."),
               timeout_s=("integer", f"Seconds it may take, {DEFAULT_S} where left out.")),
    )  # fmt: skip
    return Tool(spec, "run", run)


@dataclass(slots=True)
class Kept:
    """Beginning and end of an output of any length, in bounded memory."""

    most: int = MOST_BYTES
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _lost: int = 0

    def add(self, data: bytes) -> None:
        """Take what has come."""
        room = max(0, self.most // 2 - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - self.most // 2
        if over > self.most // 2:  # seldom, so that bytes are moved once
            self._lost += over
            del self._tail[:over]

    def text(self) -> str:
        """What is kept; the gap says its size."""
        gap = f"\n… {self._lost:,} bytes left out …\n" if self._lost else ""
        if not gap:
            return (self._head + self._tail).decode(errors="replace")
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")


def _read(process: "subprocess.Popen[bytes]", kept: Kept, limit: float) -> bool:
    """Collect output until the command has ended (true) or its time is over."""
    assert process.stdout is not None
    out, until = process.stdout.fileno(), time.monotonic() + limit
    poll, open_still = select.poll(), True
    poll.register(out, select.POLLIN)
    while time.monotonic() < until:
        if open_still and poll.poll(_POLL_MS):
            data = os.read(out, 2**18)
            kept.add(data)
            open_still = bool(data)
        elif process.poll() is not None:
            return True
        elif not open_still:
            time.sleep(_POLL_MS / 1000)
        if process.poll() is not None:
            until = min(until, time.monotonic() + _LATE_S) if open_still else until
    return process.poll() is not None


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
