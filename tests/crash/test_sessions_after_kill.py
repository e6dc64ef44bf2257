"""A session after a SIGKILL: it has all messages that it is owed, and none that was given up."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.mqtt.packets import Connect, Disconnect, Publish, QoS
from gateway.mqtt.properties import Properties
from loadtest.chaos.ledger import SentMessage
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import KILLED_WITH_EITHER_FLUSH, ServerFactory
from tests.support.server_process import PenstockServer

RETAINED = 60
KILLS = 6


async def give_up_by_clean_start(server: PenstockServer) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect("client", clean_start=True))
    connection.cut()


async def give_up_by_clean_session(server: PenstockServer) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect("client", 4, clean_start=True))
    connection.cut()


async def give_up_by_disconnect(server: PenstockServer) -> None:
    connection, _ = await MqttConnection.open(server.port, persistent("client"))
    async with connection:
        connection.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        await connection.ended()


async def give_up_by_expiry(server: PenstockServer) -> None:
    """It is over while there is no server."""
    connect = Connect("client", clean_start=False, properties=Properties(session_expiry_interval=1))
    connection, _ = await MqttConnection.open(server.port, connect)
    async with connection:
        connection.send(Disconnect())
        await connection.ended()
    server.kill()
    await asyncio.sleep(1.5)  # time is what this is about


GIVING_UP = [give_up_by_clean_start, give_up_by_clean_session, give_up_by_disconnect, give_up_by_expiry]


@pytest.mark.asyncio
@pytest.mark.parametrize("give_up", GIVING_UP)
async def test_a_session_given_up_does_not_come_back(
    give_up: Callable[[PenstockServer], Awaitable[None]], penstock_server: ServerFactory, small: dict[str, object]
) -> None:
    server = penstock_server(flush="async", settings=small)
    connection, _ = await MqttConnection.open(server.port, persistent("client"))
    async with connection:
        await connection.subscribe(1, "old/#", QoS.AT_LEAST_ONCE)
    await give_up(server)
    await asyncio.to_thread(server.restart)
    connection, connack = await MqttConnection.open(server.port, persistent("client"))
    async with connection:
        assert not connack.session_present
        await connection.subscribe(1, "new", QoS.AT_LEAST_ONCE)
        await connection.publish(Publish("old/a", b"", QoS.AT_LEAST_ONCE, packet_id=1))
        await connection.publish(Publish("new", b"", QoS.AT_LEAST_ONCE, packet_id=1))
        assert (await connection.take()).topic_name == "new"


@pytest.mark.asyncio
@pytest.mark.parametrize("qos", [QoS.AT_LEAST_ONCE, QoS.EXACTLY_ONCE])
@pytest.mark.catalogue("F20")
async def test_retained_messages_owed_to_a_session(
    qos: QoS, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    """A SUBACK promises the retained messages too, however many the client takes at a time, whoever dies meanwhile."""
    rng = random.Random(seed)
    server = penstock_server(flush="async", settings=small)
    load = ChaosLoad(server, seed)
    subscriber = load.subscriber("subscriber", {"kept/#": int(qos)})
    subscriber.subscribes_again = False  # that would bring them all again
    subscriber.expects_retained = True
    subscriber.receive_at_most(5)
    connection, _ = await MqttConnection.open(server.port, Connect("publisher", clean_start=True))
    async with connection:
        for number in range(RETAINED):
            message = SentMessage("publisher", f"kept/{number:03}", int(qos), number)
            load.ledger.sent.add(message)
            publish = Publish(message.topic, message.payload(), qos, retain=True, packet_id=1)
            await (connection.publish(publish) if qos == 1 else connection.publish_once(publish))
            load.ledger.acked.add(message)
    async with load.running():
        for _ in range(KILLS):
            await load.ledger.progress(rng.randrange(1, RETAINED // KILLS))
            await load.restart()
        subscriber.settle()
        await load.ledger.wait(lambda: load.ledger.all_delivered, "all retained messages")
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
async def test_retain_as_published_is_no_reason_to_send_twice(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    """RETAIN=1 may mean that a message comes from a queue, or that it was there before the subscription."""
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("publisher", ("kept/a", 2), ("kept/b", 2)).retain = True
    load.publisher("slow-down", ("other/a", 1))
    subscriber = load.subscriber("subscriber", {"kept/#": 2})
    subscriber.retain_as_published = subscriber.expects_retained = True
    subscriber.subscribes_again = False
    load.subscriber("lags", {"#": 1}).subscribes_again = False
    async with load.running():
        await load.upset(KILLS)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
