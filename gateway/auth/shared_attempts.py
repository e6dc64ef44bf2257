"""Processes share their counts of failed logins: each tells the others how its logins ended, by the store. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.auth.attempts import Attempts
from store.wire.operator_messages import MOST_LOGINS, LoginEnd, LoginsEnded

TOLD_PER_SECOND = 1_000
"""Ends of logins of each kind that a process tells the others; it counts the rest alone."""


class OtherDoors(Protocol):
    """The store, by which other processes are told of logins."""

    def logins_ended(self, ended: LoginsEnded) -> None:
        """Tell them how these ended here."""


class SharedAttempts:
    """Tells other processes how logins ended in this one, a turn's at once, and counts what they tell."""

    def __init__(
        self,
        attempts: Attempts,
        doors: OtherDoors,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`clock` in seconds; `soon` runs a function in a later turn of the loop."""
        self._attempts = attempts
        self._doors = doors
        self._clock = clock
        self._soon = soon
        self._waiting: list[LoginEnd] = []
        self._second = 0
        self._told = dict.fromkeys(("right", "wrong", "unheard"), 0)
        attempts.listen(self)

    def ended(self, end: LoginEnd) -> None:
        """A login in this process changed a count: tell the others in a later turn."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._told = second, dict.fromkeys(self._told, 0)
        self._told[end.how] += 1
        if self._told[end.how] > TOLD_PER_SECOND:
            return
        self._waiting.append(end)
        if len(self._waiting) == 1:
            self._soon(self._say)

    def _say(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), MOST_LOGINS):
            self._doors.logins_ended(LoginsEnded(waiting[at : at + MOST_LOGINS]))

    def take(self, ends: Iterable[LoginEnd]) -> None:
        """Count how logins ended in other processes."""
        for end in ends:
            self._attempts.take(end)
