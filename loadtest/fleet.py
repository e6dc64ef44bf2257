"""The devices of a workload on one broker: connected and subscribed in turn, then told to publish."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.codec import encode
from gateway.packets import Connect, QoS, Subscribe, SubscriptionRequest
from loadtest._swarm import Swarm, monotonic_ns
from loadtest.counters import Counters
from loadtest.errors import BrokerRefuses, LoadTestError
from loadtest.workload import Publishers, Workload

AT_ONCE = 256
"""Connections that are made at the same time."""
STEP_S = 0.01
PATIENCE_S = 20.0
"""How long to wait for any one more device to be let in."""
SECOND_NS = 1_000_000_000


class Address(NamedTuple):
    """Of a broker."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """`mqtt://HOST[:PORT]`. Raises LoadTestError."""
        parts = urlsplit(url)
        try:
            port = parts.port or 1883
        except ValueError:
            port = 0
        if parts.scheme != "mqtt" or not parts.hostname or not port or parts.path.strip("/"):
            raise LoadTestError(f"{url}: no broker's address; use mqtt://HOST:PORT")
        return cls(parts.hostname, port)


class _Device(NamedTuple):
    """One that is to be connected."""

    group: int
    client_id: str
    filters: list[str]
    qos: int


class Fleet:
    """Owner of the devices. Groups have the order of the workload: publishers, then subscribers."""

    def __init__(self, workload: Workload, address: Address) -> None:
        self.workload = workload
        self.swarm = Swarm()
        self._address = _resolved(address)
        self._run_id = os.urandom(3).hex()
        self.publishers = [self._add_publishers(group) for group in workload.publishers]
        self.subscribers = [self.swarm.add_group([], 0, group.qos, 1, []) for group in workload.subscribers]

    def _add_publishers(self, group: Publishers) -> int:
        topics = [topic.encode() for device in range(group.count) for topic in group.topics_of(device)]
        return self.swarm.add_group(topics, len(group.topics), group.qos, group.window, group.sizes, group.retain)

    # --- in

    def connect(self, progress: Callable[[int], None]) -> float:
        """Let all devices in, subscribers first; how long that took (s). `progress`: so many are ready.

        Raises BrokerRefuses and LoadTestError.
        """
        begun_ns = monotonic_ns()
        self._let_in(self._subscribing(), progress)
        self._let_in(self._publishing(), progress)
        return (monotonic_ns() - begun_ns) / SECOND_NS

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

    def _subscribing(self) -> Iterator[_Device]:
        for number, group in zip(self.subscribers, self.workload.subscribers, strict=True):
            for device in range(group.count):
                yield _Device(number, self._client_id(number, device), group.filters_of(device), group.qos)

    def _publishing(self) -> Iterator[_Device]:
        for number, group in zip(self.publishers, self.workload.publishers, strict=True):
            for device in range(group.count):
                yield _Device(number, self._client_id(number, device), [], 0)

    def _client_id(self, group: int, device: int) -> str:
        return f"load-{self._run_id}-{group}-{device}"

    def _open(self, device: _Device) -> None:
        version = self.workload.version
        connect = Connect(client_id=device.client_id, protocol_version=version, keep_alive_s=0)
        requests = tuple(SubscriptionRequest(each, QoS(device.qos)) for each in device.filters)
        subscribe = encode(Subscribe(1, requests), version) if requests else b""
        self.swarm.add_device(device.group, self._socket(), version, encode(connect, version), subscribe)

    def _socket(self) -> int:
        """A descriptor that connects; from now on the swarm's."""
        try:
            connecting = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise LoadTestError(
                    f"no more than {self.swarm.ready} devices: this process may open no more files; raise `ulimit -n`"
                ) from None
            raise
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connecting.setblocking(False)
        connecting.connect_ex(self._address)
        return connecting.detach()

    def _check(self) -> None:
        """Raises BrokerRefuses if a device is not what it should be."""
        swarm = self.swarm
        if swarm.reason_code:
            raise BrokerRefuses(f"the broker refused a device: reason code 0x{swarm.reason_code:02X}")
        if swarm.has_met_a_fault:
            raise BrokerRefuses("the broker sent what is no MQTT")
        if swarm.lost:
            host, port = self._address[:2]
            raise BrokerRefuses(
                f"{swarm.lost} of the devices have no connection to {host}:{port}; does a broker listen there?"
            )

    # --- on

    def publish(self) -> None:
        for number, group in zip(self.publishers, self.workload.publishers, strict=True):
            self.swarm.publish(number, group.rate)

    def run(self, seconds: float) -> None:
        self.swarm.run(monotonic_ns() + int(seconds * SECOND_NS))

    def watch(self, seconds: float) -> None:
        """As run(); raises BrokerRefuses if a device lost its connection."""
        self.run(seconds)
        self._check()

    def stop(self) -> None:
        for number in self.publishers:
            self.swarm.stop(number)

    @property
    def in_flight(self) -> int:
        return sum(map(self.swarm.in_flight, self.publishers))

    def published(self) -> list[Counters]:
        return [self.swarm.counters(number) for number in self.publishers]

    def received(self) -> list[Counters]:
        return [self.swarm.counters(number) for number in self.subscribers]

    def close(self) -> None:
        self.swarm.close()


def _resolved(address: Address) -> tuple[str, int]:
    """Raises LoadTestError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LoadTestError(f"{address.host}: {error.strerror}; is it the broker's name?") from None
    return found[0][4][0], address.port  # type: ignore[return-value]
