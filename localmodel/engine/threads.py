"""How many threads compute a step, and how they wait for each other. Needs no torch itself."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

SPINS = 15_000
"""Looks for new work before a thread sleeps: about as long as Python takes from one product to the next."""
FEW = 16
"""Rows of a step whose work is so small that waking the other threads may cost more than they give."""
LOOKS = 32
"""Steps of few rows after which the way not taken is measured again."""


def wait_briefly() -> None:
    """Let waiting threads spin a little, then sleep, unless the environment says otherwise. Before torch is imported.

    OpenMP reads this once, when torch is loaded. On two idle cores a decoded token took 95 ms with threads that sleep
    at once and 60 ms with ones that looked 10,000 times; with threads that spin for long, as is OpenMP's default, a
    prefill of 1,024 tokens beside two busy processes took 45 s instead of 6 s.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=str(SPINS))


@dataclass(slots=True)
class Pace:
    """Runs steps of few rows with all threads or with one, whichever was faster lately.

    All are faster on idle cores, one where other processes want them: a step of one token is 180 products or more (of
    the default model), each of which waits for the slowest thread. What is computed does not depend on it
    (`selftest`). `use` sets the number.
    """

    threads: int
    use: Callable[[int], None]
    clock: Callable[[], float] = time.perf_counter
    taken: dict[int, float] = field(default_factory=dict)
    steps: int = 0

    def run(self, rows: int, act: Callable[[], T]) -> T:
        """What `act`, a step of so many rows, returns."""
        if rows > FEW or self.threads == 1:
            return act()
        threads = self._choice()
        self.use(threads)
        begun = self.clock()
        try:
            return act()
        finally:
            self.taken[threads] = self.clock() - begun
            self.use(self.threads)

    def _choice(self) -> int:
        self.steps += 1
        ways = sorted((self.threads, 1), key=lambda threads: self.taken.get(threads, 0.0))
        return ways[1] if self.steps % LOOKS == 0 else ways[0]
