"""The chart's autoscaling rules against loads that are made, not recorded: ahead of saturation, without flapping; worse
rules, which fail; and forecasts beside them."""

import copy
from typing import Any

import pytest

from loadtest.model.autoscaler import Pod, rules
from loadtest.model.forecast_table import forecast_rows
from loadtest.model.made_days import LAST_DAYS
from loadtest.model.needs import read
from loadtest.model.scaling import LoadPoint, ScalingReplay, read_load, replay
from tests.helm.chart import quantity, render

MOST_TURNS = {"day": 8, "burst": 2}
"""A day goes up twice and down twice, and has noise; a burst goes up once and down once."""
SHIFT = "a shift at 4:00, as before"
FORECAST_ON = ("--set", "gateway.autoscaling.targets.forecastConnections=20000")
ENABLED = ("--set", "gateway.autoscaling.enabled=true", "--set", "gateway.allowAnonymous=true")


def chart_rules() -> Any:
    return copy.deepcopy(render(*ENABLED).one("HorizontalPodAutoscaler"))


def pod() -> Pod:
    resources = render(*ENABLED).container("gateway")["resources"]
    asked, most = resources["requests"], resources["limits"]
    return Pod(quantity(asked["cpu"]), quantity(asked["memory"]), quantity(most["memory"]))


def replayed(load: str, document: Any) -> ScalingReplay:
    return replay(read_load(load), rules(document, pod()), read(None).costs, pod())


@pytest.mark.parametrize("load", ["day", "burst"])
@pytest.mark.catalogue("H31")
def test_the_charts_rules_are_ahead_and_steady(load: str) -> None:
    found = replayed(load, chart_rules())
    assert found.saturated_s == 0
    assert found.fullest < 1
    assert found.turns <= MOST_TURNS[load]
    assert max(moment.wanted for moment in found.moments) >= 5, "the load is one that needs many"
    assert found.moments[-1].wanted < max(moment.wanted for moment in found.moments), "and it goes down again"


def test_without_stabilisation_it_flaps() -> None:
    document = chart_rules()
    document["spec"]["behavior"]["scaleDown"] = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    }
    assert replayed("day", document).turns > 2 * MOST_TURNS["day"]


def steep_burst() -> list[LoadPoint]:
    """From some 60,000 connections to 540,000 in three minutes."""
    return [each._replace(connections=4 * each.connections - 60_000) for each in read_load("burst")]


@pytest.mark.parametrize("change", ["none", "targets that are too high", "too slow", "too few"])
def test_rules_that_come_too_late_saturate_a_gateway(change: str) -> None:
    document = chart_rules()
    spec = document["spec"]
    spec["maxReplicas"] = 2 if change == "too few" else 40
    if change == "targets that are too high":
        spec["metrics"] = [each for each in spec["metrics"] if "penstock_connections" in str(each)]
        spec["metrics"][0]["pods"]["target"]["averageValue"] = "120k"
    elif change == "too slow":
        spec["behavior"]["scaleUp"] = {
            "stabilizationWindowSeconds": 900,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}],
        }
    found = replay(steep_burst(), rules(document, pod()), read(None).costs, pod())
    assert (found.saturated_s == 0) == (change == "none")


@pytest.mark.parametrize("days", [(SHIFT,), pytest.param(tuple(LAST_DAYS), marks=pytest.mark.nightly)])
@pytest.mark.catalogue("Q64")
def test_what_a_forecast_saves_and_risks_on_made_days(days: tuple[str, ...]) -> None:
    """It saves where a fleet connects within a minute at a known time, and costs gateways on any other day."""
    by = rules(render(*ENABLED, *FORECAST_ON).one("HorizontalPodAutoscaler"), pod())
    rows = {(row.day, row.scaled_by): row for row in forecast_rows(by, read(None).costs, pod(), days_of=days)}
    assert rows[SHIFT, "reaction alone"].short_s > 600
    for name in ("and like yesterday", "and Holt-Winters"):
        assert rows[SHIFT, name].short_s == 0
        for day in days:
            alone, beside = rows[day, "reaction alone"], rows[day, name]
            assert beside.short_s <= alone.short_s, "the reaction stays: a wrong forecast takes no gateway away"
            assert alone.gateway_hours <= beside.gateway_hours < 1.2 * alone.gateway_hours
    assert all(
        rows[day, "and like yesterday"].gateway_hours < rows[day, "and Holt-Winters"].gateway_hours for day in days
    )
