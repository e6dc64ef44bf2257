"""A QoS 2 publish whose PUBREC or PUBCOMP is lost with the connection or the server: delivered once."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.mqtt.packets import PubComp, Publish, PubRec, PubRel, QoS
from loadtest.chaos.clients import Server
from loadtest.chaos.ledger import Ledger, SentMessage
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import ServerFactory

TOPIC = "hand/shake"
PACKET_ID = 7
ROUNDS = 8

Loss = Callable[[ChaosLoad, MqttConnection], Awaitable[None]]


async def cut(_: ChaosLoad, connection: MqttConnection) -> None:
    connection.cut()


async def kill(load: ChaosLoad, connection: MqttConnection) -> None:
    await load.restart()
    connection.cut()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("flush", "lose", "version"),
    [("async", cut, 4), ("sync", cut, 5), ("async", kill, 5), pytest.param("sync", kill, 4, marks=pytest.mark.nightly)],
)
@pytest.mark.catalogue("G23")
async def test_answers_lost_at_each_step(
    flush: str, lose: Loss, version: int, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    """Every message has the same packet identifier: each must be told from its own duplicates, not from the others."""
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.subscriber("watcher", {TOPIC: 2})
    rng = random.Random(seed)
    async with load.running():
        for sequence in range(1, ROUNDS + 1):
            message = SentMessage("publisher", TOPIC, 2, sequence)
            load.ledger.sent.add(message)
            await hand_over(load, message, version, lose, rng)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


async def hand_over(load: ChaosLoad, message: SentMessage, version: int, lose: Loss, rng: random.Random) -> None:
    """Publish once, losing the connection before PUBREC, before PUBCOMP, both or neither."""
    publish = Publish(TOPIC, message.payload(), QoS.EXACTLY_ONCE, packet_id=PACKET_ID)
    connection = await connect(load.server, version)
    connection.send(publish)
    if rng.random() < 0.7:
        if rng.random() < 0.5:
            await taken(load.ledger, message)
        await lose(load, connection)
        connection = await connect(load.server, version)
        publish.dup = True
        connection.send(publish)
    assert (await connection.receive(PubRec)).reason_code == 0
    load.ledger.on_acked(message)
    connection.send(PubRel(PACKET_ID))
    if rng.random() < 0.7:
        await lose(load, connection)
        connection = await connect(load.server, version)
        connection.send(PubRel(PACKET_ID))
    await connection.receive(PubComp)
    connection.cut()


async def connect(server: Server, version: int) -> MqttConnection:
    connection, _ = await MqttConnection.open(server.port, persistent("publisher", version=version))
    return connection


async def taken(ledger: Ledger, message: SentMessage) -> None:
    """The server has the message: its watcher got it."""
    await ledger.wait(lambda: message in ledger.delivered["watcher"], f"{message}")
    await asyncio.sleep(0)
