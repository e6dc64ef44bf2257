"""Clients that read nothing: what waits for them is bounded and shared, and costs the others nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.chaos.part import Part
from penstock import Client
from tests.conftest import ServerFactory
from tests.interop.programs import PahoClient
from tests.support.mqtt_byte_client import connect, subscribe
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

MIB = 1 << 20
SESSION_OF_AN_HOUR = b"\x11\0\0\x0e\x10"


class Deaf:
    """A client that subscribes and then reads nothing; the kernel keeps little for it."""

    def __init__(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(connect(client_id.encode(), properties=SESSION_OF_AN_HOUR))
        assert self.socket.recv(1) == b"\x20"
        self.socket.sendall(subscribe(topic_filter.encode(), qos))
        while b"\x90" not in self.socket.recv(100):
            pass

    def __del__(self) -> None:
        self.socket.close()

    @property
    def is_cut_off(self) -> bool:
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(MIB)
        except ConnectionError:
            return True
        except BlockingIOError:
            return False


@pytest.fixture
def gateway(running: StoreProcess, tmp_path: Path) -> Iterator[tuple[int, Part]]:
    """Of the store of `url`: its port, and its process."""
    port = free_port()
    listen = ["--listen", f"mqtt://127.0.0.1:{port}"]
    part = Part(tmp_path / "gateway.log", ["gateway", "--store", running.url, *listen], {})
    yield port, part
    part.kill()


@pytest.mark.asyncio
@pytest.mark.parametrize(("qos", "most_bytes"), [(0, 90 * MIB), (1, 90 * MIB), (2, 300 * MIB)])
async def test_large_compressed_messages_are_bounded(
    url: str, gateway: tuple[int, Part], qos: int, most_bytes: int
) -> None:
    """Twelve messages of 4 MiB for 30 clients, each of which reads a queue of its own: 1.4 GiB if each had copies.

    At QoS 0 and 1 they share one copy of a message; at QoS 2 each has one of the message that it gets first.
    """
    port, part = gateway
    process = psutil.Process(part.process.pid)
    levels = "abcde"
    deaf = []
    for number in range(30):
        topic_filter = "/".join("+" if number >> i & 1 else level for i, level in enumerate(levels))
        deaf.append(Deaf(port, f"deaf-{number}", topic_filter, qos))
    healthy = PahoClient(port).connect().subscribe("end", 1)
    before_bytes = process.memory_info().rss
    async with Client(url) as client:
        large = (bytes((65 + i,)) * (4 * MIB) for i in range(12))
        await asyncio.gather(*(client.publish("/".join(levels), payload, qos=2) for payload in large))
        await client.publish("end", b"here", qos=1)
    assert await asyncio.to_thread(healthy.messages, 1) == [("end", b"here")]
    assert process.memory_info().rss - before_bytes < most_bytes
    assert "gave up" not in part.log_text()
    await asyncio.to_thread(healthy.leave)


@pytest.mark.topologies("one process", "unix socket")
def test_the_slowest_are_cut_off_once_too_much_waits_for_all(penstock_server: ServerFactory) -> None:
    server = penstock_server(flush="async", settings={"gateway.max_waiting_bytes": 4 * MIB})
    deaf = [Deaf(server.port, f"deaf-{number}", "t", 1) for number in range(12)]
    reader = PahoClient(server.port).connect().subscribe("t", 1)
    payloads = [b"%03d" % i + bytes(500_000) for i in range(30)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", payloads, 1)
    assert reader.distinct(len(payloads)) == payloads
    wait_until(lambda: any(each.is_cut_off for each in deaf))
    publisher.publish("t", [b"end"], 1)
    assert reader.distinct(len(payloads) + 1)[-1] == b"end"
    publisher.leave()
    assert "gateway.max_waiting_bytes" in server.log_text()
    cut_off = next(number for number, each in enumerate(deaf) if each.is_cut_off)
    again = PahoClient(server.port, 5, f"deaf-{cut_off}", expiry_s=60, clean=False).connect()
    assert again.distinct(len(payloads) + 1) == [*payloads, b"end"]  # what it did not acknowledge
    again.leave()
    reader.leave()
