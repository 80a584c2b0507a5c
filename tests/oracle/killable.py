"""A program that holds a scripted session and kills itself at the n-th look at the clock: kill -9 at a chosen point."""

import os
import signal
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import agents

from harness.dialects.messages import Messages
from harness.scripted import Scripted
from localmodel.rules.load import load


@dataclass
class Deadly(agents.ManualClock):
    left: int = 0

    def now(self) -> datetime:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().now()


if __name__ == "__main__":
    clock = Deadly(left=int(sys.argv[2]))
    provider = Scripted(load("anthropic"), clock, agents.looking)
    made = agents.options(Path(sys.argv[1]), "http://127.0.0.1:1")
    with agents.opened(made, provider=provider, dialect=Messages(), clock=clock) as run:
        for number in range(4):
            run.agent.say(f"turn {number}")
