"""Bans, where a gateway alone is killed: it learns them again from the store before it lets a client in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.cluster import Cluster
from tests.support.mqtt_packet_client import Device


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, settings=small, wires=False)
    yield cluster
    cluster.close()


def test_a_gateway_that_is_killed(cluster: Cluster) -> None:
    device = Device(cluster.ports[0], "bad")
    assert device.connect().reason_code is ReasonCode.SUCCESS
    command = [sys.executable, "-m", "penstock", "ban", "add", "--client-id", "bad", f"--data={cluster.data}"]
    subprocess.run(command, check=True, capture_output=True)
    assert device.closed_with() is ReasonCode.ADMINISTRATIVE_ACTION
    for gateway in cluster.gateways:
        gateway.kill()
        gateway.start()
    for port in cluster.ports:
        assert Device(port, "bad").connect().reason_code is ReasonCode.BANNED
        assert Device(port, "good").connect().reason_code is ReasonCode.SUCCESS
