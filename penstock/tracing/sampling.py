"""Which messages are traced, and how many at most. No I/O."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable


class RateBound:
    """At most so many a second, in bursts of one second's worth."""

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = float(per_s)
        self._asked_s = clock()

    @property
    def is_used_up(self) -> bool:
        """Whether take() would answer no."""
        now_s = self._clock()
        self._left = min(float(self._per_s), self._left + (now_s - self._asked_s) * self._per_s)
        self._asked_s = now_s
        return self._left < 1

    def take(self) -> bool:
        """Whether there may be one more, which counts then."""
        if self.is_used_up:
            return False
        self._left -= 1
        return True


class Sampler:
    """Chooses a part of all messages, each with the same probability, by the distance to the next one."""

    def __init__(self, ratio: float, draw: Callable[[], float] = random.random) -> None:
        """`ratio`: from 0 to 1; `draw`: a number from 0 to less than 1."""
        self._ratio = ratio
        self._draw = draw
        self._left = self._distance()  # messages up to the next chosen one

    def chosen(self, count: int) -> list[int]:
        """Which of the next `count` messages are chosen, by their number from 0 on."""
        found: list[int] = []
        at = self._left
        while at < count:
            found.append(int(at))
            at += 1 + self._distance()
        self._left = at - count
        return found

    def _distance(self) -> float:
        if self._ratio >= 1:
            return 0
        if self._ratio <= 0:
            return math.inf
        return math.floor(math.log(1 - self._draw()) / math.log1p(-self._ratio))
