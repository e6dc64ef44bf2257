"""Clients take all descriptors that they can get: the log goes on in new segments, and operators get in."""

import asyncio
import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from loadtest.chaos.mqtt_client import MqttConnection
from penstock.sync import Client
from store.files.segment import segment_paths
from tests.conftest import ServerFactory
from tests.crash.test_bad_sector import checked
from tests.crash.test_failed_roll import MESSAGE_BYTES
from tests.support.store_process import StoreProcess

LIMIT = 400
PREFIX = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
PATIENT: dict[str, object] = {"gateway.connect_timeout_s": 600, "wire.handshake_timeout_s": 600}
MESSAGES = 100


@pytest.fixture
def flood() -> Iterator["Flood"]:
    with ExitStack() as sockets:
        yield Flood(sockets)


class Flood:
    """Connections that say nothing."""

    def __init__(self, sockets: ExitStack) -> None:
        self._sockets = sockets

    def begin(self, port: int) -> int:
        """Connect until the descriptors would be gone one and a half times; returns how many were let in."""
        connected = []
        for _ in range(LIMIT * 3 // 2):
            with suppress(OSError):
                connected.append(self._sockets.enter_context(socket.create_connection(("127.0.0.1", port))))
        return sum(map(_is_open, connected))


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def _is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.02)
    try:
        while connection.recv(4_096):  # such as the reason why it is refused
            pass
        return False
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.asyncio
async def test_the_log_goes_on_and_operators_get_in(
    penstock_server: ServerFactory, small: dict[str, object], flood: "Flood"
) -> None:
    server = penstock_server(flush="sync", settings=small | PATIENT, admin="127.0.0.1:0")
    server.prefix = PREFIX
    server.restart()
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        let_in = flood.begin(server.port)
        assert LIMIT // 3 < let_in < LIMIT * 3 // 4
        for packet_id in range(1, MESSAGES + 1):
            payload = b"%08d" % packet_id + bytes(MESSAGE_BYTES)
            await connection.publish(Publish("roll/a", payload, QoS.AT_LEAST_ONCE, packet_id=packet_id))
    assert len(segment_paths(server.data / "log")) > 5
    (admin,) = [line.split()[1] for line in server.log_text().splitlines() if line.startswith("admin ")][-1:]
    metrics = await asyncio.to_thread(_get, f"{admin}/metrics")
    refused = next(line for line in metrics.splitlines() if 'limit="descriptors"' in line)
    assert float(refused.split()[1]) >= LIMIT * 3 // 2 - let_in
    with Client(f"unix://{server.data / 'console.sock'}") as client:
        assert len(list(client.read("roll/a", start="earliest"))) == MESSAGES
    server.kill()
    assert checked(server, {}).returncode == 0
    server.restart()


def test_clients_of_the_store_leave_some_to_operators(tmp_path: Path, flood: "Flood") -> None:
    store = StoreProcess(tmp_path, settings=PATIENT)
    try:
        resource.prlimit(store.process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        assert LIMIT // 3 < flood.begin(int(store.url.rpartition(":")[2])) < LIMIT * 3 // 4
        with Client(f"unix://{store.data / 'console.sock'}") as client:
            client.publish("a/b", b"1")
        assert "descriptors for this address are in use" in store.log_text()
    finally:
        store.close()
