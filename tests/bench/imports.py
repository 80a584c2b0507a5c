"""Measures `cachewright audit` of other tools' sessions, side by side with ccusage (npm) and cachemiss (PyPI).

    python -m tests.bench.imports --ccusage PATH --cachemiss PATH     both corpora of `corpus.py`: 46 MB and 280 MB
    python -m tests.bench.imports --sessions 100 --repeat 1           a first look, without the others

Run from the root of the checkout. A tool that is not named is looked for on PATH, and left out where it is not there
(`npm install ccusage@20`, `pip install cachemiss`). Runs alternate, so that a busy machine is as busy for each;
numbers are medians of `--repeat` runs. "cold" has no store yet (the files are in the page cache), "warm" is the run
after it, "touched" has one session in fifty changed since. Peak is the largest process; of several at once, see `sum`.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.bench import Cost, find_cachewright, measure
from tests.bench.corpus import write

MEMORY_EVERY_S = 0.01


def cold(data: Path) -> None:
    """Forget all digests."""
    shutil.rmtree(data, ignore_errors=True)


def touch(corpus: Path, every: int = 50) -> None:
    """A blank line more in one session in fifty."""
    for path in sorted(corpus.glob("projects/*/*.jsonl"))[::every]:
        with path.open("ab") as file:
            file.write(b"\n")


def memory_of(command: list[str]) -> float:
    """Bytes of a command and its children at their peak, shared pages counted once (Linux; elsewhere 0)."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, sum(map(_proportional, _tree(process.pid))))
            time.sleep(MEMORY_EVERY_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    watcher.join()
    return peak


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _tree(int(child)))]


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def median(costs: list[Cost]) -> Cost:
    """The median of each measure."""
    return Cost(*(statistics.median(getattr(cost, name) for cost in costs) for name in ("wall_s", "cpu_s", "peak_rss")))


def compare(corpus: Path, work: Path, tools: dict[str, list[str]], repeat: int) -> dict[str, Cost]:
    """Costs by name; each round runs everything once."""
    data = work / "data"
    os.environ |= {"CLAUDE_CONFIG_DIR": f"{corpus}", "XDG_DATA_HOME": f"{data}", "HOME": f"{work}"}
    ours = [*find_cachewright(), "audit"]
    steps: list[tuple[str, list[str], Callable[[], None]]] = [
        ("cachewright cold", ours, lambda: cold(data)),
        ("cachewright warm", ours, lambda: None),
        ("cachewright touched", ours, lambda: touch(corpus)),
        *((name, command, lambda: None) for name, command in tools.items()),
    ]
    costs: dict[str, list[Cost]] = {name: [] for name, _, _ in steps}
    for _ in range(repeat):
        for name, command, prepare in steps:
            prepare()
            costs[name].append(measure(command))
    return {name: median(each) for name, each in costs.items()}


def report(title: str, costs: dict[str, Cost], data: Path) -> None:
    """The table, and how the others compare."""
    print(f"\n{title}\n{'':<22}{'wall s':>8}{'CPU s':>8}{'peak MiB':>10}", flush=True)
    for name, cost in costs.items():
        print(f"{name:<22}{cost.wall_s:>8.2f}{cost.cpu_s:>8.2f}{cost.peak_rss / 2**20:>10.0f}")
    for other in (name for name in costs if not name.startswith("cachewright")):
        for ours in ("cachewright cold", "cachewright warm", "cachewright touched"):
            ratio = costs[other].wall_s / costs[ours].wall_s
            print(f"{other} takes {ratio:.2f} times as long as {ours}")
    cold(data)
    total = memory_of([*find_cachewright(), "audit"]) / 2**20
    print(f"sum of all processes of cachewright cold at its peak: {total:.0f} MiB", flush=True)


def tools_of(args: argparse.Namespace) -> dict[str, list[str]]:
    """Commands of the others that are here."""
    found = {name: getattr(args, name) or shutil.which(name) for name in ("ccusage", "cachemiss")}
    rest = {
        "ccusage": ["claude", "session", "--offline", "--json"],
        "cachemiss": ["--root", "", "ledger", "--since", "all"],
    }
    return {name: [path, *rest[name]] for name, path in found.items() if path}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure cachewright, ccusage and cachemiss on the same sessions.")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ccusage", help="the command; default: the one on PATH")
    parser.add_argument("--cachemiss", help="the command; default: the one on PATH")
    args = parser.parse_args()
    tools = tools_of(args)
    if len(tools) < 2:
        print(f"not here, left out: {', '.join({'ccusage', 'cachemiss'} - set(tools))}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="cachewright-bench-") as folder:
        work = Path(folder)
        for name, full in (("thin", False), ("full text", True)):
            corpus = work / name.replace(" ", "-")
            write(corpus, args.sessions, full)
            if "cachemiss" in tools:
                tools["cachemiss"][1:3] = ["--root", f"{corpus / 'projects'}"]
            size = sum(path.stat().st_size for path in corpus.rglob("*.jsonl")) / 1e6
            costs = compare(corpus, work, tools, args.repeat)
            calls = 14 * args.sessions
            report(f"{name}: {args.sessions:,} sessions, {calls:,} calls, {size:,.0f} MB", costs, work / "data")


if __name__ == "__main__":
    main()
