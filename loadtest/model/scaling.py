"""Replays an autoscaler on a load over time, second by second.

Connections last, so a new gateway gets only a share of the connections made after its start.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from loadtest.errors import LoadTestError
from loadtest.model.autoscaler import SYNC_S, Pod, Scaler, ScalingRules
from loadtest.model.needs import Costs

SEEN_LATE_S = 30
"""Age of metrics: scraped every 15 s, and read every 15 s."""
RATE_WINDOW_S = 120
"""The window of rates in the Prometheus adapter's rules."""
READY_S = 10
"""From the decision to the first client: scheduled in 5 s, started in 0.3 s, readiness probed every 5 s."""
DAY_S = 86_400
LIFETIME_S = 3600
"""Average duration of a connection."""


MEASURED, FORECAST = "penstock_connections", "penstock_connections_forecast"


class Expectation(Protocol):
    """A forecast of connections (loadtest.model.forecast)."""

    def expects(self, at_s: float) -> float:
        """The most that there will be shortly after a second of the replay; 0: it does not know."""

    def saw(self, at_s: float, connections: float) -> None:
        """What was measured."""


class LoadPoint(NamedTuple):
    """Connections at a time (s), and the messages/s that they publish."""

    at_s: float
    connections: float
    messages: float


class Moment(NamedTuple):
    """A second of a replay. fullest: the used share of the busiest gateway's capacity (1: all)."""

    at_s: int
    connections: float
    messages: float
    ready: int
    wanted: int
    fullest: float


class ScalingReplay(NamedTuple):
    moments: list[Moment]

    @property
    def saturated_s(self) -> int:
        """Seconds in which a gateway had more load than capacity."""
        return sum(moment.fullest > 1 for moment in self.moments)

    @property
    def fullest(self) -> float:
        return max(moment.fullest for moment in self.moments)

    @property
    def changes(self) -> int:
        return sum(a.wanted != b.wanted for a, b in pairwise(self.moments))

    @property
    def turns(self) -> int:
        """How often it scaled up after down, or down after up."""
        steps = [b.wanted - a.wanted for a, b in pairwise(self.moments) if a.wanted != b.wanted]
        return sum(a * b < 0 for a, b in pairwise(steps))

    @property
    def gateway_hours(self) -> float:
        return sum(moment.wanted for moment in self.moments) / 3600


# --- reading loads


def shipped_loads() -> list[str]:
    return sorted(entry.name.removesuffix(".csv") for entry in (resources.files("loadtest.model") / "loads").iterdir())


def read_load(name: str) -> list[LoadPoint]:
    """A load that is in the package, or from a CSV file. Raises LoadTestError."""
    shipped = name in shipped_loads()
    path = Path(str(resources.files("loadtest.model") / "loads" / f"{name}.csv")) if shipped else Path(name)
    try:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        found = [
            LoadPoint(float(row["seconds"]), float(row["connections"]), float(row["messages_per_s"]))
            for row in csv.DictReader(io.StringIO("\n".join(lines)))
        ]
    except OSError as error:
        known = ", ".join(shipped_loads())
        raise LoadTestError(f"{name}: {error.strerror}; name a CSV file, or one that comes along: {known}") from None
    except (KeyError, TypeError, ValueError):
        found = []
    if len(found) < 2 or any(a.at_s >= b.at_s for a, b in pairwise(found)):
        raise LoadTestError(f"{name}: no load; it has columns seconds, connections, messages_per_s, in order of time")
    return found


# --- the gateways


class _Gateways:
    """The connections of each ready gateway, and when the starting ones will be ready."""

    def __init__(self, count: int, connections: float, ready_s: float) -> None:
        self.connections = [connections / count] * count
        self.starting: deque[float] = deque()
        self._ready_s = ready_s

    def scale(self, wanted: int, at_s: float) -> None:
        while len(self.connections) + len(self.starting) > wanted:
            if self.starting:
                self.starting.pop()
            else:
                self._spread(self.connections.pop())  # its clients reconnect
        while len(self.connections) + len(self.starting) < wanted:
            self.starting.append(at_s + self._ready_s)

    def second(self, at_s: float, connections: float) -> None:
        """Some clients leave, others connect; each ready gateway gets an equal share of new ones."""
        while self.starting and self.starting[0] <= at_s:
            self.starting.popleft()
            self.connections.append(0.0)
        there = sum(self.connections)
        leaving = min(1.0, max(1 / LIFETIME_S, 1 - connections / there)) if there else 0.0
        self.connections = [each * (1 - leaving) for each in self.connections]
        self._spread(connections - sum(self.connections))

    def _spread(self, connections: float) -> None:
        self.connections = [each + connections / len(self.connections) for each in self.connections]


def replay(
    load: Sequence[LoadPoint],
    by: ScalingRules,
    costs: Costs,
    pod: Pod,
    fan_out: float = 1,
    forecast: Expectation | None = None,
    ready_s: float = READY_S,
) -> ScalingReplay:
    """Replay a load second by second. Each gateway has messages in proportion to its connections.

    `forecast` stands beside what is measured, if the rules have a target for it. `ready_s`: until a new gateway takes
    clients.
    """
    scaler = Scaler(by)
    message_us = costs.gateway_in_us + fan_out * costs.gateway_out_us
    gateways: _Gateways | None = None
    history: list[LoadPoint] = []
    moments: list[Moment] = []
    for now in _seconds(load):
        if gateways is None:
            scaler.replicas = scaler.bounded(scaler.desired(_metrics([now], now, message_us, costs, by.least)))
            gateways = _Gateways(scaler.replicas, now.connections, ready_s)
        at_s = int(now.at_s - load[0].at_s)
        gateways.second(at_s, now.connections)
        history.append(now)
        if at_s % SYNC_S == 0:
            seen = history[max(0, at_s - SEEN_LATE_S)]
            recent = history[max(0, at_s - SEEN_LATE_S - RATE_WINDOW_S) : max(1, at_s - SEEN_LATE_S + 1)]
            sums = _metrics(recent, seen, message_us, costs, len(gateways.connections))
            if forecast is not None:
                forecast.saw(at_s, seen.connections)
                sums[FORECAST] = forecast.expects(at_s)
            scaler.look(at_s, sums)
            gateways.scale(scaler.replicas, at_s)
        each = [now.messages * share / max(1.0, now.connections) for share in gateways.connections]
        fullest = max(
            _fullness(connections, messages, message_us, costs, pod)
            for connections, messages in zip(gateways.connections, each, strict=True)
        )
        moments.append(Moment(at_s, now.connections, now.messages, len(gateways.connections), scaler.replicas, fullest))
    return ScalingReplay(moments)


def _seconds(load: Sequence[LoadPoint]) -> Iterable[LoadPoint]:
    for a, b in pairwise(load):
        for second in range(int(b.at_s - a.at_s)):
            part = second / (b.at_s - a.at_s)
            yield LoadPoint(
                a.at_s + second,
                a.connections + part * (b.connections - a.connections),
                a.messages + part * (b.messages - a.messages),
            )


def _metrics(
    recent: Sequence[LoadPoint], now: LoadPoint, message_us: float, costs: Costs, pods: int
) -> dict[str, float]:
    """Sums over all gateways. Latency is left out: it is low until a gateway is full, which must not happen."""
    messages = sum(each.messages for each in recent) / len(recent)
    return {
        "cpu": pods * costs.gateway_turning_cores + messages * message_us / 1e6,
        "memory": pods * costs.gateway_base_bytes + now.connections * costs.gateway_connection_bytes,
        MEASURED: now.connections,
        "penstock_messages_received_per_second": messages,
    }


def _fullness(connections: float, messages: float, message_us: float, costs: Costs, pod: Pod) -> float:
    memory = costs.gateway_base_bytes + connections * costs.gateway_connection_bytes
    return max(
        (costs.gateway_turning_cores + messages * message_us / 1e6) / pod.cpu_cores,
        connections / pod.most_connections,
        memory / pod.memory_limit_bytes,
    )
