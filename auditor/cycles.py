"""Long work without the cycle collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cycles() -> Iterator[None]:
    """Without the cycle collector: JSON bodies have no cycles, and looking for some costs a third of the time.

    What is alive at the end stays for long and is not looked through later either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
