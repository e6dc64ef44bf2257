"""Work that is done in small steps, with the loop's other business in between; and a count of answers that come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

STEP_S = 0.0005
"""For so long in_steps() goes on at a time, or for one piece of work."""


class Steps:
    """Goes on until there is nothing more to do at once. However often it is started, one step is done in a turn."""

    def __init__(self, step: Callable[[], bool], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`step` says whether there is more to do at once; `call_soon` is the loop's."""
        self._step = step
        self._call_soon = call_soon
        self._goes_on = False  # in a later turn
        self._is_stopped = False

    def start(self) -> None:
        """Do a step now, unless one is to come anyway."""
        if not self._goes_on and not self._is_stopped and self._step():
            self._goes_on = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._goes_on = False
        self.start()

    def stop(self) -> None:
        self._is_stopped = True


def in_steps(work: Iterator[object], call_soon: Callable[[Callable[[], None]], object]) -> None:
    """Run through small pieces of work: at once if they are few, else some in each turn of the loop."""

    def step() -> bool:
        ends_s = time.perf_counter() + STEP_S
        return any(time.perf_counter() >= ends_s for _ in work)

    Steps(step, call_soon).start()


class Awaited:
    """Calls back once as many answers came as were awaited."""

    __slots__ = ("_then", "number")

    def __init__(self, number: int, then: Callable[[], object]) -> None:
        self.number = number  # answers that are still to come
        self._then = then

    def came(self) -> None:
        """Count one answer."""
        self.number -= 1
        if not self.number:
            then, self._then = self._then, _nothing  # which may refer to this object
            then()


def _nothing() -> None: ...
