"""Callbacks at a later time: one heap, looked at several times a second."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

SLACK = 1_024
"""Replaced and cancelled deadlines that may lie in the heap besides as many as there are live ones."""


class Deadlines:
    """At most one deadline per key; setting it again replaces it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []
        self._pending: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, key: Hashable, at_s: float, action: Callable[[], None]) -> None:
        """Call `action` once the clock that `run` is given reaches `at_s`."""
        self._serial += 1
        self._pending[key] = (self._serial, action)
        heapq.heappush(self._heap, (at_s, self._serial, key))
        if len(self._heap) > 2 * len(self._pending) + SLACK:
            self._heap = [entry for entry in self._heap if self._pending.get(entry[2], (0,))[0] == entry[1]]
            heapq.heapify(self._heap)

    def cancel(self, key: Hashable) -> bool:
        """True if there was one."""
        return self._pending.pop(key, None) is not None

    def run(self, now_s: float, most: int | None = None) -> None:
        """Call what is due, oldest first, and no more than `most` of it."""
        while self._heap and self._heap[0][0] <= now_s and most != 0:
            _, serial, key = heapq.heappop(self._heap)
            pending = self._pending.get(key)
            if pending is not None and pending[0] == serial:
                del self._pending[key]
                pending[1]()
                most = most - 1 if most is not None else None
