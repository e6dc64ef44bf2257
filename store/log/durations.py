"""Counts durations in buckets, for a histogram."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bound of each bucket, in seconds; one more bucket holds longer durations."""


class Durations:
    """Counts of one histogram. One thread adds; other threads may read."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count `times` durations of `seconds` each."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times
