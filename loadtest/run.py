"""One run of a workload on one broker: connect, warm up, measure, drain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import msgspec

from loadtest._swarm import monotonic_ns
from loadtest.counters import Counters
from loadtest.fleet import SECOND_NS, Address, Fleet
from loadtest.latency import Latency
from loadtest.resources import Taken, taken
from loadtest.workload import Workload

SLICE_S = 0.25
QUIET_S = 1.0
"""Where it is not known how much is to be delivered: the end is when nothing came for so long."""

Progress = Callable[[str, float], None]
"""What goes on, and how much of it is done (0 to 1)."""


class Slice(msgspec.Struct, frozen=True):
    """What happened in a part of a run, at `at_s` since it began: messages/s."""

    at_s: float
    sent_per_s: float
    acked_per_s: float
    delivered_per_s: float


class Run(msgspec.Struct, frozen=True):
    """What was measured. Latencies count from when a message should have been sent.

    `lost`: deliveries that never came, of all that was sent (None: nobody knows how many there should be); `cores`: CPU
    seconds per second.
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


class _Totals(msgspec.Struct, frozen=True):
    sent: int
    acked: int
    delivered: int

    @classmethod
    def of(cls, fleet: Fleet) -> _Totals:
        out, into = fleet.published(), fleet.received()
        return cls(_sum(out, "sent"), _sum(out, "acked"), _sum(into, "delivered"))

    def rates_since(self, before: _Totals, seconds: float) -> tuple[float, float, float]:
        differences = (self.sent - before.sent, self.acked - before.acked, self.delivered - before.delivered)
        sent, acked, delivered = (round(each / seconds, 1) for each in differences)
        return sent, acked, delivered


def run(workload: Workload, broker: Address, broker_pids: Sequence[int], progress: Progress) -> Run:
    """Raises LoadTestError."""
    fleet = Fleet(workload, broker)
    try:
        connect_s = fleet.connect(lambda ready: progress("connecting", ready / workload.devices))
        fleet.publish()
        _spend(fleet, workload.timing.warm_up_s, "warming up", progress)
        fleet.swarm.forget_latencies()
        before, took = _Totals.of(fleet), _taken(broker_pids)
        slices, seconds = _spend(fleet, workload.timing.duration_s, "measuring", progress)
        after, takes = _Totals.of(fleet), _taken(broker_pids)
        delivery = Latency.of(chain.from_iterable(map(fleet.swarm.latencies, fleet.subscribers)))
        acknowledging = Latency.of(chain.from_iterable(fleet.swarm.latencies(each, True) for each in fleet.publishers))
        fleet.stop()
        lost = _drain(fleet, progress)
        sent, acked, delivered = after.rates_since(before, seconds)
        (broker_took, own_took), (broker_takes, own_takes) = took, takes
        return Run(
            devices=workload.devices,
            connect_s=round(connect_s, 3),
            seconds=round(seconds, 3),
            sent_per_s=sent,
            acked_per_s=acked,
            delivered_per_s=delivered,
            refused=_sum(fleet.published(), "refused"),
            repeated=_sum(fleet.received(), "repeated"),
            lost=lost,
            unacknowledged=fleet.in_flight,
            delivery=delivery,
            acknowledging=acknowledging,
            broker_cores=round((broker_takes.cpu_s - broker_took.cpu_s) / seconds, 3) if broker_pids else None,
            generator_cores=round((own_takes.cpu_s - own_took.cpu_s) / seconds, 3),
            broker_resident_bytes=broker_takes.resident_bytes if broker_pids else None,
            slices=slices,
        )
    finally:
        fleet.close()


def _taken(broker_pids: Sequence[int]) -> tuple[Taken, Taken]:
    """By the broker, and by this process without those that it started."""
    own = os.times()
    return taken(broker_pids), Taken(own.user + own.system, 0)


def _spend(fleet: Fleet, seconds: float, what: str, progress: Progress) -> tuple[list[Slice], float]:
    """Let the devices go on for so long; what they did, and how long it really was."""
    begun_ns = at_ns = monotonic_ns()
    end_ns = begun_ns + int(seconds * SECOND_NS)
    slices: list[Slice] = []
    before = _Totals.of(fleet)
    while at_ns < end_ns:
        fleet.watch(min(SLICE_S, (end_ns - at_ns) / SECOND_NS))
        since_ns, at_ns = at_ns, monotonic_ns()
        now = _Totals.of(fleet)
        rates = now.rates_since(before, (at_ns - since_ns) / SECOND_NS)
        slices.append(Slice(round((at_ns - begun_ns) / SECOND_NS, 3), *rates))
        before = now
        progress(what, min(1.0, (at_ns - begun_ns) / SECOND_NS / seconds))
    return slices, (at_ns - begun_ns) / SECOND_NS


def _drain(fleet: Fleet, progress: Progress) -> int | None:
    """Wait for what is on its way, no longer than the workload says; how many deliveries never came."""
    wanted = _wanted(fleet)
    end_ns = monotonic_ns() + int(fleet.workload.timing.drain_s * SECOND_NS)
    delivered, came_ns = _Totals.of(fleet).delivered, monotonic_ns()
    while (now_ns := monotonic_ns()) < end_ns:
        is_delivered = now_ns - came_ns > QUIET_S * SECOND_NS if wanted is None else delivered >= wanted
        if is_delivered and not fleet.in_flight:
            break
        fleet.watch(SLICE_S / 10)
        newest = _Totals.of(fleet).delivered
        if newest != delivered:
            delivered, came_ns = newest, monotonic_ns()
        progress("draining", min(1.0, delivered / wanted) if wanted else 0.0)
    return None if wanted is None else max(0, wanted - delivered)


def _wanted(fleet: Fleet) -> int | None:
    """How many deliveries there are to be of what was sent; None if nobody knows."""
    total = 0
    for factor, counters in zip(fleet.workload.deliveries(), fleet.published(), strict=True):
        if factor is None:
            return None
        total += factor * counters["sent"]
    return total


def _sum(counters: Iterable[Counters], name: str) -> int:
    return sum(each[name] for each in counters)  # type: ignore[literal-required]
