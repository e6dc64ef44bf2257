"""Figures as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from store.figures import Figure, Reading, Times, Value, joined
from store.version import VERSION


class FigureCollector(Collector):
    """Gives a Prometheus registry what `ask` answers: figures in steps, each read by the loop."""

    def __init__(self, ask: Callable[[], Iterable[list[Reading]]]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("penstock_build", "The version of Penstock.", {"version": VERSION})
        for figure, value in joined(self._ask()):
            yield family(figure, value)

    def describe(self) -> list[Metric]:
        return []  # the names differ from those of the process's own collectors, and nothing else is in the registry


def family(figure: Figure[Any], value: Value) -> Metric:
    """A figure in Prometheus terms, with a value that its `read` gave."""
    labels = [figure.label] if figure.label else []
    if figure.kind == "histogram":
        histogram = HistogramMetricFamily(figure.name, figure.doc, labels=labels)
        for values, times in _labelled(value):
            if isinstance(times, Times):
                histogram.add_metric(values, times.buckets, times.sum_s)
        return histogram
    metric: CounterMetricFamily | GaugeMetricFamily
    if figure.kind == "counter":
        metric = CounterMetricFamily(figure.name, figure.doc, labels=labels)
    else:
        metric = GaugeMetricFamily(figure.name, figure.doc, labels=labels)
    for values, number in _labelled(value):
        if not isinstance(number, Times):
            metric.add_metric(values, number)
    return metric


def _labelled(value: Value) -> Iterator[tuple[list[str], float | Times]]:
    if isinstance(value, Mapping):
        yield from (([label], each) for label, each in value.items())
    else:
        yield [], value
