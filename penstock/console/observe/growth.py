"""What the counters of processes grew by between two looks, whichever of them come, go and begin at 0 again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from gateway.mqtt._mqtt import DELIVERY_BOUNDS_MS
from penstock.console.observe.look import RECEIVED, SENT, STORED, ProcessLook, ServerLook
from store.log.durations import BOUNDS_S

ACKNOWLEDGED, DELIVERED, FLUSHED = (
    "penstock_publish_acknowledged_seconds",
    "penstock_delivery_seconds",
    "penstock_log_sync_duration_seconds",
)
HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    ACKNOWLEDGED: BOUNDS_S,
    DELIVERED: tuple(bound / 1_000 for bound in DELIVERY_BOUNDS_MS),
    FLUSHED: BOUNDS_S,
}
"""By name, with the upper bounds of their buckets in seconds; one more bucket holds longer times."""
TRAFFIC = (RECEIVED, SENT, STORED)
FORGOTTEN_S = 3_600.0
"""Without a look a process is forgotten after this time."""
MOST_PROCESSES = 1_000


class Grown(NamedTuple):
    """Of one process: how much within how long. Of times: how many in each bucket."""

    seconds: float
    counts: dict[str, float]
    times: dict[str, list[float]]

    def rate(self, name: str) -> float | None:
        """A second; None: the process does not count that."""
        count = self.counts.get(name)
        return None if count is None else count / self.seconds


def together(one: Grown, other: Grown) -> Grown:
    """Of the same process, one after the other."""
    counts = {name: count + other.counts[name] for name, count in one.counts.items() if name in other.counts}
    times = {name: summed(each, other.times[name]) for name, each in one.times.items() if name in other.times}
    return Grown(one.seconds + other.seconds, counts, times)


def summed(one: list[float], other: list[float]) -> list[float]:
    """Bucket by bucket."""
    return [here + there for here, there in zip(one, other, strict=True)]


class _Seen(NamedTuple):
    at_s: float
    started_ms: int
    counts: dict[str, float]
    times: dict[str, list[float]]  # not above each bound, and all


class Growth:
    """Remembers each process as it was seen last. `counters`: the names of those that are looked at."""

    def __init__(self, counters: Iterable[str] = TRAFFIC, histograms: Iterable[str] = tuple(HISTOGRAMS)) -> None:
        self._counters = tuple(counters)
        self._histograms = tuple(histograms)
        self._seen: dict[str, _Seen] = {}

    def since(self, look: ServerLook) -> dict[str, Grown]:
        """By process; those are left out that are new, or were started again."""
        found = {}
        for name, process in look.processes.items():
            before, now = self._seen.get(name), self._read(look.at_s, process)
            grown = _between(before, now) if before is not None else None
            if grown is not None:
                found[name] = grown
        return found

    def keep(self, look: ServerLook) -> dict[str, Grown]:
        """The same; what comes next grows from here on."""
        found = self.since(look)
        kept = {name: seen for name, seen in self._seen.items() if look.at_s - seen.at_s < FORGOTTEN_S}
        for name, process in look.processes.items():
            kept.pop(name, None)  # to its end: the first one was seen least recently
            kept[name] = self._read(look.at_s, process)
        self._seen = dict(list(kept.items())[-MOST_PROCESSES:])
        return found

    def _read(self, at_s: float, process: ProcessLook) -> _Seen:
        figures = process.figures
        totals = ((name, figures.total(name)) for name in self._counters)
        times = {}
        for name in self._histograms:
            buckets = figures.buckets(name)
            bounds = (*HISTOGRAMS[name], float("inf"))
            if buckets.keys() == set(bounds):
                times[name] = [buckets[bound] for bound in bounds]
        return _Seen(at_s, process.started_ms, {name: total for name, total in totals if total is not None}, times)


def _between(before: _Seen, now: _Seen) -> Grown | None:
    """None: it was started again meanwhile, or this is the same look."""
    if now.started_ms != before.started_ms or now.at_s <= before.at_s:
        return None
    counts = {name: total - before.counts[name] for name, total in now.counts.items() if name in before.counts}
    times = {name: _by_bucket(before.times[name], all_) for name, all_ in now.times.items() if name in before.times}
    if any(count < 0 for count in counts.values()) or any(min(buckets) < 0 for buckets in times.values()):
        return None
    return Grown(now.at_s - before.at_s, counts, times)


def _by_bucket(before: list[float], now: list[float]) -> list[float]:
    grown = [other - one for one, other in zip(before, now, strict=True)]
    return [grown[0], *(other - one for one, other in pairwise(grown))]


def quantile_s(counts: list[float], bounds_s: tuple[float, ...], quantile: float) -> float | None:
    """The time that this part of all did not exceed, in seconds, within a bucket by straight line; None: there were
    none. What took longer than the last bound counts as that.

    >>> quantile_s([0, 10, 10, 0], (1.0, 2.0, 4.0), 0.5), quantile_s([0, 10, 10, 0], (1.0, 2.0, 4.0), 0.75)
    (2.0, 3.0)
    """
    total = sum(counts)
    if total <= 0:
        return None
    left, low_s = quantile * total, 0.0
    for count, high_s in zip(counts, bounds_s, strict=False):
        if count and count >= left:
            return low_s + (high_s - low_s) * left / count
        left, low_s = left - count, high_s
    return bounds_s[-1]
