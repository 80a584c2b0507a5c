"""Measures `cachewright audit` on a large generated trace, and what it costs to start.

    python tests/bench/bench.py --sessions 2000     28,000 calls, 700 MB, some minutes
    python tests/bench/bench.py --sessions 60 --repeat 1     840 calls, 21 MB, for a first look

Each command runs in a process of its own; the numbers are medians of `--repeat` runs: wall and CPU seconds (user +
system, of it and of the processes that it starts), and the peak of the resident memory of them all together, looked at
every 20 ms (where there is no /proc: the peak of the largest of them). This script stays small and makes the trace in
another process, because on Linux a child's peak starts at the size of the process that started it.
"""

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FOURTEEN = HERE.parents[1] / "traces" / "recorded" / "fourteen" / "calls.jsonl"
CALLS_PER_SESSION = 14
START_REPEAT = 7
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of `ru_maxrss`, which Linux counts in KiB."""
PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.02


@dataclass(frozen=True)
class Cost:
    """What one process used: seconds and bytes."""

    wall_s: float
    cpu_s: float
    peak_rss: float


def measure(command: list[str]) -> Cost:
    """Run once with stdout thrown away; exits with the command's own words where it fails."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        peak = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, resident(process.pid))
            time.sleep(LOOK_S)
        _, status, used = ended
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            words = errors.read()[-2000:].decode(errors="replace")
            sys.exit(f"{shlex.join(command)}: exit code {process.returncode}; it said:\n{words}")
    return Cost(wall, used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss * RSS_UNIT))


def resident(pid: int) -> int:
    """Bytes that a process and its descendants hold now; 0 where that cannot be told (any more)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * PAGE + sum(resident(int(child)) for child in children)


def median(make: Callable[[], list[str]], repeat: int) -> Cost:
    """Medians over `repeat` runs of the commands that `make` builds, one for each run."""
    costs = [measure(make()) for _ in range(repeat)]
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.peak_rss for cost in costs),
    )


def line(name: str, calls: int, cost: Cost) -> str:
    """One row of the table; `calls` 0 leaves the rate out."""
    rate = f"{calls / cost.wall_s:,.0f}" if calls else "-"
    return f"{name:<34} {cost.wall_s:>8.2f} {cost.cpu_s:>8.2f} {rate:>10} {cost.peak_rss / 2**20:>9.1f}"


def audits(cachewright: list[str], trace: Path, work: Path, calls: int, repeat: int) -> None:
    """Print the rows of the large trace (all with --json), without a store and with a fresh one for each run."""
    audit = [*cachewright, "audit", str(trace), "--json"]
    bare = [*audit, "--no-store", "--what-if", "none"]
    print(line("audit --no-store --what-if none", calls, median(lambda: bare, repeat)), flush=True)
    print(line("audit --no-store", calls, median(lambda: [*audit, "--no-store"], repeat)), flush=True)
    fresh = iter(range(repeat))
    stored = median(lambda: [*audit, "--db", str(work / f"{next(fresh)}.db")], repeat)
    print(line("audit --db NEW", calls, stored), flush=True)


def starts(cachewright: list[str]) -> None:
    """Print the rows of the short commands."""
    print(line("--help", 0, median(lambda: [*cachewright, "--help"], START_REPEAT)), flush=True)
    audit = [*cachewright, "audit", str(FOURTEEN), "--json", "--no-store"]
    print(line("audit of the bundled 14 rows", 0, median(lambda: audit, START_REPEAT)), flush=True)


def find_cachewright() -> list[str]:
    """The command beside this interpreter, else the first one on PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which("cachewright", path=path)
    if found is None:
        sys.exit("cachewright is neither beside this python nor on PATH; install it with: pip install -e .")
    return [found]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure cachewright's audit and its start.")
    parser.add_argument("--sessions", type=int, default=2000, help="14 calls and 350 kB each (default 2000)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each large audit (default 3)")
    args = parser.parse_args()
    if args.sessions < 1 or args.repeat < 1:
        parser.error(f"--sessions {args.sessions} --repeat {args.repeat}: both must be at least 1")
    cachewright = find_cachewright()
    with tempfile.TemporaryDirectory(prefix="cachewright-bench-") as folder:
        trace = Path(folder) / "big.jsonl"
        make = [sys.executable, str(HERE / "generate.py"), "--sessions", str(args.sessions), "--out", str(trace)]
        subprocess.run(make, check=True)
        calls = CALLS_PER_SESSION * args.sessions
        size = trace.stat().st_size / 1e6
        repeats = f"medians of {args.repeat} ({START_REPEAT} for starts)"
        print(f"{calls:,} calls, {size:,.0f} MB, {repeats}, {os.cpu_count()} CPUs")
        print(f"{'':<34} {'wall s':>8} {'CPU s':>8} {'calls/s':>10} {'peak MiB':>9}", flush=True)
        audits(cachewright, trace, Path(folder), calls, args.repeat)
        starts(cachewright)


if __name__ == "__main__":
    main()
