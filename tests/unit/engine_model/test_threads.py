"""Steps of few rows are run with as many threads as is faster, and that is found out again as the machine changes."""

from localmodel.engine.threads import FEW, LOOKS, Pace


class Machine:
    """A machine on which a step takes `seconds[threads]`."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now, self.threads = seconds, 0.0, 4
        self.pace = Pace(4, self.use, lambda: self.now)

    def use(self, threads: int) -> None:
        self.threads = threads

    def step(self, rows: int) -> int:
        def act() -> int:
            self.now += self.seconds[self.threads]
            return self.threads

        return self.pace.run(rows, act)


def test_the_faster_way_is_taken_and_the_other_looked_at_again() -> None:
    busy = Machine({1: 0.08, 4: 0.3})
    assert [busy.step(1) for _ in range(LOOKS)] == [4, *[1] * (LOOKS - 2), 4]
    busy.seconds[4] = 0.02
    assert 4 in {busy.step(1) for _ in range(LOOKS)}
    assert {busy.step(1) for _ in range(LOOKS - 1)} == {4}


def test_prompts_have_all_threads_and_find_them_after_each_step() -> None:
    machine = Machine({1: 0.01, 4: 0.3})
    for _ in range(3):
        machine.step(FEW)
        assert machine.threads == 4
        assert machine.step(FEW + 1) == 4
