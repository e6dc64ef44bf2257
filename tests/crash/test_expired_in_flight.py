"""A QoS 2 message that expires between PUBLISH and PUBREC: its packet identifier must not swallow the next message."""

import time

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from gateway.mqtt.properties import Properties
from loadtest.chaos.ledger import SentMessage, until
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from tests.conftest import ServerFactory

TOPIC = "soon/gone"
EXPIRY_S = 1


@pytest.mark.asyncio
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_an_identifier_is_free_only_when_both_sides_say_so(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    subscriber = load.subscriber("subscriber", {TOPIC: 2})
    async with load.running():
        subscriber.lazy = 100  # it keeps what it gets, but answers nothing
        for sequence in (1, 2):
            await publish(
                load, SentMessage("publisher", TOPIC, 2, sequence), Properties(message_expiry_interval=EXPIRY_S)
            )
        await load.ledger.wait(lambda: load.ledger.all_delivered, "what will expire")
        expired_at_s = time.time() + EXPIRY_S + 0.5
        server.kill()
        subscriber.settle()
        await until(lambda: time.time() > expired_at_s, "the expiry")
        await load.restart()
        for sequence in (3, 4, 5):
            await publish(load, SentMessage("publisher", TOPIC, 2, sequence), Properties())
        await load.ledger.wait(lambda: load.ledger.all_delivered, "what came after it")
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


async def publish(load: ChaosLoad, message: SentMessage, properties: Properties) -> None:
    load.ledger.sent.add(message)
    connection, _ = await MqttConnection.open(load.server.port, Connect("publisher", clean_start=True))
    async with connection:
        await connection.publish_once(
            Publish(TOPIC, message.payload(), QoS.EXACTLY_ONCE, packet_id=1, properties=properties)
        )
        load.ledger.on_acked(message)
