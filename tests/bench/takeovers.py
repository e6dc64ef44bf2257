"""CPU time that a broker takes for a takeover, and for a client that connects and leaves, beside Mosquitto.

    python -m tests.bench.takeovers [--runs 3] [--rounds 20] [--clients 200] [--subscribed]

A takeover: a connection with a client identifier that another connection has. All clients connect once, unmeasured;
then each round they connect again, while their old connections are open. "At once" they all send their CONNECT before
the first CONNACK is read; "in turn" each waits for its CONNACK before the next one connects. Clients that leave send
DISCONNECT, and wait until the broker has closed the connection. Penstock runs with its default settings, Mosquitto
without persistence; the brokers are measured in turn, and the median of the runs is printed.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Disconnect, Packet, QoS, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from tests.support.server_process import PenstockServer, ServeOptions, find_mosquitto, free_port, start_mosquitto

CONNACK_BYTE = 0x20
TIMEOUT_S = 60
EXPIRY_S = 3_600


class Kind(NamedTuple):
    """Of clients: the version of MQTT, and whether their sessions outlive their connections."""

    version: int
    is_durable: bool

    @property
    def name(self) -> str:
        return f"MQTT {'5' if self.version == 5 else '3.1.1'}, {'durable' if self.is_durable else 'clean'}"

    def connect(self, number: int) -> bytes:
        properties = Properties(session_expiry_interval=EXPIRY_S) if self.is_durable and self.version == 5 else None
        name = f"device-{self.version}-{'kept' if self.is_durable else 'clean'}-{number}"
        packet = Connect(name, self.version, not self.is_durable, properties=properties or Properties())
        return encode(packet, self.version)


KINDS = [Kind(version, is_durable) for version in (4, 5) for is_durable in (False, True)]


class Client:
    """A connection. It has sent its CONNECT once it is constructed."""

    def __init__(self, port: int, connect: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.sendall(connect)

    def is_in(self) -> None:
        """Read its CONNACK."""
        data = self._socket.recv(4_096)
        assert data[:1] == bytes((CONNACK_BYTE,)), data
        assert data[3] == 0, data

    def ask(self, packet: Packet, version: int) -> None:
        """Send a packet, and wait for what answers it."""
        self._socket.sendall(encode(packet, version))
        assert self._socket.recv(4_096)

    def leave(self, version: int) -> None:
        """DISCONNECT; its connection is closed by the broker."""
        self._socket.sendall(encode(Disconnect(), version))
        self.wait_for_end()

    def wait_for_end(self) -> None:
        while self._socket.recv(4_096):
            pass
        self._socket.close()


class Broker(NamedTuple):
    """One that is measured: its port and its process."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """So far, of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def penstock() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        server = PenstockServer(Path(folder, "data"), Path(folder, "log"), ServeOptions())
        try:
            yield Broker(server.port, server.process.pid)
        finally:
            server.kill()


@contextmanager
def mosquitto() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        process = start_mosquitto(port, Path(folder), "set_tcp_nodelay true")
        try:
            yield Broker(port, process.pid)
        finally:
            process.kill()
            process.wait()


# --- what is measured


def _connect_all(broker: Broker, kind: Kind, options: Namespace, at_once: int) -> list[Client]:
    """All of them, that many at once, each with its CONNACK."""
    clients: list[Client] = []
    for first in range(0, options.clients, at_once):
        numbers = range(first, min(first + at_once, options.clients))
        begun = [Client(broker.port, kind.connect(number)) for number in numbers]
        for client in begun:
            client.is_in()
        clients += begun
    return clients


def _number(options: Namespace) -> int:
    """Of connections that are measured."""
    rounds: int = options.rounds
    clients: int = options.clients
    return rounds * clients


def _taken_over(broker: Broker, kind: Kind, options: Namespace, at_once: int) -> float:
    """Seconds of CPU for each."""
    clients = _connect_all(broker, kind, options, at_once)
    if options.subscribed:
        for number, client in enumerate(clients):
            client.ask(Subscribe(1, (SubscriptionRequest(f"to/{number}", QoS.AT_LEAST_ONCE),)), kind.version)
    before_s = broker.cpu_s()
    for _ in range(options.rounds):
        newer = _connect_all(broker, kind, options, at_once)
        for client in clients:
            client.wait_for_end()
        clients = newer
    used_s = broker.cpu_s() - before_s
    for client in clients:
        client.leave(kind.version)
    return used_s / _number(options)


def _visited(broker: Broker, kind: Kind, options: Namespace, at_once: int) -> float:
    before_s = broker.cpu_s()
    for _ in range(options.rounds):
        for client in _connect_all(broker, kind, options, at_once):
            client.leave(kind.version)
    return (broker.cpu_s() - before_s) / _number(options)


WORK: dict[str, Callable[[Broker, Kind, Namespace, int], float]] = {
    "takeover": _taken_over,
    "connect and leave": _visited,
}


def main() -> int:
    parser = ArgumentParser(description="CPU time for each takeover, and for each client that connects and leaves.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--subscribed", action="store_true", help="each has a subscription when it is taken over first")
    options = parser.parse_args()
    with ExitStack() as stack:
        brokers = {"penstock": stack.enter_context(penstock())}
        if find_mosquitto() is not None:
            brokers["mosquitto"] = stack.enter_context(mosquitto())
        for what, measure in WORK.items():
            for at_once in (1, options.clients):
                for kind in KINDS:
                    runs: dict[str, list[float]] = {name: [] for name in brokers}
                    for _ in range(options.runs):
                        for name, broker in brokers.items():
                            runs[name].append(1e6 * measure(broker, kind, options, at_once))
                    found = ", ".join(f"{name} {statistics.median(each):6.0f} us" for name, each in runs.items())
                    how = "in turn" if at_once == 1 else "at once"
                    print(f"{what:18} {how}, {kind.name:20}: {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
