"""Clients under load that notice whatever a hand-over must not do: close, lose, double or reorder.

Each publishes numbers to a topic of its own, at one QoS with all steps of it, and subscribes to that topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from gateway.mqtt.packets import (
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from gateway.mqtt.properties import Properties
from loadtest.chaos.mqtt_client import MqttConnection

WINDOW = 4
ALIAS = 7
ALIASES_OUT = 5
WORK = 200


class NumbersClient:
    """One client: `number` decides its QoS, its version of MQTT, and whether its session outlives the connection.

    `wild`: it subscribes with a wildcard, so the queue of a session that ends with its connection is in memory only.
    """

    def __init__(self, number: int, wild: bool = False) -> None:
        self.number = number
        self.qos = QoS(number % 3)
        self.version = 5 if number % 2 else 4
        self.topic = f"own/{number}/wild" if wild else f"own/{number}"
        self._topic_filter = f"own/{number}/+" if wild else self.topic
        self.sent = 0
        self.done = 0  # publishes whose handshake is over
        self.received: list[int] = []
        self.faults: list[str] = []
        self._came = asyncio.Event()
        self._stopping = False
        self._is_aliased = False
        self._open: set[int] = set()  # QoS 2 messages to it that are not released
        self._connection: MqttConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connect(self) -> Connect:
        is_durable = self.number % 4 < 2
        properties = Properties()
        if self.version == 5:
            expiry_s = 3_600 if is_durable else None
            properties = Properties(session_expiry_interval=expiry_s, topic_alias_maximum=ALIASES_OUT)
        return Connect(f"client-{self.number}", self.version, not is_durable, 300, properties=properties)

    async def start(self, port: int) -> None:
        self._connection, _ = await MqttConnection.open(port, self.connect)
        await self._connection.subscribe(1, self._topic_filter, self.qos)
        self._task = asyncio.create_task(self._run(self._connection))

    async def has_received(self, number: int) -> None:
        """Wait until so many have come back, or something is wrong."""
        while len(self.received) < number and not self.faults:
            self._came.clear()
            await self._came.wait()

    async def finish(self) -> None:
        """Publish no more, and wait until all that was published has come back."""
        self._stopping = True
        assert self._task is not None
        assert self._connection is not None
        await self._task
        self._connection.cut()

    @property
    def is_complete(self) -> bool:
        return self.done == self.sent == len(self.received) and not self._open

    async def _run(self, connection: MqttConnection) -> None:
        try:
            self._publish(connection)
            while not (self._stopping and self.is_complete):
                for packet in await connection.packets():
                    self._take(connection, packet)
                self._publish(connection)
        except ConnectionError as error:
            self.faults.append(f"closed: {error}")
            self._came.set()

    def _publish(self, connection: MqttConnection) -> None:
        while not self._stopping and self.sent - min(self.done, len(self.received)) < WINDOW:
            properties, topic = Properties(), self.topic
            if self.version == 5:
                properties.topic_alias = ALIAS
                topic = "" if self._is_aliased else self.topic
                self._is_aliased = True
            packet_id = self.sent % 60_000 + 10 if self.qos else None
            payload = b"%d" % self.sent
            connection.send(Publish(topic, payload, self.qos, packet_id=packet_id, properties=properties))
            self.sent += 1
            self.done += not self.qos

    def _take(self, connection: MqttConnection, packet: Packet) -> None:
        match packet:
            case Publish():
                self._message(connection, packet)
            case PubAck() | PubComp():
                self.done += 1
            case PubRec():
                connection.send(PubRel(packet.packet_id))
            case PubRel():
                if packet.packet_id not in self._open:
                    self.faults.append(f"PUBREL of {packet.packet_id}, which is not open")
                self._open.discard(packet.packet_id)
                connection.send(PubComp(packet.packet_id))
            case _:
                self.faults.append(f"came: {packet}")

    def _message(self, connection: MqttConnection, packet: Publish) -> None:
        number = int(packet.payload)
        if packet.dup or number != len(self.received) or packet.qos != self.qos:
            self.faults.append(f"{number} (QoS {packet.qos}, dup {packet.dup}) in place of {len(self.received)}")
        self.received.append(number)
        self._came.set()
        if packet.qos == 1:
            connection.send(PubAck(packet.packet_id or 0))
        elif packet.qos == 2:
            self._open.add(packet.packet_id or 0)
            connection.send(PubRec(packet.packet_id or 0))


async def start_all(clients: Sequence[NumbersClient], port: int, at_once: int = 50) -> None:
    for at in range(0, len(clients), at_once):
        await asyncio.gather(*(each.start(port) for each in clients[at : at + at_once]))


async def finish_all(clients: Sequence[NumbersClient], patience_s: float) -> None:
    """Raises AssertionError for the first fault, and for what did not come back in time."""
    faults = {each.number: each.faults for each in clients if each.faults}
    assert not faults, faults
    try:
        async with asyncio.timeout(patience_s):
            await asyncio.gather(*(each.finish() for each in clients))
    except TimeoutError:
        left = [(each.number, each.sent, each.done, len(each.received)) for each in clients if not each.is_complete]
        raise AssertionError(f"(number, sent, done, received) of clients that wait: {left[:20]}") from None
    faults = {each.number: each.faults for each in clients if each.faults}
    assert not faults, faults


class Worker:
    """A member of a shared subscription, which notes what it is given."""

    def __init__(self, number: int, took: Callable[[int], object]) -> None:
        self._number = number
        self._took = took

    async def run(self, port: int, share: str) -> None:
        connection, _ = await MqttConnection.open(port, Connect(f"worker-{self._number}", 5, True, 300))
        connection.send(Subscribe(1, (SubscriptionRequest(share, QoS.AT_LEAST_ONCE),)))
        await connection.receive(SubAck)
        async with connection:
            while True:
                self._took(int((await _next(connection)).payload))


async def _next(connection: MqttConnection) -> Publish:
    while True:
        try:
            return await connection.take()
        except TimeoutError:
            continue


class Workers:
    """A shared subscription of some clients, and who publishes work for them."""

    def __init__(self, port: int) -> None:
        self.taken: list[int] = []
        self.all_taken = asyncio.Event()
        share = "$share/workers/work/#"
        self._tasks = [asyncio.create_task(Worker(number, self._took).run(port, share)) for number in range(4)]
        self._port = port

    def _took(self, number: int) -> None:
        self.taken.append(number)
        if len(self.taken) == WORK:
            self.all_taken.set()

    async def publish(self) -> None:
        connection, _ = await MqttConnection.open(self._port, Connect("boss", 5, True, 300))
        async with connection:
            for number in range(WORK):
                await connection.publish(Publish(f"work/{number % 7}", b"%d" % number, QoS(1), packet_id=number + 1))

    async def finish(self, patience_s: float) -> None:
        async with asyncio.timeout(patience_s):
            await self.all_taken.wait()
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks)
        assert sorted(self.taken) == list(range(WORK))
