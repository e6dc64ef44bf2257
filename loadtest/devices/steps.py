"""Workloads that go step by step, and the last step of all: what was sent is delivered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import msgspec

from loadtest.devices._swarm import monotonic_ns
from loadtest.devices.fleet import SECOND_NS, Fleet
from loadtest.devices.meter import SLICE_S, Meter
from loadtest.errors import BrokerRefuses
from loadtest.workloads.workload import Step

TICK_S = 0.01
QUIET_S = 1.0
"""Where it is not known how much is to be delivered: the end is when nothing came for so long."""

Progress = Callable[[str, float], None]
"""What goes on, and how much of it is done (0 to 1)."""


class StepTaken(msgspec.Struct, frozen=True):
    """A step, how long it took, and how much was done in it: messages, and devices that joined."""

    do: str
    seconds: float
    sent: int
    delivered: int
    joined: int
    measured: bool


def follow(meter: Meter, progress: Progress) -> list[StepTaken]:
    """All steps of the workload. Raises BrokerRefuses if one takes longer than its `step_s`."""
    return [_take(step, meter, progress) for step in meter.fleet.workload.steps]


def _take(step: Step, meter: Meter, progress: Progress) -> StepTaken:
    before, begun_ns = meter.totals(), monotonic_ns()
    with meter.measuring() if step.measured else nullcontext():
        joined = _do(step, meter, progress)
    did = meter.totals().plus(before, -1)
    seconds = round((monotonic_ns() - begun_ns) / SECOND_NS, 3)
    return StepTaken(step.do, seconds, did.sent, did.delivered, joined, step.measured)


def _do(step: Step, meter: Meter, progress: Progress) -> int:
    """How many devices joined."""
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


def _publish(step: Step, meter: Meter, groups: list[int], progress: Progress) -> None:
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


def drain(fleet: Fleet, progress: Progress, sliced: Callable[[int], None] = lambda _: None) -> int | None:
    """Wait for what is on its way, no longer than the workload says; how many deliveries never came."""
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


def _delivered(fleet: Fleet) -> int:
    return sum(each["delivered"] for each in fleet.received())
