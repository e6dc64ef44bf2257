"""The autoscaler: its steps as Kubernetes describes them, and what it is given."""

from pathlib import Path

import pytest

from loadtest.errors import LoadTestError
from loadtest.model.autoscaler import Direction, Pod, Policy, Scaler, ScalingRules, rules_in
from loadtest.model.scaling import read_load

FAST = Direction(0, "Max", (Policy(True, 100, 15),))


def scaler(replicas: int, up: Direction = FAST, down: Direction = FAST, **targets: float) -> Scaler:
    made = Scaler(ScalingRules(1, 20, targets or {"load": 10.0}, up, down))
    made.replicas = replicas
    return made


@pytest.mark.parametrize(("load", "replicas"), [(40, 4), (43.9, 4), (36.1, 4), (45, 5), (35, 4), (30, 3), (5, 1)])
def test_the_target_and_its_tolerance(load: float, replicas: int) -> None:
    made = scaler(4)
    made.look(0, {"load": load})
    assert made.replicas == replicas


def test_the_metric_that_asks_for_most_wins() -> None:
    made = scaler(4, a=10.0, b=1.0)
    made.look(0, {"a": 20, "b": 6, "unknown": 1_000})
    assert made.replicas == 6


def test_policies_bound_a_change() -> None:
    two = Direction(0, "Max", (Policy(True, 50, 60), Policy(False, 1, 60)))
    made = scaler(4, up=two)
    for at_s, replicas in ((0, 6), (15, 6), (60, 9), (120, 14)):
        made.look(at_s, {"load": 200})
        assert made.replicas == replicas
    made = scaler(4, up=two._replace(selects="Min"))
    made.look(0, {"load": 200})
    assert made.replicas == 5
    made = scaler(4, up=two._replace(selects="Disabled"))
    made.look(0, {"load": 200})
    assert made.replicas == 4


def test_stabilisation_waits_for_calm() -> None:
    made = scaler(4, down=FAST._replace(window_s=60))
    made.look(0, {"load": 40})
    for at_s in range(15, 61, 15):
        made.look(at_s, {"load": 10})
        assert made.replicas == 4
    made.look(75, {"load": 10})
    assert made.replicas == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Deployment", "0 HorizontalPodAutoscalers"),
        ("kind: HorizontalPodAutoscaler", "no HorizontalPodAutoscaler of autoscaling/v2"),
        ("a: b: c", "not YAML"),
    ],
)
def test_rules_that_are_none_are_said(text: str, fault: str) -> None:
    with pytest.raises(LoadTestError, match=fault):
        rules_in(text, Pod())


def test_loads_that_are_none_are_said(tmp_path: Path) -> None:
    assert len(read_load("day")) == 1_441
    with pytest.raises(LoadTestError, match="burst, day"):
        read_load("week")
    bad = tmp_path / "bad.csv"
    for text in ("a,b\n1,2\n", "seconds,connections,messages_per_s\n1,1,1\n1,1,1\n", ""):
        bad.write_text(text)
        with pytest.raises(LoadTestError, match="in order of time"):
            read_load(str(bad))
