"""The cost of TLS and WebSocket, beside Mosquitto: handshakes, and messages over each transport.

Brokers run on the first core, the load on the second. On a machine that is busy with other things too, the
CPU that a broker used for each handshake or message says more than the rates.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from tests.support.certificates import Certificate, authority, vouched_for
from tests.support.server_process import PenstockServer, ServeOptions, free_port, start_mosquitto

TRANSPORTS = ("tcp", "tls", "ws", "wss")
BROKERS = ("mosquitto", "penstock")
SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
BROKER_CORE, LOAD_CORE = 0, 1
REPEATS = 3
HANDSHAKE_S = 3
HANDSHAKES_AT_ONCE = 8
IDLE_S = 2
HANDSHAKE_GOAL = 1.5
MESSAGES = 60_000
PACKETS_AT_ONCE = 500
TIMEOUT_S = 120
PUBLISH = encode(Publish("bench/1", bytes(100), QoS.AT_MOST_ONCE), 4)
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
Ports = dict[tuple[str, str], int]


class Broker:
    """A process whose CPU time is looked at."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        for task in self._tasks.iterdir():
            os.sched_setaffinity(int(task.name), {BROKER_CORE})

    def cpu_s(self) -> float:
        """Of all its threads, to the nanosecond: Linux, Documentation/scheduler/sched-stats."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks.iterdir()) / 1e9


class Line:
    """A client's end of one connection, over any of the transports; blocking."""

    def __init__(self, transport: str, port: int) -> None:
        self._is_websocket = transport in ("ws", "wss")
        self._socket = socket.create_connection(("localhost", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if transport in ("tls", "wss"):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket = context.wrap_socket(self._socket)
        self._rest = b""
        if self._is_websocket:
            self._socket.sendall(UPGRADE)
            while b"\r\n\r\n" not in self._rest:
                self._rest += self._socket.recv(4096)
            assert self._rest.startswith(b"HTTP/1.1 101"), self._rest
            self._rest = self._rest.partition(b"\r\n\r\n")[2]

    def send(self, data: bytes) -> None:
        self._socket.sendall(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        """A frame's mask may be zero."""
        if not self._is_websocket:
            return data
        if len(data) < 126:
            return struct.pack("!BB4x", 0x82, 0x80 | len(data)) + data
        return struct.pack("!BBQ4x", 0x82, 0xFF, len(data)) + data

    def send_framed(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> int:
        """Wait for more of the stream of MQTT packets; how many bytes of it."""
        data = self._socket.recv(1 << 18)
        assert data, "the connection was closed"
        if not self._is_websocket:
            return len(data)
        data = self._rest + data
        at = found = 0
        while len(data) - at >= 4:
            size, head = data[at + 1], 2
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
            elif size == 127:
                if len(data) - at < 10:
                    break
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
            if len(data) - at < head + size:
                break
            at += head + size
            found += size
        self._rest = data[at:]
        return found

    def connect(self, client_id: str) -> None:
        self.send(encode(Connect(client_id, 4, clean_start=True, keep_alive_s=0), 4))
        while not self.receive():
            pass


def _subscriber(transport: str, port: int, pipe: Connection) -> None:
    os.sched_setaffinity(0, {LOAD_CORE})
    line = Line(transport, port)
    line.connect("subscriber")
    line.send(encode(Subscribe(1, (SubscriptionRequest("bench/#", QoS.AT_MOST_ONCE),)), 4))
    while not line.receive():
        pass
    pipe.send(0.0)
    left = MESSAGES * len(PUBLISH)
    while left > 0:
        left -= line.receive()
    pipe.send(time.monotonic())


def _run(transport: str, port: int, packets: int) -> float:
    """Seconds that all messages took, from one publisher to one subscriber; so many packets in a write (a frame)."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_subscriber, args=(transport, port, theirs))
    process.start()
    try:
        assert ours.poll(TIMEOUT_S)
        ours.recv()
        line = Line(transport, port)
        line.connect("publisher")
        each = line.framed(PUBLISH * packets)
        began_s = time.monotonic()
        for _ in range(MESSAGES // packets):
            line.send_framed(each)
        assert ours.poll(TIMEOUT_S), "messages are missing"
        return float(ours.recv()) - began_s
    finally:
        process.kill()
        process.join()


@contextmanager
def _brokers(folder: Path) -> Iterator[tuple[dict[str, Broker], Ports]]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        certificate = vouched_for(place, "server", "DNS:localhost", authority(place, "authority"))
        ports: Ports = {(broker, transport): free_port() for broker in BROKERS for transport in TRANSPORTS}
        mosquitto = _mosquitto(place, certificate, ports)
        urls = ",".join(f"{SCHEMES[each]}://127.0.0.1:{ports['penstock', each]}" for each in TRANSPORTS)
        settings = {"gateway.tls_certificate": certificate.certificate, "gateway.tls_key": certificate.key}
        server = PenstockServer(
            place / "data", place / "log", ServeOptions({"flush": "async"}, settings | {"gateway.listen": urls})
        )
        try:
            yield {"mosquitto": Broker(mosquitto.pid), "penstock": Broker(server.process.pid)}, ports
        finally:
            server.terminate()
            mosquitto.terminate()
            mosquitto.wait()


def _mosquitto(folder: Path, certificate: Certificate, ports: Ports) -> subprocess.Popen[bytes]:
    lines = ["max_queued_messages 0", "max_queued_bytes 0"]
    for transport in TRANSPORTS[1:]:
        lines.append(f"listener {ports['mosquitto', transport]} 127.0.0.1")
        if transport != "tls":
            lines.append("protocol websockets")
        if transport != "ws":
            lines += [f"certfile {certificate.certificate}", f"keyfile {certificate.key}"]
    return start_mosquitto(ports["mosquitto", "tcp"], folder, "\n".join(lines))


def handshakes(folder: Path) -> dict[str, object]:
    """Full TLS 1.3 handshakes, of several clients at once: time, and the broker's CPU less what it idles, for each."""
    if shutil.which("openssl") is None:
        raise RuntimeError("openssl is missing; apt-get install openssl")
    times_us: dict[str, list[float]] = {name: [] for name in BROKERS}
    costs_us: dict[str, list[float]] = {name: [] for name in BROKERS}
    with _brokers(folder) as (brokers, ports):
        idle = {name: _idle(broker) for name, broker in brokers.items()}
        for _ in range(REPEATS):
            for name, broker in brokers.items():
                before_s, began_s = broker.cpu_s(), time.monotonic()
                count = _handshakes(ports[name, "tls"])
                took_s = time.monotonic() - began_s
                times_us[name].append(took_s / count * 1e6)
                costs_us[name].append((broker.cpu_s() - before_s - idle[name] * took_s) / count * 1e6)
    time_us = {name: statistics.median(each) for name, each in times_us.items()}
    ratio = time_us["penstock"] / time_us["mosquitto"]
    shown = ", ".join(
        f"{name} {1e6 / time_us[name]:,.0f}/s {statistics.median(costs_us[name]):,.0f} µs CPU" for name in BROKERS
    )
    print(f"{'TLS handshakes':46} {shown}  ratio of times {ratio:.2f}  goal ≤ {HANDSHAKE_GOAL:g}", flush=True)
    return {"times_us": times_us, "cpu_us": costs_us, "idle": idle, "ratio": ratio, "goal": HANDSHAKE_GOAL}


def _idle(broker: Broker) -> float:
    """CPU seconds in a second without clients."""
    before_s = broker.cpu_s()
    time.sleep(IDLE_S)
    return (broker.cpu_s() - before_s) / IDLE_S


def _handshakes(port: int) -> int:
    command = ["taskset", "-c", str(LOAD_CORE), "openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-new", "-time"]
    command.append(str(HANDSHAKE_S))
    clients = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(HANDSHAKES_AT_ONCE)
    ]
    count = 0
    for each in clients:
        said = each.communicate()[0]
        found = re.search(r"(\d+) connections in \d+ real seconds", said)
        assert found, said
        count += int(found[1])
    return count


def messages(folder: Path) -> dict[str, object]:
    """QoS 0, 1 → 1, 100 B over each transport, with many packets in a write (and frame), and with one in each."""
    os.sched_setaffinity(0, {LOAD_CORE})
    rows: dict[str, object] = {}
    try:
        with _brokers(folder) as (brokers, ports):
            for packets in (PACKETS_AT_ONCE, 1):
                for transport in TRANSPORTS:
                    rows[f"{transport}, {packets}"] = _compare(transport, packets, brokers, ports)
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return rows


def _compare(transport: str, packets: int, brokers: dict[str, Broker], ports: Ports) -> dict[str, object]:
    rates: dict[str, list[float]] = {name: [] for name in BROKERS}
    costs_us: dict[str, list[float]] = {name: [] for name in BROKERS}
    for _ in range(REPEATS):
        for name, broker in brokers.items():
            before_s = broker.cpu_s()
            rates[name].append(MESSAGES / _run(transport, ports[name, transport], packets))
            costs_us[name].append((broker.cpu_s() - before_s) / MESSAGES * 1e6)
    shown = "  ".join(
        f"{name} {statistics.median(rates[name]):>9,.0f}/s {statistics.median(costs_us[name]):5.2f} µs CPU"
        for name in BROKERS
    )
    ratio = statistics.median(rates["penstock"]) / statistics.median(rates["mosquitto"])
    kind = f"{transport}, QoS 0, 1 → 1, {packets} in a write"
    print(f"{kind:46} {shown}  ratio {ratio:.1f}  goal > 1", flush=True)
    return {"rates": rates, "cpu_us": costs_us, "ratio": ratio}
