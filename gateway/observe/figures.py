"""One figure of what Penstock counts, and how it becomes a Prometheus metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.mqtt._mqtt import DELIVERY_BOUNDS_MS
from store.log.durations import BOUNDS_S, Durations

Source = TypeVar("Source")


DELIVERY_BOUNDS_S = tuple(bound / 1000 for bound in DELIVERY_BOUNDS_MS)


class Times(NamedTuple):
    """How often something took how long: once for each of the bounds, and longer; and all of it together."""

    counts: list[int]
    sum_s: float
    bounds_s: tuple[float, ...] = DELIVERY_BOUNDS_S

    @classmethod
    def of(cls, durations: Durations) -> Self:
        """As they are now."""
        return cls(list(durations.counts), durations.sum_s, BOUNDS_S)

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: so many took that long at most."""
        bounds = [*map(str, self.bounds_s), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.counts)), strict=True))


F = TypeVar("F", bound="Figure[Any]")
Value = float | Mapping[str, float] | Times | Mapping[str, Times]
"""One number, or one for each value of the metric's label; the same of times."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[Source]):
    """One metric: what it is called, what it says, and where its value is read."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    read: Callable[[Source], Value]
    label: str = ""

    def family(self, value: Value) -> Metric:
        """The metric in Prometheus terms, with a value that `read` gave."""
        labels = [self.label] if self.label else []
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.doc, labels=labels)
            for values, times in _labelled(value):
                if isinstance(times, Times):
                    histogram.add_metric(values, times.buckets, times.sum_s)
            return histogram
        metric: CounterMetricFamily | GaugeMetricFamily
        if self.kind == "counter":
            metric = CounterMetricFamily(self.name, self.doc, labels=labels)
        else:
            metric = GaugeMetricFamily(self.name, self.doc, labels=labels)
        for values, number in _labelled(value):
            if not isinstance(number, Times):
                metric.add_metric(values, number)
        return metric


def joined(steps: Iterable[list[tuple[F, Value]]]) -> list[tuple[F, Value]]:
    """Each metric once, with all labels that steps gave it."""
    found: dict[str, tuple[F, Value]] = {}
    for figure, value in (reading for step in steps for reading in step):
        before = found[figure.name][1] if figure.name in found else None
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = cast(Value, {**before, **value})  # of the same kind: it is the same metric
        found[figure.name] = figure, value
    return list(found.values())


def _labelled(value: Value) -> Iterator[tuple[list[str], float | Times]]:
    if isinstance(value, Mapping):
        yield from (([label], each) for label, each in value.items())
    else:
        yield [], value
