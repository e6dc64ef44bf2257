"""Workloads with steps, and the last step of every workload: drain what was sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import msgspec

from loadtest.devices._swarm import monotonic_ns
from loadtest.devices.fleet import SECOND_NS, DeviceFleet
from loadtest.devices.meter import SLICE_S, RunMeter
from loadtest.errors import BrokerRefuses
from loadtest.workloads.workload import WorkloadStep

TICK_S = 0.01
QUIET_S = 1.0
"""If the number of deliveries is unknown, the drain ends after so long without any."""

Progress = Callable[[str, float], None]
"""The current work, and its finished part (0 to 1)."""


class StepTaken(msgspec.Struct, frozen=True):
    """A finished step, its seconds, and its messages and joined devices."""

    do: str
    seconds: float
    sent: int
    delivered: int
    joined: int
    measured: bool


def follow(meter: RunMeter, progress: Progress) -> list[StepTaken]:
    """Run all steps of the workload. Raises BrokerRefuses if one takes longer than its `step_s`."""
    return [_take(step, meter, progress) for step in meter.fleet.workload.steps]


def _take(step: WorkloadStep, meter: RunMeter, progress: Progress) -> StepTaken:
    before, begun_ns = meter.totals(), monotonic_ns()
    with meter.measuring() if step.measured else nullcontext():
        joined = _do(step, meter, progress)
    did = meter.totals().plus(before, -1)
    seconds = round((monotonic_ns() - begun_ns) / SECOND_NS, 3)
    return StepTaken(step.do, seconds, did.sent, did.delivered, joined, step.measured)


def _do(step: WorkloadStep, meter: RunMeter, progress: Progress) -> int:
    """Do a step. Returns the number of joined devices."""
    fleet = meter.fleet
    groups = fleet.named(step.who)
    if step.do == "join":
        joined = fleet.join(groups, lambda ready: progress("joining", ready / fleet.workload.devices))
        meter.joins(joined)
        return joined
    if step.do in ("leave", "cut"):
        fleet.leave(groups, step.do == "leave")
    elif step.do == "wait":
        meter.spend(step.seconds, lambda done: progress("waiting", done))
    elif step.do == "deliver":
        drain(fleet, progress, lambda now_ns: meter.slice(now_ns))
    else:
        _publish(step, meter, groups, progress)
    return 0


def _publish(step: WorkloadStep, meter: RunMeter, groups: list[int], progress: Progress) -> None:
    fleet = meter.fleet
    fleet.publish_so_many(groups, step.messages)
    if step.seconds:
        meter.spend(step.seconds, lambda done: progress("publishing", done))
    end_ns = monotonic_ns() + int(fleet.workload.timing.step_s * SECOND_NS)
    while step.messages and (left := fleet.left):
        fleet.watch(TICK_S)
        progress("publishing", max(0.0, 1 - left / step.messages))
        if monotonic_ns() > end_ns:
            raise BrokerRefuses(
                f"after {fleet.workload.timing.step_s:g} s {left:,} of {step.messages:,} messages are not sent; "
                "lower `messages`, or raise timing.step_s"
            )
    fleet.stop()
    while fleet.in_flight:
        fleet.watch(TICK_S)
        if monotonic_ns() > end_ns:
            raise BrokerRefuses(f"{fleet.in_flight:,} messages are not acknowledged; raise timing.step_s")
    meter.slice(monotonic_ns())


def drain(fleet: DeviceFleet, progress: Progress, sliced: Callable[[int], None] = lambda _: None) -> int | None:
    """Wait for deliveries under way, at most `drain_s`. Returns the number of missing ones; None: unknown."""
    wanted = fleet.wanted()
    begun_ns = sliced_ns = came_ns = monotonic_ns()
    end_ns = begun_ns + int(fleet.workload.timing.drain_s * SECOND_NS)
    delivered = _delivered(fleet)
    while (now_ns := monotonic_ns()) < end_ns:
        is_delivered = now_ns - came_ns > QUIET_S * SECOND_NS if wanted is None else delivered >= wanted
        if is_delivered and not fleet.in_flight:
            break
        fleet.watch(TICK_S)
        newest = _delivered(fleet)
        if newest != delivered:
            delivered, came_ns = newest, monotonic_ns()
        if now_ns - sliced_ns > SLICE_S * SECOND_NS:
            sliced(now_ns)
            sliced_ns = now_ns
        progress("draining", min(1.0, delivered / wanted) if wanted else 0.0)
    return None if wanted is None else max(0, wanted - delivered)


def _delivered(fleet: DeviceFleet) -> int:
    return sum(each["delivered"] for each in fleet.received())
