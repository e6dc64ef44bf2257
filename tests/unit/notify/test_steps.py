"""Work in small steps: one in a turn, however often it was started."""

from notify.steps import Steps
from tests.support.mqtt_bench import FakeLoop


class Work:
    def __init__(self, steps: int) -> None:
        self.left = steps
        self.done = 0

    def step(self) -> bool:
        self.left -= 1
        self.done += 1
        return self.left > 0


def test_steps_run_once_in_a_turn_until_nothing_is_left() -> None:
    loop, work = FakeLoop(), Work(5)
    steps = Steps(work.step, loop.call_soon)
    for _ in range(3):
        steps.start()
    assert work.done == 1
    loop.run()
    assert (work.done, work.left) == (5, 0)
    work.left = 1
    steps.start()
    assert work.done == 6


def test_steps_do_nothing_once_stopped() -> None:
    loop, work = FakeLoop(), Work(5)
    steps = Steps(work.step, loop.call_soon)
    steps.start()
    steps.stop()
    loop.run()
    steps.start()
    assert work.done == 1
