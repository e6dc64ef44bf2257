"""Samples of one process, or of all together, for a day: numbers, and how many times were in each bucket."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, takewhile
from math import isnan, nan
from typing import NamedTuple

from penstock.console.observe.growth import HISTOGRAMS, quantile_s

KEPT = 8_640
"""A day, if one is taken each ten seconds."""
MOST_COUNT = 2**32 - 1


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


NUMBERS: Mapping[str, Callable[[list[float]], float]] = {
    "in": _mean,
    "out": _mean,
    "clients": max,
    "group_lag": max,
    "reader_lag": max,
    "log_bytes": max,
    "disk_free": min,
    "unindexed": max,
}
"""What a sample has, with how those of one step are joined: what is worst is not hidden."""
_WIDTHS = {name: len(bounds) + 1 for name, bounds in HISTOGRAMS.items()}
_COUNTS = sum(_WIDTHS.values())
SAMPLE_BYTES = 8 + 4 * len(NUMBERS) + 4 * _COUNTS


class SamplePoint(NamedTuple):
    """One or more samples. `numbers` lacks what is not known. `times`: of each histogram how many in each bucket."""

    time_ms: int
    numbers: dict[str, float]
    times: dict[str, list[float]]

    def quantile_s(self, name: str, quantile: float) -> float | None:
        return quantile_s(self.times[name], HISTOGRAMS[name], quantile)


class SampleRing:
    """The newest KEPT samples, SAMPLE_BYTES each; memory is taken as they come."""

    def __init__(self) -> None:
        self._times_ms = array("q")
        self._numbers = array("f")
        self._counts = array("I")
        self._next = 0  # which one is overwritten next, once all are there

    def __len__(self) -> int:
        return len(self._times_ms)

    def add(self, sample: SamplePoint) -> None:
        numbers = array("f", [sample.numbers.get(name, nan) for name in NUMBERS])
        counts = array("I")
        for name, width in _WIDTHS.items():
            counts.extend(min(round(count), MOST_COUNT) for count in sample.times.get(name) or [0.0] * width)
        if len(self) < KEPT:
            self._times_ms.append(sample.time_ms)
            self._numbers.extend(numbers)
            self._counts.extend(counts)
            return
        at, self._next = self._next, (self._next + 1) % KEPT
        self._times_ms[at] = sample.time_ms
        self._numbers[at * len(NUMBERS) : (at + 1) * len(NUMBERS)] = numbers
        self._counts[at * _COUNTS : (at + 1) * _COUNTS] = counts

    def points(self, since_ms: int, step_s: int) -> list[SamplePoint]:
        """The samples from then on, oldest first, those of a step joined."""
        step_ms, found, joined = step_s * 1_000, list[SamplePoint](), list[int]()
        for at in self._from(since_ms):
            if joined and self._times_ms[joined[0]] // step_ms != self._times_ms[at] // step_ms:
                found.append(self._joined(joined))
                joined = []
            joined.append(at)
        return [*found, self._joined(joined)] if joined else found

    def _from(self, since_ms: int) -> Iterator[int]:
        newest_first = chain(reversed(range(self._next)), reversed(range(self._next, len(self))))
        return reversed([*takewhile(lambda at: self._times_ms[at] >= since_ms, newest_first)])

    def _joined(self, places: list[int]) -> SamplePoint:
        numbers = {}
        for column, (name, join) in enumerate(NUMBERS.items()):
            values = [self._numbers[at * len(NUMBERS) + column] for at in places]
            values = [value for value in values if not isnan(value)]
            if values:
                numbers[name] = join(values)
        counts = [list(self._counts[at * _COUNTS : (at + 1) * _COUNTS]) for at in places]
        summed = list(map(float, map(sum, zip(*counts, strict=True)))) if len(counts) > 1 else [*map(float, counts[0])]
        times, begin = {}, 0
        for name, width in _WIDTHS.items():
            times[name] = summed[begin : begin + width]
            begin += width
        return SamplePoint(self._times_ms[places[-1]], numbers, times)
