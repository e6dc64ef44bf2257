"""Wills across a SIGKILL of the server: sent once, within their delay; never after a clean DISCONNECT."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.mqtt.packets import Connect, Disconnect, QoS, Will
from gateway.mqtt.properties import Properties
from loadtest.chaos.clients import ChaosPublisher, ChaosSubscriber
from loadtest.chaos.ledger import SentMessage
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from tests.conftest import KILLED_WITH_EITHER_FLUSH, ServerFactory
from tests.support.server_process import PenstockServer

TOPIC = "will/sent"
CLIENTS = 8
DELAY_S = 1
SLOWNESS_S = 5  # what a busy machine adds to anything


class Watched:
    """A load with a watcher of wills, and a publisher to the same topic: behind its next message no will can come."""

    def __init__(self, server: PenstockServer, seed: int) -> None:
        self.server = server
        self.load = ChaosLoad(server, seed)
        self.watcher: ChaosSubscriber = self.load.subscriber("watcher", {TOPIC: 2})
        self.publisher: ChaosPublisher = self.load.publisher("publisher", (TOPIC, 2))
        self._connections: list[MqttConnection] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self.load.running():
                yield
        finally:
            for connection in self._connections:
                connection.cut()

    def will_of(self, client_id: str) -> SentMessage:
        return SentMessage(client_id, TOPIC, 2, 1)

    async def connect(self, client_id: str, delay_s: int = 0, version: int = 5) -> MqttConnection:
        """Connect with a will. Nothing is to be delivered of it unless it is owed()."""
        will = Will(TOPIC, self.will_of(client_id).payload(), QoS.EXACTLY_ONCE)
        properties = Properties()
        if version == 5:
            will.properties.will_delay_interval = delay_s or None
            properties = Properties(session_expiry_interval=60 if delay_s else None)
        connect = Connect(client_id, version, clean_start=not delay_s, will=will, properties=properties)
        connection, _ = await MqttConnection.open(self.server.port, connect)
        self._connections.append(connection)
        return connection

    def owed(self, *client_ids: str) -> None:
        """From here on these wills must come, once each."""
        for client_id in client_ids:
            self.load.ledger.sent.add(self.will_of(client_id))
            self.load.ledger.acked.add(self.will_of(client_id))

    async def settled(self) -> None:
        """What is owed has come, and nothing else."""
        ledger = self.load.ledger
        await ledger.wait(lambda: ledger.all_delivered, "the wills")
        self.watcher.settle()
        self.publisher.allow(1)
        await self.load.all_acknowledged()
        await ledger.wait(lambda: ledger.all_delivered, "what was published behind the wills")
        assert not (complaints := ledger.complaints()), "\n".join(complaints)


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
@pytest.mark.catalogue("G24")
async def test_the_death_of_the_server_sends_the_wills_of_the_connected(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    watched = Watched(server, seed)
    async with watched.running():
        here = [f"here-{n}" for n in range(CLIENTS)]
        for n, client_id in enumerate(here):
            await watched.connect(client_id, version=4 + n % 2)
        for n in range(CLIENTS):
            await leave_cleanly(await watched.connect(f"gone-{n}", version=4 + n % 2))
        watched.owed(*here)
        for _ in range(3):  # the next deaths must not send them again
            await watched.load.restart()
        await watched.settled()


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
async def test_a_delayed_will_is_sent_unless_its_client_comes_back(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    watched = Watched(server, seed)
    async with watched.running():
        await watched.connect("back", DELAY_S)
        await watched.connect("stays-away", DELAY_S)
        await watched.load.restart()
        started_s = asyncio.get_running_loop().time()
        back = await watched.connect("back", DELAY_S)
        watched.owed("stays-away")
        await watched.settled()
        assert asyncio.get_running_loop().time() - started_s < DELAY_S + SLOWNESS_S
        back.cut()
        watched.owed("back")
        await watched.settled()


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
async def test_the_will_of_a_client_that_dies_just_before_the_server(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    watched = Watched(server, seed)
    rng = random.Random(seed)
    async with watched.running():
        for round_number in range(10):
            dying = [f"dying-{round_number}-{n}" for n in range(rng.randrange(1, 10))]
            connections = [await watched.connect(client_id) for client_id in dying]
            watched.owed(*dying)
            for connection in connections:
                connection.cut()
            await asyncio.sleep(rng.choice((0, 0.0005, 0.002, 0.02)))  # not to wait for something: to hit any moment
            await watched.load.restart()
        await watched.settled()


@pytest.mark.asyncio
async def test_a_clean_disconnect_just_before_the_death(
    penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush="async", settings=small)
    watched = Watched(server, seed)
    async with watched.running():
        for round_number in range(10):
            for n in range(3):
                await leave_cleanly(await watched.connect(f"polite-{round_number}-{n}", DELAY_S * (n % 2)))
            await watched.load.restart()
        await watched.settled()


async def leave_cleanly(connection: MqttConnection) -> None:
    """DISCONNECT, and see from the connection's end that the server has it."""
    async with connection:
        connection.send(Disconnect())
        await connection.ended()


@pytest.mark.asyncio
async def test_a_will_of_a_session_taken_over_is_not_forgotten(
    penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    """The second connection has no will; the first one's is sent although the server dies at that moment."""
    server = penstock_server(flush="async", settings=small)
    watched = Watched(server, seed)
    async with watched.running():
        first = await watched.connect("twice")
        watched.owed("twice")
        second, _ = await MqttConnection.open(server.port, Connect("twice", clean_start=True))
        await first.ended()
        async with second:
            await watched.load.restart()
        await watched.settled()
