"""The time by which sessions and old segments expire: the wall clock without its jumps.

If the wall clock was set ahead by half an hour, each session with a shorter expiry would be lost. CLOCK_BOOTTIME says
how much time really passed: it is never set, and goes on while the machine sleeps.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable

log = logging.getLogger("penstock.store")

MOST_JUMPS = 1_000
"""Jumps that are remembered; older ones are forgotten."""


def wall_time_s() -> float:
    """Unix time in seconds."""
    return time.time()


def boot_time_s() -> float:
    """Seconds since any fixed point, by a clock that is never set."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """Compares the wall clock with the boot clock at each call, and notes jumps. For one thread at a time."""

    def __init__(
        self, least_jump_s: float, wall: Callable[[], float] = wall_time_s, passed: Callable[[], float] = boot_time_s
    ) -> None:
        """A difference of `least_jump_s` or more between two calls is a jump; a smaller one is taken as it is."""
        self.jumps = 0
        self._least_jump_s = least_jump_s
        self._wall = wall
        self._passed = passed
        self._last_wall_s, self._last_passed_s = wall(), passed()
        self._since_s: list[float] = []  # wall times from which the shifts hold, rising
        self._shifts_s: list[float] = [0.0]  # by how much the wall clock is ahead; first: before the first jump

    def now_s(self) -> float:
        """Unix time in seconds, as it would be if the clock had not been set while this process runs."""
        wall_s, passed_s = self._wall(), self._passed()
        step_s = (wall_s - self._last_wall_s) - (passed_s - self._last_passed_s)
        self._last_wall_s, self._last_passed_s = wall_s, passed_s
        if abs(step_s) >= self._least_jump_s:
            self._jumped(wall_s, step_s)
        return wall_s - self._shifts_s[-1]

    def without_jumps(self, wall_s: float) -> float:
        """The time by now_s() of the moment that the wall clock called `wall_s`."""
        return wall_s - self._shifts_s[bisect_right(self._since_s, wall_s)]

    def _jumped(self, wall_s: float, step_s: float) -> None:
        self.jumps += 1
        shift_s = self._shifts_s[-1] + step_s
        while self._since_s and (self._since_s[-1] >= wall_s or len(self._since_s) >= MOST_JUMPS):
            del self._since_s[-1], self._shifts_s[-1]  # it was set back: these wall times come again
        self._since_s.append(wall_s)
        self._shifts_s.append(shift_s)
        way = "ahead" if step_s > 0 else "back"
        log.warning(
            "the clock was set %s by %.0f s: sessions and old segments expire as if it had not been; check NTP",
            way,
            abs(step_s),
        )
