"""Work that is done in small steps, with the loop's other business in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice


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


def some_of(work: Iterator[None], most: int) -> bool:
    """A step of work that is written as a generator: so many of its parts. True if there are more."""
    return sum(1 for _ in islice(work, most)) == most
