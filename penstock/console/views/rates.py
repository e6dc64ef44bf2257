"""Rates of counters that are looked at now and then: the difference to what was seen a while ago."""

from __future__ import annotations

from collections import OrderedDict

LEAST_S = 1.0
"""Two looks that are closer together give no rate of their own."""
MOST_COUNTERS = 20_000


class Rates:
    """Remembers, by name, when a counter was seen last and its rate then."""

    def __init__(self) -> None:
        self._seen: OrderedDict[object, tuple[float, float, float | None]] = OrderedDict()

    def rate(self, name: object, count: float, now_s: float) -> float | None:
        """How much it grew in a second since it was seen; None at first.

        >>> rates = Rates()
        >>> rates.rate("a", 10, 1.0), rates.rate("a", 30, 5.0)
        (None, 5.0)
        """
        seen = self._seen.get(name)
        if seen is None or count < seen[1]:
            self._seen[name] = (now_s, count, None)
            if len(self._seen) > MOST_COUNTERS:
                self._seen.popitem(last=False)
            return None
        seen_s, seen_count, rate = seen
        if now_s - seen_s >= LEAST_S:
            rate = (count - seen_count) / (now_s - seen_s)
            self._seen[name] = (now_s, count, rate)
            self._seen.move_to_end(name)
        return rate
