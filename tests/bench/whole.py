"""Measurements of a whole server: what it holds in memory, how large its files get, how soon it is back."""

from __future__ import annotations

import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Disconnect, Publish, QoS, Subscribe, SubscriptionRequest
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.part import Part
from tests.support.server_process import PenstockServer, ServeOptions, free_port

CONNECTIONS = 10_000
WARM_UP = 1_000
SESSIONS = 100
MESSAGES = 100_000
GATEWAY_STARTS = 9
DUE_AT_ONCE = 10_000
DELAY_S = 5
PENDING = 1_000_000
PENDING_BEFORE = 100_000
GIB = 1 << 30


@contextmanager
def _server(folder: Path, flush: str = "async") -> Iterator[PenstockServer]:
    data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
    server = PenstockServer(data, data.with_suffix(".log"), ServeOptions({"flush": flush}))
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(data)


def _client(port: int, client_id: str, topic_filter: str | None, clean: bool) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(encode(Connect(client_id, 4, clean_start=clean, keep_alive_s=0), 4))
    _read_packet(client)
    if topic_filter is not None:
        request = SubscriptionRequest(topic_filter, QoS.AT_LEAST_ONCE)
        client.sendall(encode(Subscribe(1, (request,)), 4))
        _read_packet(client)
    return client


def _read_packet(client: socket.socket) -> bytes:
    head = client.recv(2, socket.MSG_WAITALL)
    return head + client.recv(head[1], socket.MSG_WAITALL)


def _settled_rss(server: PenstockServer) -> int:
    """Resident bytes once they no longer change."""
    process = psutil.Process(server.process.pid)
    before = -1
    while before != (now := process.memory_info().rss):
        before = now
        time.sleep(0.5)
    return now


def idle_memory(folder: Path) -> dict[str, object]:
    """Resident bytes per connection with one subscription of its own."""
    with _server(folder) as server:
        clients = [_client(server.port, f"d{i:07}", f"dev/{i:07}/cmd", True) for i in range(WARM_UP)]
        before = _settled_rss(server)
        clients += [_client(server.port, f"d{i:07}", f"dev/{i:07}/cmd", True) for i in range(WARM_UP, CONNECTIONS)]
        each = (_settled_rss(server) - before) / (CONNECTIONS - WARM_UP)
        for client in clients:
            client.close()
    print(f"{'memory per idle connection':46} {each:,.0f} bytes of {CONNECTIONS:,} connections  goal ≤ 2,500")
    return {"bytes": each, "goal": 2500}


def offline_backlog(folder: Path) -> dict[str, object]:
    """What 100,000 messages cost that wait for each of 100 offline sessions on one filter."""
    with _server(folder) as server:
        for i in range(SESSIONS):
            client = _client(server.port, f"offline-{i}", "line/+", False)
            client.sendall(encode(Disconnect(), 4))
            client.close()
        before, disk_before = _settled_rss(server), _disk_bytes(server.data)
        _publish_all(server.port)
        time.sleep(1)
        grown, disk = _settled_rss(server) - before, _disk_bytes(server.data) - disk_before
    print(
        f"{'100,000 messages for 100 offline sessions':46} memory +{grown / 1e6:.1f} MB (goal < 50), "
        f"disk +{disk / 1e6:.1f} MB for {MESSAGES * 100 / 1e6:.0f} MB of payload"
    )
    return {"rss_growth_bytes": grown, "disk_growth_bytes": disk, "goal": 50_000_000}


def _publish_all(port: int) -> None:
    publisher = _client(port, "publisher", None, True)
    for start in range(0, MESSAGES, 1000):
        packets = (
            Publish(f"line/{i % 10}", b"x" * 100, QoS.AT_LEAST_ONCE, packet_id=i % 1000 + 1)
            for i in range(start, start + 1000)
        )
        publisher.sendall(b"".join(encode(packet, 4) for packet in packets))
        publisher.recv(4 * 1000, socket.MSG_WAITALL)
    publisher.close()


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def delayed_lateness(folder: Path) -> dict[str, object]:
    """How late 10,000 delayed messages come that are published, and so are due, within one second."""
    with _server(folder) as server:
        subscriber = _client(server.port, "subscriber", "later", True)
        publisher = _client(server.port, "publisher", None, True)
        began_s = time.monotonic()
        for start in range(0, DUE_AT_ONCE, 500):
            _publish_delayed(publisher, range(start, start + 500), DELAY_S, "later")
        took_s = time.monotonic() - began_s
        late_ms = sorted(_late_ms(subscriber, DUE_AT_ONCE))
        subscriber.close()
        publisher.close()
    p50, p99 = (late_ms[len(late_ms) * share // 100] for share in (50, 99))
    print(
        f"{f'{DUE_AT_ONCE:,} delayed messages due in {took_s:.2f} s':46} late by {late_ms[0]:.1f} ms or more, "
        f"p50 {p50:.0f}, p99 {p99:.0f}, at most {late_ms[-1]:.0f} ms  goal: never early, ≤ 1,000",
        flush=True,
    )
    return {"published_s": took_s, "least": late_ms[0], "p50": p50, "p99": p99, "most": late_ms[-1], "goal": 1000}


def delayed_memory(folder: Path) -> dict[str, object]:
    """What a million delayed messages that are pending cost in memory, and on disk."""
    with _server(folder) as server:
        publisher = _client(server.port, "publisher", None, True)
        for start in range(0, PENDING_BEFORE, 1000):
            _publish_delayed(publisher, range(start, start + 1000), 86_400, "later/and/later")
        before, disk_before, began_s = _settled_rss(server), _disk_bytes(server.data), time.monotonic()
        for start in range(0, PENDING, 1000):
            _publish_delayed(publisher, range(start, start + 1000), 86_400, "later/and/later")
        rate = PENDING / (time.monotonic() - began_s)
        grown, disk = _settled_rss(server) - before, _disk_bytes(server.data) - disk_before
        publisher.close()
    print(
        f"{f'{PENDING:,} more delayed messages pending':46} memory +{grown / 1e6:.1f} MB, disk +{disk / 1e6:.0f} MB, "
        f"taken in at {rate:,.0f}/s"
    )
    return {"rss_growth_bytes": grown, "disk_growth_bytes": disk, "rate": rate}


def _publish_delayed(publisher: socket.socket, numbers: range, delay_s: int, topic: str) -> None:
    """At QoS 1, and wait for the acknowledgements. Each says when it was sent."""
    sent_ns = time.time_ns()
    packets = (
        Publish(
            f"$delayed/{delay_s}/{topic}", b"%020d" % sent_ns + bytes(80), QoS.AT_LEAST_ONCE, packet_id=i % 1000 + 1
        )
        for i in numbers
    )
    publisher.sendall(b"".join(encode(packet, 4) for packet in packets))
    publisher.recv(4 * len(numbers), socket.MSG_WAITALL)


def _late_ms(subscriber: socket.socket, count: int) -> Iterator[float]:
    """How long after they were due messages come that are delayed by DELAY_S; QoS 1, all of one size."""
    size = len(encode(Publish("later", bytes(100), QoS.AT_LEAST_ONCE, packet_id=1), 4))
    unread = b""
    while count:
        unread += subscriber.recv(1 << 16)
        now_ns = time.time_ns()
        acks = []
        while len(unread) >= size:
            packet, unread = unread[:size], unread[size:]
            acks.append(b"\x40\2" + packet[-102:-100])
            yield (now_ns - int(packet[-100:-80])) / 1e6 - 1_000 * DELAY_S
            count -= 1
        subscriber.sendall(b"".join(acks))


def restart_time(folder: Path) -> dict[str, object]:
    """Seconds from start to ready, on a log of 2 GB after SIGKILL under load."""
    with _server(folder) as server:
        publisher = _client(server.port, "publisher", None, True)
        block = b"".join(encode(Publish(f"line/{i}", b"x" * 100), 4) for i in range(1000))
        while sum(path.stat().st_size for path in (server.data / "log").iterdir()) < 2 * GIB:
            publisher.sendall(block)
        server.kill()
        publisher.close()
        size = sum(path.stat().st_size for path in (server.data / "log").iterdir())
        started = time.monotonic()
        server.restart()
        seconds = time.monotonic() - started
    print(f"{'restart after SIGKILL':46} {seconds:.2f} s with a log of {size / 1e9:.2f} GB  goal < 3 s")
    return {"seconds": seconds, "log_bytes": size, "goal": 3}


def gateway_start(folder: Path) -> dict[str, object]:
    """Seconds from the start of one more gateway to its first CONNACK; the store and another gateway are there."""
    folder = Path(tempfile.mkdtemp(prefix="start-", dir=folder))
    cluster = Cluster(folder, gateways=1, wires=False)
    times = []
    try:
        for i in range(GATEWAY_STARTS):
            port = free_port()
            own = ["gateway", "--store", cluster.store_url, "--listen", f"mqtt://127.0.0.1:{port}"]
            started = time.monotonic()
            gateway = Part(folder / "gateway.log", own, {})
            _client(port, f"first-of-{i}", None, True).close()
            times.append(time.monotonic() - started)
            gateway.kill()
    finally:
        cluster.close()
        shutil.rmtree(folder)
    seconds = statistics.median(times)
    spread = f"{min(times):.2f}–{max(times):.2f}"
    print(f"{'start of a gateway to its first CONNACK':46} {seconds:.2f} s ({spread})  goal < 1 s")
    return {"seconds": seconds, "goal": 1}
