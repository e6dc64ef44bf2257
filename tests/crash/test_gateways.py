"""The promises of several gateways of one store to their clients hold when one of them ends or dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Disconnect, Packet, Publish, QoS, Will
from gateway.mqtt.properties import Properties
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from loadtest.chaos.wrong_clock import WrongClock
from tests.conftest import QUICK
from tests.support.mqtt_packet_client import until

MESSAGES = 1_000
DAY_S = 86_400
LEASE_S = QUICK["wire.lease_ms"] / 1000
SLOWNESS_S = 5  # what a busy machine adds to anything


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, settings=QUICK | {"store.flush": "async", "gateway.sys_interval_s": 0})
    yield cluster
    cluster.close()


async def connect(port: int, client_id: str) -> MqttConnection:
    connection, _ = await MqttConnection.open(port, Connect(client_id, 5))
    return connection


def with_will(client_id: str, delay_s: int) -> Connect:
    will = Will(f"will/{client_id}", client_id.encode(), QoS.EXACTLY_ONCE)
    will.properties.will_delay_interval = delay_s or None
    properties = Properties(session_expiry_interval=60)
    return Connect(client_id, 5, clean_start=False, will=will, properties=properties)


@pytest.mark.asyncio
@pytest.mark.parametrize("topic_filter", ["of/+/each", "#"])
@pytest.mark.catalogue("E17")
async def test_a_subscription_holds_in_every_gateway_from_its_suback_on(cluster: Cluster, topic_filter: str) -> None:
    """A wildcard at one gateway, and right behind its SUBACK a message through the other."""
    here, there = cluster.ports
    async with await connect(here, "subscriber") as subscriber, await connect(there, "publisher") as publisher:
        for i in range(1, MESSAGES + 1):
            await subscriber.subscribe(i, f"{i}/{topic_filter}", QoS.AT_MOST_ONCE)
            publisher.send(Publish(f"{i}/of/this/each", b"%d" % i))
            assert (await subscriber.take()).payload == b"%d" % i


@pytest.mark.asyncio
@pytest.mark.catalogue("G24", "G28")
async def test_the_wills_of_a_dead_gateway_are_sent_once_by_the_others(cluster: Cluster) -> None:
    here, there = cluster.ports
    delays_s = {"at-once": 0, "soon": 1, "later": 3, "back": 2}
    async with await connect(there, "watcher") as watcher:
        await watcher.subscribe(1, "will/#", QoS.AT_LEAST_ONCE)
        connections = [
            (await MqttConnection.open(here, with_will(name, delay_s)))[0] for name, delay_s in delays_s.items()
        ]
        cluster.gateways[0].kill()
        killed_s = time.monotonic()
        back, _ = await MqttConnection.open(there, with_will("back", 2))
        arrived: dict[bytes, float] = {}
        while len(arrived) < 3:
            payload = (await watcher.take()).payload
            assert payload not in arrived
            arrived[payload] = time.monotonic() - killed_s
        back.send(Disconnect())
        await back.ended()
    await asyncio.to_thread(cluster.restart)  # nor does anybody's next life send them
    async with await connect(here, "watcher") as watcher:
        await watcher.subscribe(1, "will/#", QoS.AT_LEAST_ONCE)
        await watcher.publish(Publish("will/end", b"end", QoS.AT_LEAST_ONCE, packet_id=1))
        assert (await watcher.take()).payload == b"end"
    for connection in (*connections, back):
        connection.cut()
    for name in ("at-once", "soon", "later"):
        assert delays_s[name] <= arrived[name.encode()] < delays_s[name] + LEASE_S + SLOWNESS_S


@pytest.mark.asyncio
async def test_the_old_connection_ends_before_the_new_one_has_the_session(cluster: Cluster) -> None:
    here, there = cluster.ports
    old, _ = await MqttConnection.open(here, persistent("device"))
    await old.subscribe(1, "to/device", QoS.AT_LEAST_ONCE)
    for _ in range(20):  # to and fro
        new, connack = await MqttConnection.open(there, persistent("device"))
        assert connack.session_present
        await asyncio.wait_for(old.ended(), SLOWNESS_S)
        old.cut()
        await new.publish(Publish("to/device", b"1", QoS.AT_LEAST_ONCE, packet_id=1))
        assert (await new.take()).payload == b"1"
        old, here, there = new, there, here
    old.cut()


@pytest.mark.asyncio
async def test_a_gateway_that_was_cut_off_neither_delivers_nor_acknowledges(cluster: Cluster) -> None:
    """Its session moved meanwhile. What its client sent is acknowledged by nobody, so it may send it elsewhere."""
    here, there = cluster.ports
    old, _ = await MqttConnection.open(here, persistent("device"))
    await old.subscribe(1, "to/device", QoS.AT_LEAST_ONCE)
    cluster.wires[0].cut()
    old.send(Publish("from/device", b"lost", QoS.AT_LEAST_ONCE, packet_id=1))
    new, connack = await MqttConnection.open(there, persistent("device"))
    assert connack.session_present
    await new.publish(Publish("to/device", b"moved", QoS.AT_LEAST_ONCE, packet_id=1))
    assert (await new.take()).payload == b"moved"
    cluster.wires[0].mend()
    said: list[Packet] = []
    async with asyncio.timeout(SLOWNESS_S):
        with suppress(ConnectionError):
            while True:
                said += await old.packets()
    assert [type(packet) for packet in said] == [Disconnect]  # no PUBLISH and no PUBACK
    old.cut()
    await new.publish(Publish("to/device", b"after", QoS.AT_LEAST_ONCE, packet_id=2))
    assert (await new.take()).payload == b"after"
    new.cut()


@pytest.mark.asyncio
async def test_a_gateway_whose_clock_is_wrong_does_no_harm(cluster: Cluster, tmp_path: Path) -> None:
    """A day ahead, a day behind, set while it runs: messages, sessions and wills live as long as they would."""
    clock = WrongClock(tmp_path, DAY_S)
    cluster.gateways[0].environment = clock.environment
    cluster.gateways[0].restart()
    wrong, right = cluster.ports
    for round_, ahead_s in enumerate((DAY_S, -DAY_S, 0, DAY_S)):
        clock.set(ahead_s)
        async with await connect(right, "watcher") as watcher:
            await watcher.subscribe(1, "will/#", QoS.AT_LEAST_ONCE)
            device, connack = await MqttConnection.open(wrong, with_will("device", 1))
            assert connack.session_present == (round_ > 0)
            for port in cluster.ports:
                await check_expiry(device, port, f"{round_}/{port}")
            device.cut()
            cut_s = time.monotonic()
            assert (await watcher.take()).payload == b"device"
            assert 0.9 < time.monotonic() - cut_s < 1 + SLOWNESS_S


JUMPS = "penstock_clock_jumps_total"


def has_jumped_since(cluster: Cluster, jumps: int) -> bool:
    return cluster.store.metric(JUMPS) > jumps


@pytest.mark.asyncio
async def test_a_store_whose_clock_is_set_ahead_ends_no_session(cluster: Cluster, tmp_path: Path) -> None:
    """Half an hour ahead, and back: a session that may be away for two minutes is still there, and its messages."""
    clock = WrongClock(tmp_path, 0)
    cluster.store.environment = clock.environment
    cluster.restart()
    properties = Properties(session_expiry_interval=120)
    opening = Connect("device", 5, clean_start=False, properties=properties)
    for ahead_s in (1_800, 0):
        device, _ = await MqttConnection.open(cluster.ports[0], opening)
        await device.subscribe(1, "waits", QoS.AT_LEAST_ONCE)
        device.cut()
        async with await connect(cluster.ports[1], "publisher") as publisher:
            await publisher.publish(Publish("waits", b"1", QoS.AT_LEAST_ONCE, packet_id=1))
        jumps = cluster.store.metric(JUMPS)
        clock.set(ahead_s)
        await asyncio.to_thread(until, partial(has_jumped_since, cluster, jumps))
        assert "the clock was set" in cluster.store.log_text()
        device, connack = await MqttConnection.open(cluster.ports[0], opening)
        assert connack.session_present
        assert (await device.take()).payload == b"1"
        device.cut()


async def check_expiry(device: MqttConnection, port: int, topic: str) -> None:
    """A message with a minute to live, published there, comes with about as much, also if it was retained."""
    properties = Properties(message_expiry_interval=60)
    message = Publish(topic, b"1", QoS.AT_LEAST_ONCE, True, packet_id=1, properties=properties)
    async with await connect(port, "publisher") as publisher:
        await device.subscribe(1, f"{topic}/#", QoS.AT_LEAST_ONCE)
        await publisher.publish(message)
        first = await device.take()
    await device.subscribe(2, topic, QoS.AT_LEAST_ONCE)
    second = await device.take()
    assert (first.retain, second.retain) == (False, True)
    for each in (first, second):
        assert 60 - SLOWNESS_S <= (each.properties.message_expiry_interval or 0) <= 60
