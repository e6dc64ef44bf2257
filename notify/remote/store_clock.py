"""The store's clock, as a gateway knows it: all gateways go by that one, however wrong their own are."""

from __future__ import annotations

import math
from collections.abc import Callable

ROUNDING_MS = 2  # the time was rounded down to a millisecond, by the store and here


class StoreClock:
    """Rather late than early, as messages expire by it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, of any beginning."""
        self._clock = clock
        self._ahead_ms = 0  # of the store's Unix time before our clock
        self._behind_ms = 0  # at most, of what we take for the store's time behind it

    def set(self, now_ms: int, asked_s: float) -> None:
        """The time (Unix, ms) at some moment since `asked_s` by our clock."""
        now_s = self._clock()
        self._ahead_ms = now_ms - int(now_s * 1000)
        self._behind_ms = max(0, math.ceil((now_s - asked_s) * 1000))

    def now_ms(self) -> int:
        """Unix time."""
        return self._ahead_ms + int(self._clock() * 1000)

    def due_ms(self, delay_s: int) -> int:
        """When a delay that begins now is over at the latest."""
        return self.now_ms() + self._behind_ms + ROUNDING_MS + 1_000 * delay_s
