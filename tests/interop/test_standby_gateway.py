"""A gateway that waits opens its listeners at a signal, and lets a client in at once."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.chaos.part import Part
from tests.support.mqtt_byte_client import ByteClient, connect
from tests.support.server_process import free_port

PATIENCE_S = 20


class StandbyGateway(Part):
    """Ready once it waits."""

    says = "standby"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], StandbyGateway]]:
    url = f"tcp://127.0.0.1:{free_port()}"
    store = Part(tmp_path / "store.log", ["store", "--data", str(tmp_path / "data"), "--listen", url], {}, admin=False)
    started: list[Part] = [store]

    def gateway(port: int) -> StandbyGateway:
        command = ["gateway", "--standby", "--store", url, "--listen", f"mqtt://127.0.0.1:{port}"]
        started.append(StandbyGateway(tmp_path / f"{port}.log", command, {}, admin=False))
        assert isinstance(started[-1], StandbyGateway)
        return started[-1]

    yield gateway
    for part in started:
        part.kill()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


def seconds_to_connack(gateway: StandbyGateway, port: int) -> float:
    """From the signal on."""
    began_s = time.monotonic()
    gateway.process.send_signal(signal.SIGUSR1)
    while not is_listening(port):
        assert time.monotonic() - began_s < PATIENCE_S
    client = ByteClient(port)
    client.send(connect(b"first"))
    assert client.take()[0] == 0x20
    took_s = time.monotonic() - began_s
    print(f"CONNACK {1000 * took_s:.1f} ms after the signal")
    client.close()
    return took_s


@pytest.mark.catalogue("H30")
def test_standby_gateway_listens_once_it_is_told(start: Callable[[int], StandbyGateway]) -> None:
    port = free_port()
    gateway = start(port)
    assert not is_listening(port)
    assert seconds_to_connack(gateway, port) < 1
    assert f"ready mqtt://127.0.0.1:{port}" in gateway.log_text()
    gateway.terminate()


def test_standby_gateway_ends_while_it_waits(start: Callable[[int], StandbyGateway]) -> None:
    gateway = start(free_port())
    gateway.terminate()
    assert "stopping: SIGTERM" in gateway.log_text()


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.catalogue("Q63")
def test_the_first_connack_comes_within_50_ms(start: Callable[[int], StandbyGateway]) -> None:
    """The shortest of five, as other work on the machine only adds to it."""
    ports = [free_port() for _ in range(5)]
    assert min(seconds_to_connack(start(port), port) for port in ports) <= 0.05
