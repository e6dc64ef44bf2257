"""Latency percentiles from the buckets that the devices count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec
from hdrh.histogram import HdrHistogram

LARGEST_US = 3600 * 1_000_000
DIGITS = 3


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in µs, and all values as a HDR histogram (base64, log form V2) for other programs."""

    count: int
    p50: int
    p90: int
    p99: int
    p99_9: int
    p99_99: int
    max: int
    histogram: str

    @classmethod
    def of(cls, buckets: Iterable[tuple[int, int]]) -> Self | None:
        """From [(µs, count)]; None if nothing was counted."""
        histogram = HdrHistogram(1, LARGEST_US, DIGITS)
        for us, count in buckets:
            histogram.record_value(min(max(us, 1), LARGEST_US), count)
        if not histogram.get_total_count():
            return None
        at = histogram.get_value_at_percentile
        return cls(
            count=histogram.get_total_count(),
            p50=at(50),
            p90=at(90),
            p99=at(99),
            p99_9=at(99.9),
            p99_99=at(99.99),
            max=histogram.get_max_value(),
            histogram=histogram.encode().decode(),
        )


def curve(histogram: str) -> list[tuple[float, int]]:
    """[(percentile, µs)], denser near 100."""
    decoded = HdrHistogram.decode(histogram)
    return [(item.percentile_level_iterated_to, item.value_iterated_to) for item in decoded.get_percentile_iterator(5)]
