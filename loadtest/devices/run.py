"""One run of a workload on one broker: connect, measure, drain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.devices.address import BrokerAddress
from loadtest.devices.fleet import DeviceFleet
from loadtest.devices.latency import Latency
from loadtest.devices.meter import RunMeter, Slice
from loadtest.devices.steps import Progress, StepTaken, drain, follow
from loadtest.resources import taken
from loadtest.workloads.workload import Workload


class WorkloadRun(msgspec.Struct, frozen=True):
    """The measurements of a run. Latencies count from when a message should have been sent.

    `lost`: missing deliveries of all messages sent (None: their number is unknown); `cores`: CPU seconds per second;
    `broker_empty_bytes`: resident memory before any connection; `joined_per_s`: devices that connected.
    """

    devices: int
    connect_s: float
    seconds: float
    sent_per_s: float
    acked_per_s: float
    delivered_per_s: float
    refused: int
    repeated: int
    lost: int | None
    unacknowledged: int
    delivery: Latency | None
    acknowledging: Latency | None
    broker_cores: float | None
    generator_cores: float
    broker_resident_bytes: int | None
    slices: list[Slice]
    broker_empty_bytes: int | None = None
    joined_per_s: float = 0
    steps: list[StepTaken] = []


def run(workload: Workload, broker: BrokerAddress, broker_pids: Sequence[int], progress: Progress) -> WorkloadRun:
    """Read results. Raises LoadTestError."""
    empty_bytes = taken(broker_pids).resident_bytes
    fleet = DeviceFleet(workload, broker)
    try:
        connect_s = fleet.connect(lambda ready: progress("connecting", ready / workload.devices))
        meter = RunMeter(fleet, broker_pids)
        measure = follow if workload.steps else _sustain
        steps = measure(meter, progress)
        lost = drain(fleet, progress)
        fleet.forget_sessions()
        return _run(meter, connect_s, lost, steps, empty_bytes)
    finally:
        fleet.close()


def _run(meter: RunMeter, connect_s: float, lost: int | None, steps: list[StepTaken], empty_bytes: int) -> WorkloadRun:
    fleet, total, seconds = meter.fleet, meter.total, meter.seconds
    return WorkloadRun(
        devices=fleet.workload.devices,
        connect_s=round(connect_s, 3),
        seconds=round(seconds, 3),
        sent_per_s=round(total.sent / seconds, 1),
        acked_per_s=round(total.acked / seconds, 1),
        delivered_per_s=round(total.delivered / seconds, 1),
        refused=sum(each["refused"] for each in fleet.published()),
        repeated=sum(each["repeated"] for each in fleet.received()),
        lost=lost,
        unacknowledged=fleet.in_flight,
        delivery=meter.delivery,
        acknowledging=meter.acknowledging,
        broker_cores=round(total.broker_cpu_s / seconds, 3) if meter.broker_pids else None,
        generator_cores=round(total.own_cpu_s / seconds, 3),
        broker_resident_bytes=meter.resident_bytes if meter.broker_pids else None,
        broker_empty_bytes=empty_bytes if meter.broker_pids else None,
        joined_per_s=round(meter.joined / seconds, 1),
        slices=meter.slices,
        steps=steps,
    )


def _sustain(meter: RunMeter, progress: Progress) -> list[StepTaken]:
    """All devices publish at once: warm up, then measure."""
    timing = meter.fleet.workload.timing
    meter.fleet.publish()
    meter.spend(timing.warm_up_s, lambda done: progress("warming up", done))
    meter.slices.clear()
    with meter.measuring():
        meter.spend(timing.duration_s, lambda done: progress("measuring", done))
    meter.fleet.stop()
    return []
