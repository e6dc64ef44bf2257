"""A gateway that stops, as clients of others see it."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.chaos.cluster import Cluster
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

STUCK_CONNECT = b"\x10\x0d\0\4MQTT\4\2\0\0\0\1s"


class Leaver(PahoClient):
    """Notes why its connections end, and does not come back."""

    def __init__(self, port: int, version: int = 5, client_id: str = "") -> None:
        super().__init__(port, version, client_id)
        self.goodbyes: list[int] = []
        self.references: list[str] = []
        self.client.reconnect_on_failure = False  # type: ignore[attr-defined]
        self.client.on_disconnect = self._on_disconnect

    def _on_disconnect(self, *arguments: object) -> None:
        reason, properties = arguments[3], arguments[4]
        self.goodbyes.append(reason.value)  # type: ignore[attr-defined]
        self.references.append(getattr(properties, "ServerReference", ""))

    @property
    def local_port(self) -> int:
        sock = self.client.socket()
        assert isinstance(sock, socket.socket)
        return int(sock.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {"gateway.server_reference": "there:1883 elsewhere", "gateway.drain_timeout_s": 60}
    cluster = Cluster(tmp_path, gateways=1, settings=settings)
    yield cluster
    cluster.close()


def test_paho_is_told_where_to_go(cluster: Cluster) -> None:
    client, old = Leaver(cluster.ports[0]), Leaver(cluster.ports[0], 4)
    for each in (client, old):
        each.connect()
    client.publish("t", [b"1"], 2)
    cluster.gateways[0].terminate()
    wait_until(lambda: bool(client.goodbyes and old.goodbyes), TIMEOUT_S)
    assert (client.goodbyes, client.references) == ([0x9C], ["there:1883 elsewhere"])
    for each in (client, old):
        each.client.loop_stop()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_asked_again_it_waits_for_nobody(cluster: Cluster, second: signal.Signals) -> None:
    """Otherwise it would wait for a minute for a client that does not close its end."""
    gateway = cluster.gateways[0]
    with socket.create_connection(("127.0.0.1", cluster.ports[0])) as stuck:
        stuck.sendall(STUCK_CONNECT)
        assert stuck.recv(4) == b"\x20\2\0\0"
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining: 1 clients" in gateway.log_text(), TIMEOUT_S)
        gateway.process.send_signal(second)
        assert gateway.process.wait(TIMEOUT_S) == 0
    assert f"ending at once: {second.name} again" in gateway.log_text()


def gateways_of(server: PenstockServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "gateway" in child.cmdline()]


def has(gateway: psutil.Process, client: Leaver) -> bool:
    return any(each.raddr[1:] == (client.local_port,) for each in gateway.net_connections("tcp"))


@pytest.mark.topologies("shared port")
def test_draining_of_one_gateway_then_all(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    gateway, _ = gateways_of(server)
    clients = [Leaver(server.port, client_id=f"c{i}") for i in range(16)]
    for client in clients:
        client.connect()
    leaving = [client for client in clients if has(gateway, client)]
    staying = [client for client in clients if client not in leaving]
    gateway.terminate()
    wait_until(lambda: all(client.goodbyes for client in leaving), TIMEOUT_S)
    assert all(client.goodbyes == [0x9C] for client in leaving)
    wait_until(lambda: bool(re.search(r"gateway-[12] ended with 0: starting it again", server.log_text())), TIMEOUT_S)
    wait_until(lambda: len(gateways_of(server)) == 2, TIMEOUT_S)
    assert not any(client.goodbyes for client in staying)
    server.terminate()
    wait_until(lambda: all(client.goodbyes for client in staying), TIMEOUT_S)
    assert all(client.goodbyes == [0x8B] for client in staying)
    for client in clients:
        client.client.loop_stop()


@pytest.mark.topologies("shared port")
def test_all_asked_again_wait_for_nobody(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.drain_timeout_s": 60})
    with socket.create_connection(("127.0.0.1", server.port)) as stuck:
        stuck.sendall(STUCK_CONNECT)
        assert stuck.recv(4) == b"\x20\2\0\0"
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "draining: 1 clients" in server.log_text(), TIMEOUT_S)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(TIMEOUT_S) == 0
