"""Forecasts of connections, which an autoscaler takes beside what it measures: what asks for more gateways wins."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

from loadtest.errors import LoadTestError
from loadtest.model.made_days import MadeDays
from loadtest.model.scaling import DAY_S, Expectation, LoadPoint

LEAD_S = 900
"""How far it looks ahead."""
BIN_S = 900
BINS = DAY_S // BIN_S
LEAST_DAYS = 2
MOST_RATIO = 2.0
"""Of today to yesterday, in the rule of Prometheus: more is a peak of today, which its own metric tells of."""
SMOOTHING = (0.3, 0.01, 0.2)
"""Of level, trend and shape, in Holt-Winters: a day's level counts at once, a shape after some days."""


class SeenBins:
    """Mean connections of quarters of an hour, of days before and of today as far as it is seen."""

    def __init__(self, before: Sequence[LoadPoint]) -> None:
        """Raises LoadTestError."""
        if any(not math.isfinite(point.connections) or point.connections < 0 for point in before):
            raise LoadTestError("a load with numbers that are negative or none; a forecast needs others")
        self.means: list[float] = []
        self._sum, self._number = 0.0, 0
        self._day_begins = 0
        for point in before:
            self.saw(point.at_s - before[0].at_s, point.connections)
        self._end()
        self._day_begins = len(self.means)
        if self._day_begins < LEAST_DAYS * BINS or self._day_begins % BINS:
            raise LoadTestError(f"a forecast by the shape of a day needs {LEAST_DAYS} whole days or more")

    def saw(self, at_s: float, connections: float) -> None:
        while self._day_begins + int(at_s // BIN_S) > len(self.means):
            self._end()
        self._sum += connections
        self._number += 1

    def _end(self) -> None:
        self.means.append(self._sum / self._number if self._number else self.means[-1])
        self._sum, self._number = 0.0, 0

    def is_new(self, known: int) -> bool:
        return len(self.means) > known


class HoltWinters:
    """Level, trend and the shape of a day, by the library statsmodels; made anew for each quarter of an hour."""

    def __init__(self, before: Sequence[LoadPoint]) -> None:
        """Raises LoadTestError."""
        self._seen = SeenBins(before)
        self._known = 0
        self._next: list[float] = []

    def saw(self, at_s: float, connections: float) -> None:
        self._seen.saw(at_s, connections)

    def expects(self, at_s: float) -> float:
        means = self._seen.means
        if self._seen.is_new(self._known):
            self._known = len(means)
            self._next = holt_winters(means, 2 + LEAD_S // BIN_S)
        return max(0.0, *self._next)


def holt_winters(means: Sequence[float], number: int) -> list[float]:
    """The next so many means. Raises LoadTestError if the library is missing."""
    try:
        from statsmodels.tsa.holtwinters import ExponentialSmoothing
    except ImportError:
        raise LoadTestError("a forecast needs statsmodels: pip install 'penstock[forecast]'") from None
    level, trend, shape = SMOOTHING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a logarithm that only its information criteria need
        made = ExponentialSmoothing(
            [*means],
            trend="add",
            damped_trend=True,
            seasonal="add",
            seasonal_periods=BINS,
            initialization_method="heuristic",
        )
        fitted = made.fit(
            smoothing_level=level, smoothing_trend=trend, smoothing_seasonal=shape, damping_trend=0.9, optimized=False
        )
        return [float(each) for each in fitted.forecast(number)]


class LikeYesterday:
    """The same time of yesterday, by how much more or less there is now: a rule that Prometheus evaluates by itself.

    helm/penstock/examples/forecast-rules.yaml is this rule.
    """

    def __init__(self, before: Sequence[LoadPoint]) -> None:
        """Raises LoadTestError."""
        self._seen = SeenBins(before)

    def saw(self, at_s: float, connections: float) -> None:
        self._seen.saw(at_s, connections)

    def expects(self, at_s: float) -> float:
        means = self._seen.means
        now = len(means)
        yesterday = means[now - BINS : now - BINS + 1 + LEAD_S // BIN_S]
        then = means[now - BINS - 1]
        return max(yesterday) * min(MOST_RATIO, means[-1] / then) if then > 0 else 0.0


FORECASTS: dict[str, Callable[[Sequence[LoadPoint]], Expectation] | None] = {
    "reaction alone": None,
    "and like yesterday": LikeYesterday,
    "and Holt-Winters": HoltWinters,
}


def forecast_of(name: str, days: MadeDays) -> Expectation | None:
    """What is beside the reaction; None: nothing."""
    made = FORECASTS[name]
    return None if made is None else made(days.before)
