"""The scaling rules of a Kubernetes HorizontalPodAutoscaler (autoscaling/v2).

Each metric asks for as many pods as bring it to its target, unless it is within a tolerance; the largest number wins.
Stabilisation windows and policies then limit the change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from loadtest.errors import LoadTestError

TOLERANCE = 0.1
SYNC_S = 15
"""Kubernetes' interval of evaluation."""
MIB = 1 << 20
UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "Mi": float(MIB), "Gi": float(1 << 30)}


class Policy(NamedTuple):
    is_percent: bool
    value: float
    period_s: float


class Direction(NamedTuple):
    """scaleUp or scaleDown; `selects`: Max, Min or Disabled."""

    window_s: float
    selects: str
    policies: tuple[Policy, ...]


class ScalingRules(NamedTuple):
    """The rules of an autoscaler; targets: average by metric; CPU in cores, memory in bytes."""

    least: int
    most: int
    targets: Mapping[str, float]
    up: Direction
    down: Direction


class Pod(NamedTuple):
    """The capacity of one gateway, and its resource requests."""

    cpu_cores: float = 1.0
    memory_bytes: float = 512 * MIB
    memory_limit_bytes: float = 1024 * MIB
    most_connections: int = 100_000


def rules_in(text: str, pod: Pod) -> ScalingRules:
    """The rules of the HorizontalPodAutoscaler among rendered YAML documents. Raises LoadTestError."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except yaml.YAMLError as error:
        raise LoadTestError(f"not YAML: {' '.join(str(error).split())}") from None
    found = [each for each in documents if each.get("kind") == "HorizontalPodAutoscaler"]
    if len(found) != 1:
        raise LoadTestError(
            f"{len(found)} HorizontalPodAutoscalers; render one, with gateway.autoscaling.enabled (docs/loadtest.md)"
        )
    return rules(found[0], pod)


def rules(document: Mapping[str, Any], pod: Pod) -> ScalingRules:
    """The rules of a HorizontalPodAutoscaler (autoscaling/v2) as helm renders it. Raises LoadTestError."""
    try:
        spec = document["spec"]
        behavior = spec.get("behavior", {})
        up = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
        down = {**up, "stabilizationWindowSeconds": 300}
        targets = dict(_target(metric, pod) for metric in spec["metrics"])
        directions = [_direction({**by, **behavior.get(n, {})}) for n, by in (("scaleUp", up), ("scaleDown", down))]
        return ScalingRules(spec.get("minReplicas", 1), spec["maxReplicas"], targets, *directions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadTestError(f"no HorizontalPodAutoscaler of autoscaling/v2: {error!r}; see docs/loadtest.md") from None


def _direction(given: Mapping[str, Any]) -> Direction:
    policies = tuple(
        Policy(each["type"] == "Percent", each["value"], each["periodSeconds"]) for each in given["policies"]
    )
    return Direction(given["stabilizationWindowSeconds"], given.get("selectPolicy", "Max"), policies)


def _target(metric: Mapping[str, Any], pod: Pod) -> tuple[str, float]:
    if metric["type"] == "Resource":
        resource = metric["resource"]
        of = pod.cpu_cores if resource["name"] == "cpu" else pod.memory_bytes
        return resource["name"], resource["target"]["averageUtilization"] / 100 * of
    given = metric["external" if metric["type"] == "External" else "pods"]
    return given["metric"]["name"], _quantity(given["target"]["averageValue"])


def _quantity(text: object) -> float:
    found = re.fullmatch(r"([\d.]+)(m|k|M|Mi|Gi|)", str(text))
    if found is None:
        raise ValueError(f"{text} is no quantity")
    return float(found[1]) * UNITS[found[2]]


class Scaler:
    """Owner of the number of replicas."""

    def __init__(self, by: ScalingRules) -> None:
        self._by = by
        self.replicas = by.least
        self._wishes: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def bounded(self, replicas: int) -> int:
        return min(self._by.most, max(self._by.least, replicas))

    def desired(self, sums: Mapping[str, float]) -> int:
        """The largest number of replicas that any metric asks for."""
        wishes = [
            self.replicas
            if abs(sums[name] / (target * self.replicas) - 1) <= TOLERANCE
            else math.ceil(sums[name] / target)
            for name, target in self._by.targets.items()
            if name in sums
        ]
        return max(wishes, default=self.replicas)

    def look(self, at_s: float, sums: Mapping[str, float]) -> None:
        longest_s = max(self._by.up.window_s, self._by.down.window_s)
        self._wishes = [wish for wish in self._wishes if wish[0] >= at_s - longest_s]
        self._wishes.append((at_s, self.bounded(self.desired(sums))))
        wanted = self._stabilised(at_s)
        if wanted > self.replicas:
            wanted = min(wanted, self._limit_up(at_s))
        elif wanted < self.replicas:
            wanted = max(wanted, self._limit_down(at_s))
        wanted = self.bounded(wanted)
        if wanted != self.replicas:
            self._changes.append((at_s, wanted - self.replicas))
            self.replicas = wanted

    def _stabilised(self, at_s: float) -> int:
        """At most the smallest wish of the scale-up window, at least the largest of the scale-down window."""
        up = min(wish for then, wish in self._wishes if then >= at_s - self._by.up.window_s)
        down = max(wish for then, wish in self._wishes if then >= at_s - self._by.down.window_s)
        if self.replicas < up:
            return up
        return down if self.replicas > down else self.replicas

    def _limit_up(self, at_s: float) -> int:
        limits = []
        for policy in self._by.up.policies:
            before = self.replicas - self._changed(at_s, policy.period_s, 1)
            limits.append(
                math.ceil(before * (1 + policy.value / 100)) if policy.is_percent else int(before + policy.value)
            )
        return self._selected(self._by.up, limits, max, min)

    def _limit_down(self, at_s: float) -> int:
        limits = []
        for policy in self._by.down.policies:
            before = self.replicas - self._changed(at_s, policy.period_s, -1)
            limits.append(
                math.floor(before * (1 - policy.value / 100)) if policy.is_percent else int(before - policy.value)
            )
        return self._selected(self._by.down, limits, min, max)

    def _selected(self, by: Direction, limits: list[int], most: Any, least: Any) -> int:
        if by.selects == "Disabled" or not limits:
            return self.replicas
        return int(most(limits) if by.selects == "Max" else least(limits))

    def _changed(self, at_s: float, period_s: float, sign: int) -> int:
        """The number of replicas added or removed within a period."""
        return sum(change for then, change in self._changes if then > at_s - period_s and change * sign > 0)
