"""Measures `cachewright tui` over a large store, in a pseudo-terminal as a user would have it.

    python -m tests.bench.bench_tui                  7,143 sessions, 100,002 calls; the first run builds the store
    python -m tests.bench.bench_tui --sessions 100

Prints CPU seconds (user + system) from the command to the first painted screen, milliseconds of CPU for each page
scrolled, and the peak of the resident memory. The store is kept in bench-data/, which git ignores.
"""

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import termios
import time
from datetime import datetime, timedelta
from pathlib import Path

from tests.bench.bench import find_cachewright, resident

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "bench-data"
ROWS, COLUMNS = 48, 160
PAGES = 60
ORIGINALS = 100
TICKS = os.sysconf("SC_CLK_TCK")
FILLER = 0.01
"""Characters per token: the store's bodies are small, its calls many."""


def build(cachewright: list[str], sessions: int) -> Path:
    """The store with that many sessions, made where it is not there yet: 100 audited ones, copied to later days."""
    store, trace = DATA / f"tui-{sessions}.db", DATA / "tui.jsonl"
    if not store.exists():
        DATA.mkdir(exist_ok=True)
        print(f"building {store} once", file=sys.stderr, flush=True)
        make = [sys.executable, str(HERE / "generate.py"), "--sessions", str(min(ORIGINALS, sessions))]
        subprocess.run([*make, "--chars", str(FILLER), "--out", str(trace)], check=True)
        partial = store.with_suffix(".partial")
        audit = [*cachewright, "audit", str(trace), "--db", str(partial), "--what-if", "none", "--json"]
        subprocess.run(audit, check=True, stdout=subprocess.DEVNULL)
        copy(partial, sessions)
        partial.rename(store)
        trace.unlink()
    return store


def copy(path: Path, sessions: int) -> None:
    """Add each stored session again, a day later each time, until there are `sessions`."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        calls = conn.execute("SELECT * FROM calls").fetchall()
        names = [column[1] for column in conn.execute("PRAGMA table_info(calls)")]
        outcomes = conn.execute("SELECT * FROM outcomes").fetchall()
        traces = sorted({call[names.index("trace")] for call in calls})
        for number in range(1, -(-sessions // len(traces))):
            wanted = set(traces[: sessions - number * len(traces)])
            keys = {}
            for row in calls:
                values = dict(zip(names, row, strict=True))
                if values["trace"] in wanted:
                    keys[values["key"]] = values["key"][:12] + struct.pack(">I", number)
                    values |= {"number": None, "key": keys[values["key"]], "trace": f"{values['trace']}-{number}"}
                    values["started_at"] = _later(values["started_at"], number)
                    conn.execute(f"INSERT INTO calls VALUES ({','.join('?' * len(names))})", tuple(values.values()))
            some = [(ruleset, keys[call], *rest) for ruleset, call, *rest in outcomes if call in keys]
            conn.executemany("INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", some)
        conn.commit()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _later(moment: str, days: int) -> str:
    return (datetime.fromisoformat(moment) + timedelta(days=days)).isoformat(timespec="microseconds")


class Terminal:
    """A program in a pseudo-terminal of 160 by 48."""

    def __init__(self, command: list[str]) -> None:
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execvp(command[0], command)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.peak = 0

    def until(self, words: bytes, patience_s: float = 30) -> bytes:
        """Read until `words` were written; exits where they never are."""
        seen, end = b"", time.monotonic() + patience_s
        while words not in seen:
            if time.monotonic() > end:
                sys.exit(f"the app never wrote {words!r}; its last words: {seen[-500:]!r}")
            seen += self.read(0.02)
        return seen

    def read(self, patience_s: float) -> bytes:
        """What was written within so many seconds of silence."""
        self.peak = max(self.peak, resident(self.pid))
        ready, _, _ = select.select([self.file], [], [], patience_s)
        return os.read(self.file, 65_536) if ready else b""

    def quiet(self, silence_s: float = 1.0) -> None:
        """Wait until nothing is written any more."""
        while self.read(silence_s):
            pass

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self.file, keys)

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self.file)


def first_screen(command: list[str]) -> float:
    """CPU seconds until the list of sessions is painted; its rows name the run they belong to."""
    terminal = Terminal(command)
    terminal.until(b"s0")
    used = terminal.cpu_s()
    terminal.close()
    return used


def scrolling(command: list[str]) -> tuple[list[float], list[float], float]:
    """CPU and wall milliseconds for each page of PAGES, and the peak of the memory in bytes."""
    terminal = Terminal(command)
    terminal.until(b"s0")
    terminal.quiet()
    cpu, wall = [], []
    for _ in range(PAGES):
        before, start = terminal.cpu_s(), time.perf_counter()
        terminal.press(b"\x1b[6~")
        terminal.until(b"s0")
        wall.append((time.perf_counter() - start) * 1000)
        while terminal.read(0.01):
            pass
        cpu.append((terminal.cpu_s() - before) * 1000)
    terminal.quiet()
    peak = terminal.peak
    terminal.close()
    return cpu, wall, peak


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the terminal app over a large store.")
    parser.add_argument("--sessions", type=int, default=7143, help="14 calls each (default 7143)")
    parser.add_argument("--repeat", type=int, default=5, help="starts (default 5)")
    args = parser.parse_args()
    cachewright = find_cachewright()
    command = [*cachewright, "tui", "--db", str(build(cachewright, args.sessions))]
    starts = [first_screen(command) for _ in range(args.repeat)]
    cpu, wall, peak = scrolling(command)
    print(f"{args.sessions * 14:,} calls in {args.sessions:,} sessions, {COLUMNS}×{ROWS}, {os.cpu_count()} CPUs")
    print(
        f"first screen  {statistics.median(starts):6.2f} s CPU (limit 1.0; worst of {args.repeat}: {max(starts):.2f})"
    )
    worst = f"{statistics.median(wall):.1f} ms wall (limit 50; worst {max(wall):.1f})"
    print(f"a page        {statistics.mean(cpu):6.1f} ms CPU, {worst}")
    print(f"peak memory   {peak / 2**20:6.1f} MiB (limit 250)")


if __name__ == "__main__":
    main()
