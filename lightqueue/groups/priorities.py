"""Whose turn it is in a group with priorities: the highest one's, and one time in eight that of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lightqueue.groups.popped import PopAnswer

SHARE: Final = 8
"""Of so many messages that are handed out, one has another priority than the highest, if such a one waits.

The others have that one in turn, so the slowest of n priorities has one message in SHARE * (n - 1) at least.
"""

Fill = Callable[[PopAnswer, int, int], None]


class PriorityTurns:
    """Owner of how many messages went before lower ones, in a group with several priorities."""

    def __init__(self, priorities: int) -> None:
        self._priorities = range(priorities)
        self._passed = 0  # messages that were handed out since one of the others had its turn
        self._next = 1  # whose turn that is

    def fill(self, answer: PopAnswer, fill: Fill) -> None:
        """Fill an answer by `fill`, which adds to it up to so many messages with a priority."""
        owed = (self._passed + answer.most) // SHARE
        self._add_high(answer, max(0, answer.most - owed), fill)
        for _ in self._priorities[1:]:
            number = min(owed, answer.room)
            if number <= 0:
                break
            before = answer.count
            fill(answer, self._next, number)
            owed -= answer.count - before
            self._passed -= SHARE * (answer.count - before)
            self._next = self._next % (len(self._priorities) - 1) + 1
        self._passed += answer.count
        if answer.room:  # nothing else waits
            self._passed = 0
            self._add_high(answer, answer.room, fill)

    def _add_high(self, answer: PopAnswer, most: int, fill: Fill) -> None:
        until = answer.count + most
        for priority in self._priorities:
            number = min(until - answer.count, answer.room)
            if number <= 0:
                return
            fill(answer, priority, number)
