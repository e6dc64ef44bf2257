"""The promise of a SUBACK or UNSUBACK holds after a SIGKILL right behind it."""

import asyncio
import random

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS, UnsubAck, Unsubscribe
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer

KILLS = 10
FILTERS = ("exact/{}", "one/{}/+", "all/{}/#", "+/{}/end")
TOPICS = {"exact/{}": "exact/{}", "one/{}/+": "one/{}/x", "all/{}/#": "all/{}", "+/{}/end": "any/{}/end"}


@pytest.mark.asyncio
@pytest.mark.parametrize(("flush", "version"), [("async", 4), pytest.param("sync", 5, marks=pytest.mark.nightly)])
async def test_a_subscription_and_its_end_survive(
    flush: str, version: int, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    rng = random.Random(seed)
    server = penstock_server(flush=flush, settings=small)
    held: dict[str, str] = {}  # topic filter → a topic that it matches
    gone: list[str] = []
    for round_number in range(KILLS):
        connection, _ = await MqttConnection.open(server.port, persistent("subscriber", version=version))
        async with connection:
            pattern = rng.choice(FILTERS)
            topic_filter = pattern.format(round_number)
            if held and rng.random() < 0.5:
                old = rng.choice(list(held))
                connection.send(Unsubscribe(1, (old,)))
                await connection.receive(UnsubAck)
                gone.append(held.pop(old))
            else:
                await connection.subscribe(2, topic_filter, QoS.AT_LEAST_ONCE)
                held[topic_filter] = TOPICS[pattern].format(round_number)
            server.kill()
        await asyncio.to_thread(server.restart)
        await publish(server, [*held.values(), *gone])
        assert await delivered(server, version) == sorted(held.values())


async def publish(server: PenstockServer, topics: list[str]) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        for packet_id, topic in enumerate(topics, 1):
            await connection.publish(Publish(topic, b"", QoS.AT_LEAST_ONCE, packet_id=packet_id))


async def delivered(server: PenstockServer, version: int) -> list[str]:
    """The topics of what the subscriber finds when it comes back, each acknowledged."""
    connection, connack = await MqttConnection.open(server.port, persistent("subscriber", version=version))
    async with connection:
        assert connack.session_present
        await connection.subscribe(3, "end", QoS.AT_LEAST_ONCE)
        await connection.publish(Publish("end", b"", QoS.AT_LEAST_ONCE, packet_id=1))
        topics = []
        while (message := await connection.take()).topic_name != "end":
            topics.append(message.topic_name)
        connection.send(Unsubscribe(4, ("end",)))
        await connection.receive(UnsubAck)
        return sorted(topics)
