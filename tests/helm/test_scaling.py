"""The chart's autoscaling rules against loads: ahead of saturation, without flapping; and worse rules, which fail."""

import copy
from typing import Any

import pytest

from loadtest.autoscaler import Pod, rules
from loadtest.model import read
from loadtest.scaling import Replay, read_load, replay
from tests.helm.chart import quantity, render

MOST_TURNS = {"day": 8, "burst": 2}
"""A day goes up twice and down twice, and has noise; a burst goes up once and down once."""
ENABLED = ("--set", "gateway.autoscaling.enabled=true", "--set", "gateway.allowAnonymous=true")


def chart_rules() -> Any:
    return copy.deepcopy(render(*ENABLED).one("HorizontalPodAutoscaler"))


def pod() -> Pod:
    resources = render(*ENABLED).container("gateway")["resources"]
    asked, most = resources["requests"], resources["limits"]
    return Pod(quantity(asked["cpu"]), quantity(asked["memory"]), quantity(most["memory"]))


def replayed(load: str, document: Any) -> Replay:
    return replay(read_load(load), rules(document, pod()), read(None).costs, pod())


@pytest.mark.parametrize("load", ["day", "burst"])
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


@pytest.mark.parametrize("change", ["targets that are too high", "too slow", "too few"])
def test_rules_that_come_too_late_saturate_a_gateway(change: str) -> None:
    document = chart_rules()
    spec = document["spec"]
    if change == "targets that are too high":
        spec["metrics"] = [
            m for m in spec["metrics"] if m.get("pods", {}).get("metric", {}).get("name", "").endswith("ons")
        ]
        spec["metrics"][0]["pods"]["target"]["averageValue"] = "120k"
    elif change == "too slow":
        spec["behavior"]["scaleUp"] = {
            "stabilizationWindowSeconds": 900,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}],
        }
    else:
        spec["maxReplicas"] = 2
    burst = [each._replace(connections=3 * each.connections, messages=3 * each.messages) for each in read_load("burst")]
    found = replay(burst, rules(document, pod()), read(None).costs, pod())
    assert found.saturated_s > 60
