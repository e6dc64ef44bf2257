"""The store of a gateway is away for longer than the gateway is patient: clients stay, and wait."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import (
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.chaos.part import Part
from tests.interop.test_admin import get
from tests.interop.test_admin_apart import WithAdmin
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

PATIENCE_S = 1
AWAY_S = 3.5  # longer than that, and than the keep alive of who waits allows for
KEEP_ALIVE_S = 1
ANSWER_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path)
    yield store
    store.close()


@pytest.fixture
def gateway(tmp_path: Path, store: StoreProcess) -> Iterator[WithAdmin]:
    command = ["gateway", "--store", store.url, "--listen", "mqtt://127.0.0.1:0", "--admin", "127.0.0.1:0"]
    gateway = WithAdmin(tmp_path / "gateway.log", command, {"gateway.store_patience_s": PATIENCE_S})
    wait_until(lambda: "ready mqtt://" in gateway.log_text(), ANSWER_S)
    yield gateway
    gateway.kill()


def port_of(gateway: Part) -> int:
    (port,) = re.findall(r"ready mqtt://127\.0\.0\.1:(\d+) ", gateway.log_text())
    return int(port)


def is_ready(gateway: WithAdmin) -> bool:
    return get(gateway.url() + "/readyz")[0] == 200


async def pings(connection: MqttConnection, seconds: float) -> None:
    """For so long it is there, and answers."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        connection.send(PingReq())
        await connection.receive(PingResp, ANSWER_S)
        await asyncio.sleep(0.1)


@pytest.mark.asyncio
async def test_clients_stay_and_wait(store: StoreProcess, gateway: WithAdmin) -> None:
    wait_until(lambda: is_ready(gateway), ANSWER_S)
    connections = {}
    for version in (4, 5):
        connect = Connect(f"version-{version}", version, clean_start=True)
        connections[version], _ = await MqttConnection.open(port_of(gateway), connect, ANSWER_S)
    waits = Connect("waits", 4, clean_start=True, keep_alive_s=KEEP_ALIVE_S)
    waiting, _ = await MqttConnection.open(port_of(gateway), waits, ANSWER_S)
    store.kill()
    await asyncio.to_thread(wait_until, lambda: not is_ready(gateway), ANSWER_S)
    for version, connection in connections.items():
        connection.send(Publish(f"away/{version}", b"one", QoS.AT_LEAST_ONCE, packet_id=1))
        connection.send(Publish(f"away/{version}", b"two", QoS.EXACTLY_ONCE, packet_id=2))
    waiting.send(Subscribe(1, (SubscriptionRequest("after/#", QoS.AT_LEAST_ONCE),)))  # and is silent from here on
    await asyncio.gather(*(pings(connection, AWAY_S) for connection in connections.values()))
    await asyncio.to_thread(store.start)
    for connection in connections.values():
        assert (await connection.receive(PubAck, ANSWER_S)).packet_id == 1
        received = await connection.receive(PubRec, ANSWER_S)
        assert (received.packet_id, received.reason_code) == (2, 0)
    assert (await waiting.receive(SubAck, ANSWER_S)).packet_id == 1
    waiting.send(PingReq())
    await connections[4].publish(Publish("after/all", b"three", QoS.AT_LEAST_ONCE, packet_id=3))
    assert (await asyncio.wait_for(waiting.take(), ANSWER_S)).payload == b"three"
    assert not re.search("ERROR|Traceback|did not confirm|disconnected", gateway.log_text())
    for connection in (*connections.values(), waiting):
        connection.cut()


@pytest.mark.asyncio
async def test_a_store_that_stands_still_is_away(store: StoreProcess, gateway: WithAdmin) -> None:
    wait_until(lambda: is_ready(gateway), ANSWER_S)
    connection, _ = await MqttConnection.open(port_of(gateway), Connect("three", 4, clean_start=True), ANSWER_S)
    store.pause()
    connection.send(Publish("away", b"one", QoS.AT_LEAST_ONCE, packet_id=1))
    await asyncio.to_thread(wait_until, lambda: not is_ready(gateway), ANSWER_S)
    await pings(connection, AWAY_S)
    store.resume()
    assert (await connection.receive(PubAck, ANSWER_S)).packet_id == 1
    assert "ERROR" not in gateway.log_text()
    connection.cut()
