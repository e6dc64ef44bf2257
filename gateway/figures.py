"""What one metric is: its name, what it says, and where its value is read. The metrics are in gateway.metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway._wire import DELIVERY_BOUNDS_MS

if TYPE_CHECKING:  # a process has some of these only
    from gateway.broker import Broker
    from lightqueue.message_store import MessageStore
    from notify.remote import RemoteStore
    from notify.server import StoreServer


class Times(NamedTuple):
    """How often something took how long: once for each of DELIVERY_BOUNDS_MS, and longer; and all of it together."""

    counts: list[int]
    sum_s: float

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: so many took that long at most."""
        bounds = [*(str(bound / 1000) for bound in DELIVERY_BOUNDS_MS), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.counts)), strict=True))


Value = float | Mapping[str, float] | Times
"""One number, or one for each value of the metric's label."""


Source = TypeVar("Source", "Broker", "MessageStore", "RemoteStore", "StoreServer")


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
            if isinstance(value, Times):
                histogram.add_metric([], value.buckets, value.sum_s)
            return histogram
        metric: CounterMetricFamily | GaugeMetricFamily
        if self.kind == "counter":
            metric = CounterMetricFamily(self.name, self.doc, labels=labels)
        else:
            metric = GaugeMetricFamily(self.name, self.doc, labels=labels)
        if isinstance(value, Mapping):
            for label, number in value.items():
                metric.add_metric([label], number)
        elif not isinstance(value, Times):
            metric.add_metric([], value)
        return metric
