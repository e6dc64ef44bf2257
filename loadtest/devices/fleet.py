"""The devices of a workload on one broker: they connect, subscribe, and publish on command."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, QoS, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from loadtest.devices._swarm import Swarm, monotonic_ns
from loadtest.devices.address import BrokerAddress
from loadtest.devices.counters import Counters
from loadtest.errors import BrokerRefuses, LoadTestError
from loadtest.workloads.workload import ALL_PUBLISHERS, ALL_SUBSCRIBERS, Publishers, Subscribers, Workload

AT_ONCE = 256
"""Connections that are opened at the same time."""
STEP_S = 0.002
PATIENCE_S = 20.0
"""Longest wait for the next device to connect."""
SECOND_NS = 1_000_000_000
KEPT_S = 3600
"""Session expiry interval, for a run that ends before it discards its sessions."""


class _Device(NamedTuple):
    """A device that will be connected."""

    group: int
    client_id: str
    filters: list[str]
    qos: int
    is_clean: bool


class DeviceFleet:
    """Owner of the devices. Groups have the order of the workload: publishers, then subscribers."""

    def __init__(self, workload: Workload, address: BrokerAddress) -> None:
        self.workload = workload
        self.swarm = Swarm()
        self._address = address
        self._place = _resolved(address)
        self._run_id = os.urandom(3).hex()
        self._deliveries = workload.deliveries()
        self._groups = workload.groups
        self._present: set[int] = set()
        self._kept: set[int] = set()  # groups with sessions that the broker keeps
        self.publishers = [self._add_publishers(group) for group in workload.publishers]
        self.subscribers = [self.swarm.add_group([], 0, group.qos, 1, []) for group in workload.subscribers]

    def _add_publishers(self, group: Publishers) -> int:
        topics = [topic.encode() for device in range(group.count) for topic in group.topics_of(device)]
        return self.swarm.add_group(
            topics, len(group.topics) * group.each, group.qos, group.window, group.sizes, group.retain
        )

    def named(self, who: Sequence[str]) -> list[int]:
        """The groups of a step, by number; subscribers first, so that they miss no message."""
        kinds = [(ALL_SUBSCRIBERS, self.subscribers), (ALL_PUBLISHERS, self.publishers)]
        return [
            number
            for kind, numbers in kinds
            for number in numbers
            if not who or kind in who or self._groups[number].name in who
        ]

    # --- connecting and leaving

    def connect(self, progress: Callable[[int], None]) -> float:
        """Connect all devices that are not absent, subscribers first. Returns the seconds it took.

        `progress` gets the number of ready devices. Raises BrokerRefuses and LoadTestError.
        """
        begun_ns = monotonic_ns()
        self.join([number for number in self.named([]) if not self._groups[number].absent], progress)
        return (monotonic_ns() - begun_ns) / SECOND_NS

    def join(self, groups: Sequence[int], progress: Callable[[int], None]) -> int:
        """Connect groups that are not connected. Returns their number of devices."""
        joining = [number for number in groups if number not in self._present]
        for number in joining:
            self._let_in(self._joining(number), progress)
            self._present.add(number)
            if self._keeps_sessions(number):
                self._kept.add(number)
        return sum(self._groups[number].count for number in joining)

    def leave(self, groups: Sequence[int], is_said: bool) -> None:
        """Close the connections of groups; `is_said`: with a DISCONNECT."""
        for number in groups:
            (self.swarm.leave if is_said else self.swarm.cut)(number)
            self._present.discard(number)

    def forget_sessions(self) -> None:
        """Have the broker discard the sessions that it keeps."""
        with suppress(LoadTestError):
            for number in self._kept:
                self.swarm.cut(number)
                count = self._groups[number].count
                devices = (_Device(number, self._client_id(number, each), [], 0, True) for each in range(count))
                self._let_in(devices, lambda _: None)
                self.swarm.leave(number)

    def _keeps_sessions(self, number: int) -> bool:
        group = self._groups[number]
        return isinstance(group, Subscribers) and group.keep_session

    def _let_in(self, devices: Iterator[_Device], progress: Callable[[int], None]) -> None:
        swarm = self.swarm
        waiting = True
        heard_ns, known = monotonic_ns(), swarm.ready
        while waiting or swarm.opening:
            while waiting and swarm.opening < AT_ONCE:
                device = next(devices, None)
                waiting = device is not None
                if device is not None:
                    self._open(device)
            self.run(STEP_S)
            self._check()
            if swarm.ready != known:
                heard_ns, known = monotonic_ns(), swarm.ready
                progress(known)
            elif monotonic_ns() - heard_ns > PATIENCE_S * SECOND_NS:
                raise BrokerRefuses(f"{known} devices are ready, and no other one was for {PATIENCE_S:.0f} s")

    def _joining(self, number: int) -> Iterator[_Device]:
        group = self._groups[number]
        subscribes = isinstance(group, Subscribers) and number not in self._kept
        for device in range(group.count):
            filters = group.filters_of(device) if subscribes and isinstance(group, Subscribers) else []
            yield _Device(number, self._client_id(number, device), filters, group.qos, not self._keeps_sessions(number))

    def _client_id(self, group: int, device: int) -> str:
        return f"load-{self._run_id}-{group}-{device}"

    def _open(self, device: _Device) -> None:
        version = self.workload.version
        expiry_s = KEPT_S if version == 5 and not device.is_clean else None
        connect = Connect(
            client_id=device.client_id,
            protocol_version=version,
            clean_start=device.is_clean,
            keep_alive_s=0,
            properties=Properties(session_expiry_interval=expiry_s),
        )
        requests = tuple(SubscriptionRequest(each, QoS(device.qos)) for each in device.filters)
        subscribe = encode(Subscribe(1, requests), version) if requests else b""
        layer = self._address.layer()
        self.swarm.add_device(device.group, self._socket(), version, encode(connect, version), subscribe, layer)

    def _socket(self) -> int:
        """A connecting socket's descriptor, which then belongs to the swarm."""
        try:
            connecting = socket.socket(socket.AF_INET6 if ":" in self._place[0] else socket.AF_INET)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise LoadTestError(
                    f"no more than {self.swarm.ready} devices: this process may open no more files; raise `ulimit -n`"
                ) from None
            raise
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connecting.setblocking(False)
        connecting.connect_ex(self._place)
        return connecting.detach()

    def _check(self) -> None:
        """Raise BrokerRefuses if a device has failed."""
        swarm = self.swarm
        if swarm.reason_code:
            raise BrokerRefuses(f"the broker refused a device: reason code 0x{swarm.reason_code:02X}")
        if swarm.layer_fault:
            raise BrokerRefuses(swarm.layer_fault)
        if swarm.has_met_a_fault:
            raise BrokerRefuses("the broker sent what is no MQTT")
        if swarm.lost:
            raise BrokerRefuses(
                f"{swarm.lost} of the devices have no connection to {self._address}; does a broker listen there?"
            )

    # --- on

    def publish(self) -> None:
        for number, group in zip(self.publishers, self.workload.publishers, strict=True):
            self.swarm.publish(number, group.rate)

    def publish_so_many(self, groups: Sequence[int], messages: int) -> None:
        """Publish `messages` in all, evenly by the connected devices of these groups; 0: until stop()."""
        publishing = [number for number in groups if number in self.publishers and number in self._present]
        devices = sum(self._groups[number].count for number in publishing)
        for number in publishing:
            self.swarm.publish(number, self.workload.publishers[number].rate, -(-messages // max(1, devices)))

    def run(self, seconds: float) -> None:
        self.swarm.run(monotonic_ns() + int(seconds * SECOND_NS))

    def watch(self, seconds: float) -> None:
        """As run(); raises BrokerRefuses if a device has lost its connection."""
        self.run(seconds)
        self._check()

    def stop(self) -> None:
        for number in self.publishers:
            self.swarm.stop(number)

    @property
    def in_flight(self) -> int:
        return sum(map(self.swarm.in_flight, self.publishers))

    @property
    def left(self) -> int:
        """Messages of publish_so_many() that are still unsent."""
        return sum(map(self.swarm.left, self.publishers))

    def wanted(self) -> int | None:
        """The number of deliveries due for the messages sent; None if unknown."""
        total = 0
        for factor, counters in zip(self._deliveries, self.published(), strict=True):
            if factor is None:
                return None
            total += factor * counters["sent"]
        return total

    def published(self) -> list[Counters]:
        return [self.swarm.counters(number) for number in self.publishers]

    def received(self) -> list[Counters]:
        return [self.swarm.counters(number) for number in self.subscribers]

    def close(self) -> None:
        self.swarm.close()


def _resolved(address: BrokerAddress) -> tuple[str, int]:
    """Read results. Raises LoadTestError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LoadTestError(f"{address.host}: {error.strerror}; is it the broker's name?") from None
    return found[0][4][0], address.port  # type: ignore[return-value]
