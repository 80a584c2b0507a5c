"""Built-in tool: one shell command in the working folder, with a time limit that ends its children too."""

import os
import signal
import subprocess
from pathlib import Path

from harness.errors import ToolFailed
from harness.tools.base import Tool, schema
from harness.wire import ToolSpec
from traces.schema import JsonObject

DEFAULT_S = 120
LONGEST_S = 1800
MOST_BYTES = 16 * 2**20


def shell_tool(root: Path) -> Tool:
    """The tool `shell`, running in `root`."""

    def run(arguments: JsonObject) -> str:
        limit = min(arguments.get("timeout_s", DEFAULT_S), LONGEST_S)
        process = subprocess.Popen(
            ["/bin/sh", "-c", arguments["command"]], cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            out = process.communicate()[0]
            raise ToolFailed(f"ended after {limit} s; output so far:\n{_text(out)}") from None
        except BaseException:  # Ctrl-C: the command must not outlive the session
            _end(process)
            raise
        return f"exit status {process.returncode}\n{_text(out)}".rstrip()

    spec = ToolSpec(
        "shell",
        "Run a shell command in the working folder. Output and errors come back together, after the exit status.",
        schema("command", command=("string", "Command line for /bin/sh."),
               timeout_s=("integer", f"Seconds it may take, {DEFAULT_S} where left out.")),
    )  # fmt: skip
    return Tool(spec, "run", run)


def _end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)


def _text(raw: bytes) -> str:
    return raw[:MOST_BYTES].decode(errors="replace")
