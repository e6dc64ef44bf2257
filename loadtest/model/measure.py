"""Measures the cost of a message, a connection and a queue, on a store and a gateway that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from loadtest.brokers.kinds import KINDS, RunningBroker, penstock, running
from loadtest.devices.fleet import DeviceFleet
from loadtest.devices.meter import RunMeter
from loadtest.devices.steps import Progress, drain
from loadtest.errors import LoadTestError
from loadtest.machine import Machine
from loadtest.model.needs import Costs, Demand, Measured, ModelCheck, needs
from loadtest.resources import ResourceUse, family, taken
from loadtest.workloads.workload import Publishers, Subscribers, Timing, Workload, WorkloadStep

WARM_UP_S = 1.0
DEVICES = 2_000
IDLE_FEW, IDLE_MANY, IDLE_CHECK = 500, 4_000, 8_000
SOME, MORE, MORE_YET = 300_000, 600_000, 1_000_000
"""Queues."""
DISK_MESSAGES, DISK_SIZE = 100_000, 200
SETTLED_S = 2.0
ENOUGH_BYTES = 1 << 16
"""Memory that changes by less than this has settled."""
FEW, MANY = "20,000/s, device to device", "60,000/s, device to device"
MANY_IN = "60,000/s, to nobody"
ALONE = "2,000/s, device to device"
CHECK = "check: 10,000/s of 1,000 devices, to two others each"
ONE_PROCESS = "one process, 20,000/s, device to device"
Point = dict[str, float]


class Apart(NamedTuple):
    """A store and its gateway."""

    broker: RunningBroker
    folder: Path
    store: list[int]
    gateway: list[int]


@contextmanager
def _apart() -> Iterator[Apart]:
    kind = KINDS["penstock-apart"]._replace(prepare=penstock("--flush", "async", "--gateways", "1"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, running(kind, Path(name), set()) as broker:
        roles = {role: [p.pid for p in family(broker.pids) if _is(p, role)] for role in ("store", "gateway")}
        if not all(roles.values()):
            raise LoadTestError("the store and its gateway were not found among the processes that were started")
        yield Apart(broker, Path(name), roles["store"], roles["gateway"])


def _is(process: psutil.Process, role: str) -> bool:
    try:
        return role in process.cmdline()
    except psutil.Error:
        return False


def measure(seconds: float, progress: Progress) -> Measured:
    """Measure everything; takes minutes, `seconds` of it for each rate. Raises LoadTestError."""
    begun, machine = datetime.now(UTC).isoformat(timespec="seconds"), Machine.here()
    points: dict[str, Point] = {}
    rates = {
        FEW: _workload(20_000),
        ALONE: _workload(2_000),
        MANY: _workload(60_000),
        MANY_IN: _workload(60_000, fan_out=0),
        CHECK: _workload(10_000, 2, 1_000, 500),
    }
    for at, (name, workload) in enumerate(rates.items()):
        progress(name, at / (len(rates) + 4))
        with _apart() as apart:
            points[name] = _rate(apart, workload, seconds)
    progress("one process", 0.6)
    with tempfile.TemporaryDirectory() as name, running(KINDS["penstock"], Path(name), set()) as broker:
        one = Apart(broker, Path(name), broker.pids, [])
        points[ONE_PROCESS] = _rate(one, rates[FEW], seconds)
    progress("connections", 0.7)
    points |= _connections()
    progress("queues", 0.8)
    points |= _queues()
    progress("disk", 0.9)
    points["disk"] = _disk(DISK_SIZE)
    points["check: disk"] = _disk(5 * DISK_SIZE)
    costs = _costs(points)
    return Measured(begun, machine, costs, points, _checks(points, costs))


def _workload(rate: float, fan_out: int = 1, devices: int = DEVICES, size: int = 200) -> Workload:
    """A workload of devices with a topic each, so that each message is a packet of its own."""
    publishers = Publishers(["model/{i}/report"], devices, 1, [size], rate)
    subscribers = [Subscribers(["model/{i}/report"], devices, 1)] * fan_out
    return Workload("model", "", [publishers], subscribers)


# --- points


def _rate(apart: Apart, workload: Workload, seconds: float) -> Point:
    """µs of CPU per published message, of store and gateway."""
    fleet = DeviceFleet(workload, apart.broker.address)
    try:
        fleet.connect(lambda _: None)
        meter = RunMeter(fleet, [])
        fleet.publish()
        meter.spend(WARM_UP_S, lambda _: None)
        before, sent = _both(apart), meter.totals().sent
        meter.spend(seconds, lambda _: None)
        after, messages = _both(apart), meter.totals().sent - sent
        fleet.stop()
    finally:
        fleet.close()
    us = [1e6 * (now.cpu_s - then.cpu_s) / messages for now, then in zip(after, before, strict=True)]
    return {"rate": messages / seconds, "store_us": us[0], "gateway_us": us[1]}


def _both(apart: Apart) -> tuple[ResourceUse, ResourceUse]:
    return taken(apart.store), taken(apart.gateway)


def _connections() -> dict[str, Point]:
    points = {}
    with _apart() as apart:
        points["empty"] = _memory(apart)
        for name, devices in (
            ("few connections", IDLE_FEW),
            ("connections", IDLE_MANY),
            ("check: connections", IDLE_CHECK),
        ):
            fleet = DeviceFleet(Workload("idle", "", [], [Subscribers(["idle/{i}"], devices, 1)]), apart.broker.address)
            try:
                before = _both(apart)
                fleet.connect(lambda _: None)
                after = _both(apart)
                us = [1e6 * (now.cpu_s - then.cpu_s) / devices for now, then in zip(after, before, strict=True)]
                points[name] = {"count": devices, "store_us": us[0], "gateway_us": us[1], **_memory(apart)}
            finally:
                fleet.close()
            time.sleep(SETTLED_S)
    return points


def _queues() -> dict[str, Point]:
    """The store's memory and index as more and more topics get a message. The first topics fill its buffers."""
    points, there = {}, 0
    with _apart() as apart:
        for name, queues in (("some queues", SOME), ("queues", MORE), ("check: queues", MORE_YET)):
            publishers = Publishers([f"{there}/{{j}}"], 1, 1, [16], window=1_000, each=queues - there)
            _publish(apart, publishers, queues - there)
            points[name] = {"count": queues, "index_bytes": _disk_bytes(apart.folder, "index"), **_memory(apart)}
            there = queues
    return points


def _publish(apart: Apart, publishers: Publishers, messages: int) -> None:
    step = WorkloadStep("publish", messages=messages, measured=True)
    fleet = DeviceFleet(Workload("fill", "", [publishers], [], [step], timing=Timing()), apart.broker.address)
    try:
        fleet.connect(lambda _: None)
        fleet.publish_so_many(fleet.publishers, messages)
        while fleet.left or fleet.in_flight:
            fleet.watch(0.05)
        drain(fleet, lambda *_: None)
    finally:
        fleet.close()
    time.sleep(SETTLED_S)


def _disk(size: int) -> Point:
    """Bytes on disk of messages of a size: of the log, as the stopped store reports it, and of the index."""
    with _apart() as apart:
        _publish(apart, Publishers(["disk/0123456789"], 1, 1, [size], window=1_000), DISK_MESSAGES)
        apart.broker.stop()
        command = [sys.executable, "-P", "-m", "penstock", "store", "inspect", "--json", str(apart.folder / "data")]
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        log_bytes = said["end_log_offset"] - said["first_log_offset"]
        bytes_ = log_bytes + _disk_bytes(apart.folder, "index")
    return {"count": DISK_MESSAGES, "size": size, "topic_size": len("disk/0123456789"), "bytes": bytes_}


def _disk_bytes(folder: Path, part: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and part in str(path))


def _memory(apart: Apart) -> Point:
    """Resident bytes once they have settled."""
    before, now = (-ENOUGH_BYTES, 0), (0, 0)
    while abs(now[0] - before[0]) + abs(now[1] - before[1]) >= ENOUGH_BYTES:
        before = now
        time.sleep(SETTLED_S / 4)
        now = tuple(each.resident_bytes for each in _both(apart))  # type: ignore[assignment]
    return {"store_bytes": now[0], "gateway_bytes": now[1]}


# --- costs and checks


def _costs(points: dict[str, Point]) -> Costs:
    few, many, empty = points["few connections"], points["connections"], points["empty"]
    turning, message_us = _line(points, "gateway_us")
    in_us = message_us * min(1.0, points[MANY_IN]["gateway_us"] / points[MANY]["gateway_us"])
    store_turning, store_us = _line(points, "store_us")
    some, queues = points["some queues"], points["queues"]
    queue_bytes = max(0.0, _slope(some, queues, "store_bytes"))
    disk = points["disk"]
    return Costs(
        gateway_turning_cores=turning,
        gateway_in_us=in_us,
        gateway_out_us=message_us - in_us,
        gateway_alone_us=points[ALONE]["gateway_us"],
        store_turning_cores=store_turning,
        store_us=store_us,
        hop_us=points[FEW]["gateway_us"] + points[FEW]["store_us"] - points[ONE_PROCESS]["store_us"],
        connect_gateway_us=many["gateway_us"],
        connect_store_us=many["store_us"],
        gateway_base_bytes=empty["gateway_bytes"],
        store_base_bytes=some["store_bytes"] - some["count"] * queue_bytes,
        gateway_connection_bytes=_slope(few, many, "gateway_bytes"),
        store_connection_bytes=_slope(few, many, "store_bytes"),
        queue_bytes=queue_bytes,
        queue_disk_bytes=max(0.0, _slope(some, queues, "index_bytes")),
        message_disk_bytes=disk["bytes"] / disk["count"] - disk["size"] - disk["topic_size"],
    )


def _line(points: dict[str, Point], what: str) -> tuple[float, float]:
    """A line through two rates: cores of a process that is never idle, and µs per message beyond that.

    The slope is at least half of a message's total cost: other work on the machine makes turns larger, and the line too
    flat.
    """
    few, many = points[FEW], points[MANY]
    cores = [point["rate"] * point[what] / 1e6 for point in (few, many)]
    each_us = max(many[what] / 2, 1e6 * (cores[1] - cores[0]) / (many["rate"] - few["rate"]))
    return max(0.0, cores[0] - each_us * few["rate"] / 1e6), each_us


def _slope(few: Point, many: Point, what: str) -> float:
    return (many[what] - few[what]) / (many["count"] - few["count"])


def _checks(points: dict[str, Point], costs: Costs) -> list[ModelCheck]:
    rate, connections, disk = points[CHECK], points["check: connections"], points["check: disk"]
    few, queues = points["few connections"], points["check: queues"]
    flow = needs(Demand(0, 0, rate["rate"], fan_out=2), costs)
    disk_bytes = disk["count"] * (costs.message_disk_bytes + disk["size"] + disk["topic_size"])
    more = connections["count"] - few["count"]
    return [
        ModelCheck(
            "gateway, 10,000/s of 1,000 devices, to two each",
            "cores",
            flow.gateway_cores + costs.gateway_turning_cores,
            rate["rate"] * rate["gateway_us"] / 1e6,
        ),
        ModelCheck(
            "store, 10,000/s",
            "cores",
            flow.store_cores + costs.store_turning_cores,
            rate["rate"] * rate["store_us"] / 1e6,
        ),
        ModelCheck(
            "gateway, 8,000 connections",
            "bytes",
            few["gateway_bytes"] + more * costs.gateway_connection_bytes,
            connections["gateway_bytes"],
        ),
        ModelCheck(
            "store, 8,000 connections",
            "bytes",
            few["store_bytes"] + more * costs.store_connection_bytes,
            connections["store_bytes"],
        ),
        ModelCheck(
            "store, a million queues",
            "bytes",
            costs.store_base_bytes + queues["count"] * costs.queue_bytes,
            queues["store_bytes"],
        ),
        ModelCheck("disk, 100,000 messages of 1,000 bytes", "bytes", disk_bytes, disk["bytes"]),
    ]
