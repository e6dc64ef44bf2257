"""A gateway more: how long it takes from its start to the first client that it answers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.chaos.part import Part
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

WITHIN_S = 30.0  # one second where nothing else runs; tests run beside many others


@pytest.mark.asyncio
@pytest.mark.catalogue("H30")
async def test_the_first_connack_comes_within_seconds(running: StoreProcess, tmp_path: Path) -> None:
    port, started_s = free_port(), time.monotonic()
    gateway = Part(
        tmp_path / "gateway.log", ["gateway", "--store", running.url, "--listen", f"mqtt://127.0.0.1:{port}"], {}
    )
    try:
        connection, connack = await MqttConnection.open(port, Connect("first", clean_start=True))
        took_s = time.monotonic() - started_s
        connection.cut()
        print(f"first CONNACK after {took_s:.2f} s")
        assert connack.reason_code == 0
        assert took_s < WITHIN_S
    finally:
        gateway.kill()
