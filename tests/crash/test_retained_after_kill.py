"""Retained messages are right on the first read after a SIGKILL."""

import asyncio
import random

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from loadtest.chaos.mqtt_client import MqttConnection
from tests.conftest import KILLED_WITH_EITHER_FLUSH, ServerFactory
from tests.support.server_process import PenstockServer

KILLS = 10
TOPICS = [f"plant/{line}/{name}" for line in range(3) for name in ("state", "speed", "speed/set")]
UPDATES = 150


class Retained:
    """What may be retained: of each topic the value acknowledged last, or one sent after it."""

    def __init__(self) -> None:
        self.allowed: dict[str, list[bytes]] = {topic: [b""] for topic in TOPICS}
        self.version = 0

    def sent(self, topic: str, payload: bytes) -> None:
        self.allowed[topic].append(payload)

    def acked(self, topic: str, payload: bytes) -> None:
        values = self.allowed[topic]
        self.allowed[topic] = values[values.index(payload) :]

    def is_known(self, topic: str, payload: bytes) -> None:
        """It was read: whatever else was possible is not any more."""
        assert payload in self.allowed[topic], topic
        self.allowed[topic] = [payload]


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
@pytest.mark.catalogue("G24")
async def test_retained_messages_after_each_kill(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    rng = random.Random(seed)
    server = penstock_server(flush=flush, settings=small)
    retained = Retained()
    for _ in range(KILLS):
        await update_and_kill(server, retained, rng)
        await asyncio.to_thread(server.restart)
        found = await read(server)
        for topic in TOPICS:
            retained.is_known(topic, found.get(topic, b""))


async def update_and_kill(server: PenstockServer, retained: Retained, rng: random.Random) -> None:
    """Set and remove retained messages, some of them still unacknowledged when the server is killed."""
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        inflight: dict[int, tuple[str, bytes]] = {}
        for packet_id in range(1, rng.randrange(2, UPDATES)):
            retained.version += 1
            topic = rng.choice(TOPICS)
            payload = rng.choice((b"", b"%d" % retained.version, b"%d" % retained.version + bytes(2_000)))
            inflight[packet_id] = topic, payload
            retained.sent(topic, payload)
            connection.send(Publish(topic, payload, QoS.AT_LEAST_ONCE, retain=True, packet_id=packet_id))
            while len(inflight) > 10:
                ack = await connection.receive(PubAck)
                retained.acked(*inflight.pop(ack.packet_id))
        server.kill()


async def read(server: PenstockServer) -> dict[str, bytes]:
    """The retained messages, to the first subscriber there is."""
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        connection.send(Subscribe(1, (SubscriptionRequest("plant/#", QoS.AT_MOST_ONCE),)))
        await connection.receive(SubAck)
        # Retained messages come before anything that is published after the subscription.
        connection.send(Publish("plant/end", b"end", QoS.AT_MOST_ONCE))
        found: dict[str, bytes] = {}
        while True:
            publish = await connection.receive(Publish)
            if publish.topic_name == "plant/end":
                return found
            assert publish.retain
            assert publish.topic_name not in found
            found[publish.topic_name] = publish.payload
