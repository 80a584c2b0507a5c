"""How torch's threads wait for each other. To be called before torch is imported; needs no torch itself."""

import os


def wait_passively() -> None:
    """Let waiting threads sleep instead of spin, unless the environment says otherwise.

    On a machine that does other work too, spinning threads wait for ones that do not run: with two busy cores a prefill
    of 1,024 tokens took 45 s spinning and 6 s sleeping. OpenMP reads this once, when torch is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
