"""A command run in this one's place in the terminal: signals and the exit status are the command's own."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tui.cli import ExitCode, fail


def run_child(words: Sequence[str], environment: Mapping[str, str], *, pass_fds: Sequence[int] = ()) -> int:
    """Run the command in the terminal as it is; signals go to it, and what it ends with is what this ends with."""
    try:
        child = subprocess.Popen(words, env=environment, pass_fds=pass_fds)
    except OSError as error:
        reason = (error.strerror or "error").lower()
        fail(f"{words[0]}: cannot be run ({reason}); name a program behind --", ExitCode.USAGE)

    def pass_on(number: int, frame: object) -> None:
        # The terminal sends its own SIGINT to both: the child gets it once.
        if not (number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()):
            child.send_signal(number)

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    before = {kind: signal.signal(kind, pass_on) for kind in kinds}
    try:
        status = child.wait()
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return status if status >= 0 else 128 - status
