"""The samples of a day, of all processes together and of each gateway; kept in memory from the console's start on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.console.observe.growth import HISTOGRAMS, Grown, Growth, summed, together
from penstock.console.observe.look import (
    CONNECTIONS,
    DISK_FREE,
    GROUP_LAG,
    READER_LAG,
    RECEIVED,
    SENT,
    SERVER,
    STORED,
    ProcessLook,
    ServerLook,
)
from penstock.console.observe.samples import KEPT, SamplePoint, SampleRing

ALL = ""
"""The name of all processes together."""
MOST_GATEWAYS = 16
"""Whose samples are kept; those of all together have the others as well."""
MOST_POINTS = 720
MOST_CHARTS = 64
"""That are kept until the next sample."""
WINDOW_S = 300
"""The last minutes, of which the overview shows p50 and p99."""


class HistoryChart(NamedTuple):
    """`step_s`: what each point stands for."""

    step_s: int
    points: list[SamplePoint]


class FigureHistory:
    """Owner of the samples. Times go on evenly, whatever becomes of the clock of this machine."""

    def __init__(self, clock: Callable[[], float], sample_s: int) -> None:
        """`clock`: seconds, as the time of a look; `sample_s`: how often add() is called."""
        self.sample_s = sample_s
        self.since_ms = round(time.time() * 1_000)
        self._clock = clock
        self._since_s = clock()
        self._growth = Growth()
        self._last: dict[str, Grown] = {}  # of the last sample
        self._last_s = 0.0
        self._rings: dict[str, SampleRing] = {ALL: SampleRing()}
        self._seen_s: dict[str, float] = {}  # of each gateway with samples
        self._charts: dict[tuple[str, int, int], HistoryChart] = {}

    @property
    def longest_s(self) -> int:
        """How far back samples reach."""
        return KEPT * self.sample_s

    def time_ms(self, at_s: float) -> int:
        return self.since_ms + round((at_s - self._since_s) * 1_000)

    def add(self, look: ServerLook) -> None:
        """Keep what happened since the last sample; of the first look nothing is kept."""
        if look.at_s <= self._last_s:
            return
        grown = self._last = self._growth.keep(look)
        self._last_s = look.at_s
        self._charts.clear()
        if not grown:
            return
        time_ms = self.time_ms(look.at_s)
        self._rings[ALL].add(sample_of_all(time_ms, look, grown))
        for name, each in grown.items():
            if name != SERVER:
                ring = self._ring(name, look.at_s)
                if ring is not None:
                    ring.add(sample_of(time_ms, look.processes[name], each))

    def _ring(self, name: str, now_s: float) -> SampleRing | None:
        """Of a gateway. If there are too many, those of one that is away for longest give way."""
        if name not in self._rings:
            if len(self._seen_s) >= MOST_GATEWAYS:
                oldest = min(self._seen_s, key=self._seen_s.__getitem__)
                if now_s - self._seen_s[oldest] < 2 * self.sample_s:
                    return None
                del self._rings[oldest], self._seen_s[oldest]
            self._rings[name] = SampleRing()
        self._seen_s[name] = now_s
        return self._rings[name]

    def has(self, name: str) -> bool:
        return name in self._rings

    def chart(self, name: str, span_s: int) -> HistoryChart:
        """The last `span_s` seconds, in MOST_POINTS at most. Answers are the same until the next sample."""
        now_s = self._clock()
        key = name, span_s, int(now_s // self.sample_s)
        found = self._charts.get(key)
        if found is None:
            step_s = self.sample_s * -(-span_s // (self.sample_s * MOST_POINTS))
            ring = self._rings.get(name)
            points = ring.points(self.time_ms(now_s - span_s), step_s) if ring is not None else []
            if len(self._charts) >= MOST_CHARTS:
                self._charts.clear()
            found = self._charts[key] = HistoryChart(step_s, points)
        return found

    def recent(self, look: ServerLook) -> dict[str, Grown]:
        """By process: since the sample before the last one."""
        if look.at_s <= self._last_s:
            return self._last
        last, since = self._last, self._growth.since(look)
        return {name: together(last[name], each) if name in last else each for name, each in since.items()}

    def last_minutes(self, name: str, look: ServerLook | None, until_s: float) -> SamplePoint:
        """What took how long in the WINDOW_S seconds up to that time; `look`: what came after the last sample."""
        since = self._growth.since(look) if look is not None else {}
        grown = since.values() if name == ALL else [since[name]] if name in since else []
        ring = self._rings.get(name)
        points = ring.points(self.time_ms(until_s - WINDOW_S), self.sample_s) if ring is not None else []
        times = [*(point.times for point in points), *(each.times for each in grown)]
        return SamplePoint(self.time_ms(until_s), {}, _summed(times))


def sample_of(time_ms: int, process: ProcessLook, grown: Grown) -> SamplePoint:
    """Of a gateway alone: a message comes in as it is taken from a client."""
    found = {
        "in": grown.rate(RECEIVED),
        "out": grown.rate(SENT),
        "clients": process.figures.total(CONNECTIONS),
    }
    return SamplePoint(time_ms, _known(found), grown.times)


def sample_of_all(time_ms: int, look: ServerLook, grown: dict[str, Grown]) -> SamplePoint:
    """A message comes in as it is stored, whoever brought it. What the log has is known to the store alone."""
    figures = look.figures
    numbers = {
        "in": grown[SERVER].rate(STORED) if SERVER in grown else None,
        "out": _sum(each.rate(SENT) for each in grown.values()),
        "clients": _sum(process.figures.total(CONNECTIONS) for process in look.processes.values()),
        "group_lag": max((lag for _, lag in figures.by(GROUP_LAG, "group")), default=0.0),
        "reader_lag": max((lag for _, lag in figures.by(READER_LAG, "reader")), default=0.0),
        "log_bytes": figures.total("penstock_log_bytes"),
        "disk_free": figures.total(DISK_FREE),
        "unindexed": figures.total("penstock_index_pending_entries"),
    }
    return SamplePoint(time_ms, _known(numbers), _summed(each.times for each in grown.values()))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _known(numbers: dict[str, float | None]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if number is not None}


def _summed(times: Iterable[dict[str, list[float]]]) -> dict[str, list[float]]:
    found = {name: [0.0] * (len(bounds) + 1) for name, bounds in HISTOGRAMS.items()}
    for each in times:
        for name, counts in each.items():
            found[name] = summed(found[name], counts)
    return found
