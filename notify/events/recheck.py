"""Chooses the queues that a gateway checks with the store next: slowly all that it follows. No I/O.

A connection loses no event unless it ends. So a check finds something only if a look-up table was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

EVERY_S = 3.0  # a pass begins at least so long after the one before
PAGE = 1_000  # queues in one question; at most one question in 50 ms, so 100,000 queues take 5 s


class Recheck:
    """Passes over all followed queues, a page at a time; a page is asked after the answer to the last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._next_s = clock() + EVERY_S
        self._left: list[int] = []
        self._is_asked = False

    def page(self, refs: Iterable[int]) -> list[int]:
        """The refs to ask about now; empty if it is not time. `refs`: all followed queues."""
        if self._is_asked:
            return []
        if not self._left:
            now_s = self._clock()
            if now_s < self._next_s:
                return []
            self._next_s = now_s + EVERY_S
            self._left = list(refs)
        page = self._left[-PAGE:]
        del self._left[-PAGE:]
        self._is_asked = bool(page)
        return page

    def answered(self) -> None:
        self._is_asked = False

    def begin_anew(self) -> None:
        """Begin again: the open question will not be answered, and the refs have changed."""
        self._is_asked = False
        self._next_s = self._clock()
        self._left.clear()
