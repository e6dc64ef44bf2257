"""Forecasts of connections: the days that are made for them, what the library promises, and what is refused."""

from __future__ import annotations

import math
import warnings

import pytest

from loadtest.errors import LoadTestError
from loadtest.model.forecast import BIN_S, BINS, LEAD_S, HoltWinters, LikeYesterday, SeenBins, holt_winters
from loadtest.model.made_days import HISTORY_DAYS, LAST_DAYS, made_days
from loadtest.model.scaling import DAY_S, LoadPoint

MINUTE_S = 60
STEP_AT_S = 6 * 3_600


def stepped(days: int, factor: float = 1) -> list[LoadPoint]:
    """1,000 connections, and 5,000 from 6:00 to 12:00."""
    return [
        LoadPoint(at_s, factor * (5_000 if STEP_AT_S <= at_s % DAY_S < 2 * STEP_AT_S else 1_000), 0)
        for at_s in range(0, days * DAY_S, MINUTE_S)
    ]


def test_the_library_finds_the_shape_of_a_day_and_a_trend() -> None:
    """What statsmodels promises, and warns of nothing that pytest would see."""
    shape = [100 + 50 * math.sin(2 * math.pi * bin_ / BINS) for bin_ in range(BINS)]
    days = [[value + 5 * day for value in shape] for day in range(7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = holt_winters([value for day in days for value in day], BINS)
    expected = [value + 5 * 7 for value in shape]
    assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) < 10
    assert holt_winters([0.0] * 3 * BINS, 2) == pytest.approx([0, 0])


@pytest.mark.parametrize("kind", [LikeYesterday, HoltWinters])
def test_a_step_of_every_day_is_expected_before_it_comes(kind: type[LikeYesterday | HoltWinters]) -> None:
    forecast = kind(stepped(7))
    expected = {}
    for at_s in range(0, STEP_AT_S, MINUTE_S):
        forecast.saw(at_s, 1_000)
        expected[at_s] = forecast.expects(at_s)
    assert expected[STEP_AT_S - 2 * LEAD_S - BIN_S] < 2_000
    assert expected[STEP_AT_S - BIN_S] > 4_500


def test_yesterday_counts_as_much_as_today_is_more_and_twice_at_most() -> None:
    for factor, expected in ((0.5, 500), (1.5, 1_500), (10, 2_000)):
        forecast = LikeYesterday(stepped(2))
        for at_s in range(0, 3 * BIN_S, MINUTE_S):
            forecast.saw(at_s, factor * 1_000)
        assert forecast.expects(3 * BIN_S) == pytest.approx(expected)


def test_a_history_without_connections_expects_nothing() -> None:
    forecast = LikeYesterday(stepped(2, 0))
    forecast.saw(0, 100)
    assert forecast.expects(0) == 0


def test_quarters_of_an_hour_that_were_not_seen_are_like_the_last_one() -> None:
    seen = SeenBins(stepped(2))
    seen.saw(0, 7)
    seen.saw(3 * BIN_S, 9)
    assert seen.means[2 * BINS :] == [7, 7, 7]


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (stepped(1), "2 whole days or more"),
        (stepped(3)[:-30], "2 whole days or more"),
        ([LoadPoint(0, math.nan, 0)], "negative or none"),
        ([LoadPoint(0, -1, 0)], "negative or none"),
    ],
)
def test_a_load_that_nothing_can_be_expected_from(load: list[LoadPoint], why: str) -> None:
    with pytest.raises(LoadTestError, match=why):
        LikeYesterday(load)


def test_made_days_are_the_same_for_one_seed_and_differ_from_each_other() -> None:
    days = made_days("as before")
    assert days == made_days("as before")
    assert days != made_days("as before", seed=2)
    assert len(days.before) == HISTORY_DAYS * len(days.day)
    assert days.day[0].at_s - days.before[-1].at_s == days.before[1].at_s
    per_day = len(days.day)
    assert len({point.connections for point in days.before[::per_day]}) == HISTORY_DAYS
    for last in LAST_DAYS:
        assert len(made_days(last).day) == per_day
