"""Measures devices and broker at intervals: counts, times, CPU and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import msgspec

from loadtest.devices._swarm import monotonic_ns
from loadtest.devices.fleet import SECOND_NS, DeviceFleet
from loadtest.devices.latency import Latency
from loadtest.resources import taken

SLICE_S = 0.25


class Slice(msgspec.Struct, frozen=True):
    """A part of a run, from `at_s` on: messages/s."""

    at_s: float
    sent_per_s: float
    acked_per_s: float
    delivered_per_s: float


class Totals(msgspec.Struct, frozen=True):
    """Messages, and CPU seconds of the broker and of this process (without its children)."""

    sent: int = 0
    acked: int = 0
    delivered: int = 0
    broker_cpu_s: float = 0
    own_cpu_s: float = 0

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        return Totals(
            self.sent + sign * other.sent,
            self.acked + sign * other.acked,
            self.delivered + sign * other.delivered,
            self.broker_cpu_s + sign * other.broker_cpu_s,
            self.own_cpu_s + sign * other.own_cpu_s,
        )


class RunMeter:
    """Adds up the measurements within measuring(), which may be called several times; slices cover the whole run."""

    def __init__(self, fleet: DeviceFleet, broker_pids: Sequence[int]) -> None:
        self.fleet = fleet
        self.broker_pids = broker_pids
        self.total = Totals()
        self.seconds = 0.0
        self.joined = 0
        self.resident_bytes = 0
        self.slices: list[Slice] = []
        self.delivery: Latency | None = None
        self.acknowledging: Latency | None = None
        self._is_measuring = False
        self._begun_ns = self._slice_ns = monotonic_ns()
        self._slice_totals = self.totals()

    def totals(self) -> Totals:
        out, into = self.fleet.published(), self.fleet.received()
        return Totals(
            sum(each["sent"] for each in out),
            sum(each["acked"] for each in out),
            sum(each["delivered"] for each in into),
        )

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure while the block runs."""
        if not self.seconds:
            self.fleet.swarm.forget_latencies()
        before, begun_ns = self._everything(), monotonic_ns()
        self._is_measuring = True
        yield
        self._is_measuring = False
        self.seconds += (monotonic_ns() - begun_ns) / SECOND_NS
        self.total = self.total.plus(self._everything().plus(before, -1))
        self.resident_bytes = taken(self.broker_pids).resident_bytes
        swarm, fleet = self.fleet.swarm, self.fleet
        self.delivery = Latency.of(chain.from_iterable(map(swarm.latencies, fleet.subscribers)))
        self.acknowledging = Latency.of(chain.from_iterable(swarm.latencies(each, True) for each in fleet.publishers))

    def joins(self, devices: int) -> None:
        """Note that so many devices have connected."""
        self.joined += devices if self._is_measuring else 0

    def spend(self, seconds: float, progress: Callable[[float], None]) -> None:
        """Run the devices for so long; `progress` gets the finished part. Raises BrokerRefuses."""
        begun_ns = at_ns = monotonic_ns()
        end_ns = begun_ns + int(seconds * SECOND_NS)
        while at_ns < end_ns:
            self.fleet.watch(min(SLICE_S, (end_ns - at_ns) / SECOND_NS))
            at_ns = monotonic_ns()
            self.slice(at_ns)
            progress(min(1.0, (at_ns - begun_ns) / SECOND_NS / seconds))

    def slice(self, now_ns: int) -> None:
        """End a slice now."""
        now = self.totals()
        did = now.plus(self._slice_totals, -1)
        seconds = (now_ns - self._slice_ns) / SECOND_NS
        rates = (round(each / seconds, 1) for each in (did.sent, did.acked, did.delivered))
        self.slices.append(Slice(round((now_ns - self._begun_ns) / SECOND_NS, 3), *rates))
        self._slice_ns, self._slice_totals = now_ns, now

    def _everything(self) -> Totals:
        own = os.times()
        broker = taken(self.broker_pids)
        return self.totals().plus(Totals(0, 0, 0, broker.cpu_s, own.user + own.system))
