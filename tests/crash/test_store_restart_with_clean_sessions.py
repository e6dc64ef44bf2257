"""A store that is killed knows nothing of clean sessions; a client that connects elsewhere still has one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.mqtt_client import MqttConnection


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    # A gateway that comes back late, on a busy machine, must not be given up meanwhile.
    cluster = Cluster(tmp_path, settings=small | {"wire.lease_ms": 60_000})
    yield cluster
    cluster.close()


def clean(client_id: str, version: int) -> Connect:
    return Connect(client_id, version, clean_start=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [4, 5])
async def test_connection_to_another_gateway_ends_the_old_one(cluster: Cluster, version: int) -> None:
    old, _ = await MqttConnection.open(cluster.ports[0], clean("device", version))
    bystander, _ = await MqttConnection.open(cluster.ports[0], clean("bystander", version))
    async with old, bystander:
        await old.publish(Publish("t", b"1", QoS.AT_LEAST_ONCE, packet_id=1))  # the store knows the gateway
        await asyncio.to_thread(cluster.store.restart)
        await bystander.publish(Publish("t", b"2", QoS.AT_LEAST_ONCE, packet_id=1))  # the gateway is back at it
        new, _ = await MqttConnection.open(cluster.ports[1], clean("device", version))
        async with new:
            await old.ended()
            await new.publish(Publish("t", b"3", QoS.AT_LEAST_ONCE, packet_id=1))
            await bystander.publish(Publish("t", b"4", QoS.AT_LEAST_ONCE, packet_id=2))
