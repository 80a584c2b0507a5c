"""Sub-agents that share their parent's exact prefix: the first is sent, the others when its response begins.

Until then nothing they could read exists; sent together, each would write the same prefix anew. Where the first fails
before its response begins the next takes its place; after 30 s without a sign all are let go. If the rules say that the
shared prefix can be read already, nobody waits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Event, Thread
from typing import TypeVar

RELEASE_S = 30.0
STOP_S = 2.0

T = TypeVar("T")


@dataclass(slots=True)
class Gate:
    """Order of the first requests of `count` agents. `open`: nobody waits."""

    count: int
    open: bool = False
    release_s: float = RELEASE_S
    stopped: Event = field(default_factory=Event)
    _leader: int = 0
    _done: set[int] = field(default_factory=set)
    _changed: Condition = field(default_factory=Condition)

    def enter(self, number: int) -> None:
        """Wait until agent `number` may send: it leads, or the leader's response has begun."""
        with self._changed:
            free = self._changed.wait_for(lambda: self.open or number == self._leader, self.release_s)
            self.open = self.open or not free
            self._changed.notify_all()

    def began(self) -> None:
        """A response has begun: all may go."""
        with self._changed:
            self.open = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Ctrl-C: nobody sends any more, and nobody waits."""
        self.stopped.set()
        self.began()

    def left(self, number: int) -> None:
        """Agent `number` is done or has failed: the next one leads where nothing has begun yet."""
        with self._changed:
            self._done.add(number)
            while self._leader in self._done and self._leader < self.count:
                self._leader += 1
            self._changed.notify_all()


def fan_out(gate: Gate, run: Callable[[int], T]) -> list[T | BaseException]:
    """Run agents 0…count-1, each in a thread; `run` enters the gate itself. Results or errors, in order.

    Ctrl-C sets `gate.stopped`, which agents look at before they send anything more.
    """
    results: list[T | BaseException] = [RuntimeError("did not run")] * gate.count

    def one(number: int) -> None:
        try:
            results[number] = run(number)
        except BaseException as error:
            results[number] = error
        finally:
            gate.left(number)

    threads = [Thread(target=one, args=(n,), name=f"agent-{n}", daemon=True) for n in range(gate.count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        gate.stop()
        for thread in threads:  # so that what their streams cost is on the ledger; a silent one is left behind
            thread.join(STOP_S)
        raise
    return results
