"""What users do at a cluster with two gateways, and what they may see while its stores fail.

Devices publish and subscribe at QoS 1 and 2, in two namespaces; a group works; messages are delayed and retained;
clients with wills die. Each connection has to last.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest, Will
from loadtest.chaos.ledger import Ledger, SentMessage, until
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from penstock import Client
from tests.support.apart_server import Gateway
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

GATEWAYS = 2
TENANT = "acme"
PATIENCE_S = 60
LATE_S = 20.0  # a message may come so long after its time, of which a failover takes some on a busy machine
WORKERS = 2
RETAINED = "state/of/1"


class Doors:
    """Server (loadtest.chaos.clients): a gateway after the other, for each connection."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = itertools.cycle(ports)

    @property
    def port(self) -> int:
        return next(self._ports)

    def restart(self) -> None:
        raise NotImplementedError


class ClusterGateways:
    """Gateways that know all stores, each with a listener for the tenant's clients."""

    def __init__(self, folder: Path, stores: Sequence[StoreProcess]) -> None:
        store = "tcp://" + ",".join(each.url.removeprefix("tcp://") for each in stores)
        self.ports = [free_port() for _ in range(GATEWAYS)]
        self.tenant_ports = [free_port() for _ in range(GATEWAYS)]
        self._parts: list[Gateway] = []
        try:
            for number, (own, tenants) in enumerate(zip(self.ports, self.tenant_ports, strict=True)):
                urls = (f"mqtt://127.0.0.1:{own}", f"mqtt://127.0.0.1:{tenants}?namespace={TENANT}")
                listen = [argument for url in urls for argument in ("--listen", url)]
                command = ["gateway", "--store", store, *listen]
                self._parts.append(Gateway(len(urls), folder / f"gateway-{number}.log", command, {}))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in self._parts:
            each.kill()


class TimedLedger(Ledger):
    """A ledger that knows when each message came first."""

    def __init__(self) -> None:
        super().__init__()
        self.came_s: dict[SentMessage, float] = {}

    def on_delivered(self, subscriber: str, message: SentMessage) -> None:
        self.came_s.setdefault(message, time.monotonic())
        super().on_delivered(subscriber, message)


class GroupWork:
    """Consumers of a group of the native client, what they were given, and what they are surely done with."""

    def __init__(self, url: str) -> None:
        self.given: set[SentMessage] = set()
        self.done: set[SentMessage] = set()
        self.again: list[SentMessage] = []  # that came although the store had said that they are done
        self._url = url

    async def run(self) -> None:
        async with Client(self._url, timeout_s=PATIENCE_S) as client, asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(self._work(client))

    async def _work(self, client: Client) -> None:
        async for message in client.subscribe("line/#", group="workers", start="earliest", max_deliveries=0):
            assert isinstance(message.payload, bytes)
            sent = SentMessage.parse(message.payload)
            self.given.add(sent)
            if sent in self.done:
                self.again.append(sent)
            if await message.ack():
                self.done.add(sent)


class ClusterLoad:
    """All of it; `running()` is its life."""

    def __init__(self, gateways: ClusterGateways, stores: Sequence[StoreProcess], seed: int) -> None:
        self._gateways = gateways
        self._url = "penstock://" + ",".join(each.url.removeprefix("tcp://") for each in stores)
        self.ledger = TimedLedger()
        self._devices = ChaosLoad(Doors(gateways.ports), seed)
        self._devices.ledger = self.ledger
        for number in range(3):
            topics = ((f"line/{number}", 1), (f"line/{number}", 2), ("line/all", 1 + number % 2))
            self._devices.publisher(f"p{number}", *topics, version=4 + number % 2)
        self._devices.subscriber("all", {"line/#": 2})
        self._devices.subscriber("some", {"line/0": 1, "line/all": 2}, version=4)
        self._devices.subscriber("crossing", {"+/1": 1})
        self._devices.subscriber("watcher", {"will/+": 2, "late/+": 2})
        self._tenants = ChaosLoad(Doors(gateways.tenant_ports), seed + 1)  # with the same names
        self._tenants.publisher("tenant", ("line/0", 2), ("line/1", 1))
        self._tenants.subscriber("all", {"line/#": 2})
        self._work = GroupWork(self._url)
        self._closing = AsyncExitStack()
        self._numbers = itertools.count(1)
        self._dying: list[MqttConnection] = []
        self._due_s: dict[SentMessage, float] = {}
        self._newest_state = b""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._closing, self._devices.running(), self._tenants.running(), asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self._work.run())
            try:
                yield
            finally:
                working.cancel()

    # --- what happens around a fault

    async def publish(self, messages: int) -> None:
        """Each publisher so many more, and wait until most of them are acknowledged."""
        before = self.ledger.counts["acknowledged"]
        for load in (self._devices, self._tenants):
            load.allow(messages)
        wanted = before + messages * len(self._devices.publishers) * 3 // 4
        await until(lambda: self.ledger.counts["acknowledged"] >= wanted, "acknowledgements", PATIENCE_S)

    def allow(self, messages: int) -> None:
        """Each publisher so many more, without waiting."""
        for load in (self._devices, self._tenants):
            load.allow(messages)

    async def delay(self, *delays_s: int) -> None:
        """Messages that are due after so many seconds."""
        async with await self._connected("clock") as connection:
            for delay_s in delays_s:
                number = next(self._numbers)
                message = SentMessage("clock", f"late/{number}", 2, number)
                self._due_s[message] = time.monotonic() + delay_s
                self.ledger.on_sent(message)
                topic = f"$delayed/{delay_s}/{message.topic}"
                await connection.publish_once(Publish(topic, message.payload(), QoS.EXACTLY_ONCE, packet_id=number))
                self.ledger.on_acked(message)

    async def retain(self) -> None:
        """A new value of a retained topic."""
        self._newest_state = value = b"state %d" % next(self._numbers)
        async with await self._connected("state") as connection:
            await connection.publish(Publish(RETAINED, value, QoS.AT_LEAST_ONCE, True, packet_id=1))

    async def connect_with_wills(self) -> None:
        """A client at each gateway that will die, and one that lives on."""
        for _ in self._gateways.ports:
            number = next(self._numbers)
            message = SentMessage(f"dying-{number}", "will/sent", 2, number)
            self.ledger.on_sent(message)
            self._dying.append(await self._connected(message.publisher, Will(message.topic, message.payload(), QoS(2))))
            self.ledger.on_acked(message)
        living = f"living-{next(self._numbers)}"
        unsent = SentMessage(living, "will/sent", 2, 1)
        connection = await self._connected(living, Will(unsent.topic, unsent.payload(), QoS(2)))
        self._closing.callback(connection.cut)

    def die(self) -> None:
        """Those that were to: without a DISCONNECT."""
        while self._dying:
            self._dying.pop().cut()

    async def _connected(self, client_id: str, will: Will | None = None) -> MqttConnection:
        port = self._devices.server.port
        connect = Connect(client_id, 5, True, 0, will=will)
        connection, _ = await MqttConnection.open(port, connect, PATIENCE_S)
        return connection

    # --- what they have seen

    async def settled(self) -> None:
        """All that was published is acknowledged, and has come; the group is done with it; new subscribers get what is
        retained. Raises AssertionError.
        """
        for load in (self._devices, self._tenants):
            for subscriber in load.subscribers:
                subscriber.settle()
            await load.all_acknowledged()
            await load.ledger.wait(lambda: load.ledger.all_delivered, "all deliveries")  # noqa: B023 - waited for here
        self._judge()
        worked = {each for each in self.ledger.acked if each.topic.startswith("line/")}
        await until(lambda: worked <= self._work.given, "the group's work", PATIENCE_S)
        assert self._work.given <= self.ledger.sent
        assert self._work.again == []
        for port in self._gateways.ports:
            connection, _ = await MqttConnection.open(port, Connect("newcomer", 5, True, 0), PATIENCE_S)
            async with connection:
                connection.send(Subscribe(1, (SubscriptionRequest(RETAINED, QoS.AT_LEAST_ONCE),)))
                found = await connection.receive(Publish, PATIENCE_S)
            assert (found.payload, found.retain) == (self._newest_state, True)

    def _judge(self) -> None:
        for load in (self._devices, self._tenants):
            assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
            lives = {each.client_id: each.lives for each in load.clients if each.lives != 1}
            assert not lives, f"connections that did not last: {lives}"
        for message, due_s in self._due_s.items():
            came_s = self.ledger.came_s.get(message)
            assert came_s is not None, f"{message} has not come"
            assert due_s <= came_s < due_s + LATE_S, f"{message} came {came_s - due_s:.3f} s after its time"

    async def is_stored_once(self) -> None:
        """The log has each message once. Raises AssertionError."""
        async with Client(self._url, timeout_s=PATIENCE_S) as client:
            for topic_filter in ("line/#", "will/#", "late/#"):
                found = [SentMessage.parse(bytes(message.payload)) async for message in client.read(topic_filter)]
                assert len(found) == len(set(found)), topic_filter
                topics = topic_filter.removesuffix("#")
                assert {each for each in self.ledger.acked if each.topic.startswith(topics)} <= set(found)
