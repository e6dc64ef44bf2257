"""A store and two gateways with ten thousand clients: how fast they connect, come back after a death, get a message."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Publish
from loadtest.chaos.cluster import Cluster
from tests.bench.probe import client
from tests.support.mqtt_swarm import Swarm, raise_descriptor_limit
from tests.support.server_process import ROOT

CLIENTS = 10_000
REPEATS = 3
PATIENCE_S = 60
CONNECTS_GOAL = 5_000  # a second
STORM_GOAL_S = 10
FAN_OUT_GOAL_MS = 300
MESSAGES = 10
STEADY_S = 3


@contextmanager
def _swarm(folder: Path, topic_filters: list[str], keeps_sessions: bool) -> Iterator[tuple[Cluster, Swarm, float]]:
    """All clients connected and subscribed, and how many of them there were each second."""
    raise_descriptor_limit(len(topic_filters))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        settings = {"store.flush": "async", "gateway.sys_interval_s": 0}
        cluster = Cluster(Path(name), settings=settings, wires=False)
        try:
            with Swarm("device-", topic_filters, keeps_sessions) as swarm:
                swarm.connect(cluster.ports)
                rate = len(topic_filters) / swarm.poll(swarm.all_online, PATIENCE_S)
                yield cluster, swarm, rate
        finally:
            cluster.close()


def _own_filters() -> list[str]:
    return [f"device/{i}/command" for i in range(CLIENTS)]


def connections(folder: Path) -> dict[str, object]:
    """Clients that connect and subscribe, a second."""
    rates: dict[str, list[float]] = {}
    for kind, keeps_sessions in (("clean", False), ("kept", True)):
        for _ in range(REPEATS):
            with _swarm(folder, _own_filters(), keeps_sessions) as (_, _, rate):
                rates.setdefault(kind, []).append(rate)
    shown = ", ".join(f"{kind} sessions {statistics.median(each):,.0f}/s" for kind, each in rates.items())
    print(f"{f'{CLIENTS:,} clients connect to two gateways':46} {shown}  goal ≥ {CONNECTS_GOAL:,}/s", flush=True)
    return {"rates": rates, "goal": CONNECTS_GOAL}


def storm(folder: Path) -> dict[str, object]:
    """One of two gateways is killed: seconds until all are back, and latency on the other before and meanwhile."""
    with _swarm(folder, _own_filters(), True) as (cluster, swarm, _), _probe(cluster.ports[1]) as probe:
        began_s = time.monotonic()
        swarm.poll(lambda: time.monotonic() > began_s + STEADY_S, PATIENCE_S)
        before = _figures(probe)
        swarm.ports = cluster.ports[1:]
        cluster.gateways[0].kill()
        seconds = swarm.poll(lambda: swarm.lost >= CLIENTS // 2, PATIENCE_S)
        seconds += swarm.poll(swarm.all_online, PATIENCE_S)
        during = _figures(probe)
    print(
        f"{f'a gateway dies, {CLIENTS // 2:,} clients go elsewhere':46} all back after {seconds:.1f} s (goal < "
        f"{STORM_GOAL_S}); p50, p99 of the others {during[0]:.1f}, {during[1]:.1f} ms, before {before[0]:.1f}, "
        f"{before[1]:.1f} ms",
        flush=True,
    )
    return {"seconds": seconds, "before_ms": before, "during_ms": during, "goal": STORM_GOAL_S}


@contextmanager
def _probe(port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.bench.probe", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _figures(probe: subprocess.Popen[str]) -> tuple[float, float]:
    """p50 and p99 in ms, of the time since the last question."""
    assert probe.stdin
    assert probe.stdout
    print(file=probe.stdin, flush=True)
    p50, p99 = map(float, probe.stdout.readline().split())
    return p50, p99


def fan_out(folder: Path) -> dict[str, object]:
    """One message to all: ms until the last has it, and what was read of the store for it."""
    times_ms, reads = [], []
    with _swarm(folder, ["to/all"] * CLIENTS, False) as (cluster, swarm, _):
        publisher = client(cluster.ports[0], "publisher")
        for i in range(1, MESSAGES + 1):
            before = cluster.store_reads
            wanted = i * CLIENTS
            publisher.sendall(encode(Publish("to/all", b"x" * 100), 4))
            times_ms.append(1000 * swarm.poll(lambda wanted=wanted: swarm.messages == wanted, PATIENCE_S))  # type: ignore[misc]
            reads.append(cluster.store_reads - before)
        publisher.close()
    print(
        f"{f'one message to {CLIENTS:,} clients of two gateways':46} the last has it after "
        f"{statistics.median(times_ms):.0f} ms (at most {max(times_ms):.0f}, goal ≤ {FAN_OUT_GOAL_MS}), "
        f"{max(reads)} reads of the store",
        flush=True,
    )
    return {"ms": times_ms, "reads": reads, "goal": FAN_OUT_GOAL_MS}
